"""Mass: the weight that a row puts inside any mask M. Σⱼ p·M, between 0 and 1.

Identity 2: a ratio of two log-sum-exps, exp(lse(mask ∧ M) − lse); so every pattern detector is a
mask. Only the tiles that M touches are looked at; `offset(d)` is one key a row, and needs no tile
at all: n dot products. A row that sees nothing has 0.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ...attention.merge import awake
from ...attention.problem import Problem, exact
from ...attention.stream import added
from ...masks import EMPTY, Mask
from ...masks.by_place import offset
from ..sweep import Tile
from ..view import View
from .statistic import Expectation, Matrix, RowSum


@dataclasses.dataclass(frozen=True)
class Mass(Expectation):
    mask: Mask
    name: str | None = None

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.name or f"mass:{self.mask}"

    def needs(self) -> Mask:
        return self.mask

    def begin(self, view: View) -> _Mass:
        batch, heads = view.problem.query.shape[:2]
        self.mask.check(batch, heads, view.total, view.problem.key.shape[2])
        return _Mass(self, view)

    def at_once(self, view: View) -> Tensor | None:
        return _diagonal(view, self.mask.distance) if isinstance(self.mask, offset) else None

    def feature(self, tile: Tile) -> Tensor:
        mask = self.mask
        if tile.part.query.shape[0] != tile.view.problem.query.shape[0]:
            mask = mask.row(tile.batch)
        allowed = mask.allows(tile.queries, tile.key_indices, tile.part.offset)
        return allowed.to(tile.weights.dtype)

    def dense(self, matrix: Matrix) -> Tensor:
        view = matrix.view
        keys = view.queries.new_tensor(range(matrix.weights.shape[-1]))
        inside = self.mask.allows(view.queries, keys, view.problem.offset)
        return (matrix.weights * inside).sum(-1)


class _Mass(RowSum):
    """The sum inside a mask, which passes over the tiles that the mask does not touch."""

    _rows, _width, _touched = slice(0), 0, [False]

    def add(self, tile: Tile) -> None:
        if tile.rows != self._rows:  # all tiles of these rows at once
            self._rows, self._width = tile.rows, tile.keys.stop - tile.keys.start
            self._touched = self._touches(tile)
        place, inside = divmod(tile.keys.start, self._width)
        if inside or tile.keys.stop > (place + 1) * self._width or self._touched[place]:
            super().add(tile)

    def _touches(self, tile: Tile) -> list[bool]:
        total, offset = self.view.problem.key.shape[2], self.view.problem.offset
        offset = offset.cpu() if isinstance(offset, Tensor) else offset
        queries = torch.stack([tile.queries[0], tile.queries[-1] + 1]).cpu()
        edges = torch.tensor([*range(0, total, self._width), total], device="cpu")
        assert isinstance(self.statistic, Mass)
        kinds = self.statistic.mask.blocks(queries, edges, offset)
        return (kinds != EMPTY).any(0)[0].expand(len(edges) - 1).tolist()


_AT_ONCE = 128  # rows: their masks and biases are squares of which the diagonal is taken


def _diagonal(view: View, distance: int) -> Tensor:
    """The weight of each row on the one key that stands `distance` from it."""
    p = view.problem
    batch, keys = p.query.shape[0], p.key.shape[2]
    found = view.empty(len(view.queries))
    if not keys:
        return found
    one_by_one = [slice(row, row + 1) for row in range(batch)]
    for rows in one_by_one if isinstance(p.offset, Tensor) else [slice(0, batch)]:
        part = p.row(rows)
        wanted = view.queries + int(part.offset) + distance
        there = (wanted >= 0) & (wanted < keys)
        wanted = wanted.clamp(0, keys - 1)
        logs = _dot_products(part, wanted).sub_(awake(view.lse[rows]))
        for some in torch.arange(len(wanted), device=wanted.device).split(_AT_ONCE):
            extra = added(part, view.queries[some], wanted[some], full=part.mask is None)
            if extra is not None:
                logs[:, :, some] += extra.diagonal(dim1=-2, dim2=-1)
        found[rows] = torch.where(there, logs.exp_(), 0.0)
    return found


def _dot_products(p: Problem, keys: Tensor) -> Tensor:
    """The score of each query with one key of its own, (batch, heads, query)."""
    dtype = exact(p.query.dtype)
    query = p.query.to(dtype).unflatten(1, (p.key.shape[1], p.group))  # (…, kv_heads, group, …)
    key = p.key[:, :, keys].to(dtype).unsqueeze(2)
    scores = torch.linalg.vecdot(query, key).flatten(1, 2) * p.scale
    return scores if p.softcap is None else torch.tanh(scores / p.softcap) * p.softcap
