"""One pass over the tiles of a map, for everything asked together.

A tile is exp(scores − lse). The product of queries and keys starts from −lse instead of 0 and so
gives the logarithm of the weights itself; then each statistic takes what it needs from the same two
buffers. EMPTY tiles are never visited. Logarithms are to base 2 throughout
a tile: on a CPU exp2 takes a third of the time of exp, and a tenth where weights vanish.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..attention.plan import Piece, Run, Size, plan, stack
from ..attention.problem import Problem, exact
from ..attention.stream import added, indices
from ..attention.tile import Scratch, lent, scores
from .view import View

NEVER = -1e30  # the logarithm of a weight of 0: exp2 is 0, and 0 · this is 0 where 0 · −inf is not
LN2 = math.log(2.0)

_TILE = 3 * 2**18  # scores of one tile over all heads: 3 MB in float32, near the second cache


class Tile:
    """A rectangle of weights, and the few sums that statistics share."""

    def __init__(
        self,
        view: View,
        batch: slice,
        rows: slice,
        run: Run,
        log2_weights: Tensor,
        weights: Tensor,
        allowed: Tensor | None,
        part: Problem,
    ) -> None:
        self.view, self.part = view, part  # `part` is the problem of these batch rows
        self.allowed = allowed  # who may look at whom, (#batch, #heads, query, key); None: everyone
        self.batch, self.rows, self.keys, self.full = batch, rows, run.keys, run.full
        self.log2_weights, self.weights = log2_weights, weights
        self._row_sums: dict[tuple[int, ...], Tensor] = {}

    @functools.cached_property
    def queries(self) -> Tensor:
        return self.view.queries[self.rows]

    @functools.cached_property
    def key_indices(self) -> Tensor:
        return torch.arange(self.keys.start, self.keys.stop, device=self.weights.device)

    @functools.cached_property
    def largest(self) -> Tensor:
        """The largest weight of each row in this tile."""
        return self.weights.amax(-1)

    def row_sums(self, sizes: tuple[int, ...]) -> Tensor:
        """Sums over consecutive groups of rows, (batch, heads, groups, key): one pass for all."""
        if {*sizes} == {1}:
            return self.weights
        if sizes not in self._row_sums:
            same = len({*sizes}) == 1
            groups = self.weights.unflatten(2, (len(sizes), -1)).sum(3) if same else None
            if groups is None:
                parts = self.weights.split(list(sizes), dim=2)
                groups = torch.stack([part.sum(2) for part in parts], dim=2)
            self._row_sums[sizes] = groups
        return self._row_sums[sizes]

    @property
    def column_sums(self) -> Tensor:
        """What each key of the tile receives, (batch, heads, key)."""
        known = next(iter(self._row_sums.values()), None)
        return self.weights.sum(2) if known is None else known.sum(2)

    @functools.cached_property
    def log2_mean(self) -> Tensor:
        """Σⱼ p·log₂ p over the tile, (batch, heads, query)."""
        return self.expect(self.log2_weights)

    def expect(self, feature: Tensor) -> Tensor:
        """Σⱼ p·f over the tile, for a feature that broadcasts to (batch, heads, query, key).

        The products overwrite the logarithms, which are warm in the cache: who needs those comes
        first (see `Gatherer.turn`).
        """
        return torch.mul(self.weights, feature, out=self.log2_weights).sum(-1)

    @property
    def here(self) -> tuple[slice, slice, slice]:
        """Where the rows of this tile lie in a result (batch, heads, row)."""
        return self.batch, slice(None), self.rows


@runtime_checkable
class Gatherer(Protocol):
    """A statistic at work: it takes from every tile, and gives its result at the end."""

    turn: int  # 0 reads the logarithms, 1 sums rows or logarithms for others, 2 comes after these

    def add(self, tile: Tile) -> None: ...
    def result(self) -> object: ...


def sweep(view: View, gatherers: Iterable[Gatherer]) -> None:
    """Show every tile of the view to every gatherer."""
    gatherers = sorted(gatherers, key=lambda gatherer: gatherer.turn)
    for tile in tiles(view):
        for gatherer in gatherers:
            gatherer.add(tile)


def tiles(view: View) -> Iterator[Tile]:
    """The tiles of the view that are not EMPTY, each gone with the next; rows meet keys in order.

    Rows that lie far apart see different keys: the fewer are looked at, the finer the strips in
    which the mask is asked, and `stack` makes tall tiles of them again.
    """
    p = view.problem
    dtype, heads = exact(p.query.dtype), p.query.shape[1]
    at_once = max(1, 12 // heads)
    side = _TILE // (heads * min(at_once, max(1, p.query.shape[0])))
    width = max(32, min(256, 1 << ((side.bit_length() - 1) // 2)))
    height = max(32, min(512, side // width))
    count = len(view.queries)
    if 0 < count <= height // 2:  # too few for a tall tile: a wide one
        width = max(width, min(512, 1 << (side // count).bit_length() - 1))
    grain = min(height, max(16, height * count // max(1, view.total)))
    size = Size(grain, grain, block=width, partial_run=width, full_run=width)
    with lent(p.query, dtype) as scratch:
        for batch, strips in plan(p, size, at_once, view.queries):
            part = p.row(batch)
            # A row that sees nothing has no weight anywhere, whatever its scores are.
            lse = view.lse[batch].masked_fill(view.lse[batch] == -torch.inf, -NEVER)
            broken = bool(lse.isnan().any())
            keys = part.key.to(dtype)
            pieces = [Piece(strip.queries, run) for strip in strips for run in strip.runs]
            query, here = part.query, None
            for rows, run in stack(strips, height) if grain < height else pieces:
                if rows != here:  # laid out once for all its tiles, so that grouped heads are rows
                    here, query = rows, part.query[:, :, rows].to(dtype).contiguous()
                tile = _look(view, batch, rows, run, query, keys, lse[:, :, rows], part, scratch)
                if broken and tile.allowed is not None:  # a NaN stays among the keys of its row
                    tile.weights.masked_fill_(~tile.allowed, 0.0)
                yield tile


def _look(
    view: View,
    batch: slice,
    rows: slice,
    run: Run,
    query: Tensor,
    keys: Tensor,
    lse: Tensor,
    part: Problem,
    scratch: Scratch,
) -> Tile:
    key = keys[:, :, run.keys]
    if part.softcap is None:
        logs = scratch.take("scores", (*query.shape[:3], key.shape[2]))
        log2_product(query, key, lse, part.scale, out=logs)
    else:
        logs = scores(query, key, part.scale, part.softcap, scratch)
        logs.sub_(lse[..., None]).div_(LN2)
    queries, allowed = view.queries[rows], None
    bias = None if part.bias is None else added(part, queries, run.keys, full=True)
    if bias is not None:
        logs.add_(bias, alpha=1 / LN2).clamp_(min=NEVER)
    if part.mask is not None and not run.full:
        allowed = part.mask.allows(queries, indices(part, run.keys), part.offset)
        ceiling = scratch.take("ceiling", tuple(allowed.shape)).fill_(NEVER)
        ceiling.masked_fill_(allowed, torch.inf)
        torch.minimum(logs, ceiling, out=logs)  # a fifth of the time of masked_fill_ over all heads
        allowed = allowed.expand(-1, -1, *logs.shape[2:])
    weights = torch.exp2(logs, out=scratch.take("weights", tuple(logs.shape)))
    return Tile(view, batch, rows, run, logs, weights, allowed, part)


def log2_product(query: Tensor, key: Tensor, lse: Tensor, scale: float, out: Tensor) -> None:
    """(scale · q kᵀ − lse) / ln 2 in one product: it starts from −lse where others start from 0."""
    batch, kv_heads, columns, dim = key.shape
    shape = (batch * kv_heads, -1, dim)  # grouped heads are rows of one product
    start = (lse / -LN2).reshape(batch * kv_heads, -1, 1)
    torch.baddbmm(
        start, query.reshape(shape), key.reshape(batch * kv_heads, columns, dim).mT,
        alpha=scale / LN2, out=out.view(batch * kv_heads, -1, columns),
    )  # fmt: skip
