"""Heat map: the whole map in cells × cells. Cell c covers ⌊c·n/cells⌋ … ⌊(c+1)·n/cells⌋.

Each cell keeps the sum of its weights, the largest, and the number of visible pairs: a mean is
over visible pairs (one over area would darken the diagonal), and halving adds sums.
Identity 4: a tile is exp(s − lse); here each is reduced as it goes by.
"""

from __future__ import annotations

import bisect
import dataclasses
import operator
from typing import NamedTuple

import torch
from torch import Tensor

from ..sweep import Tile
from ..view import View
from .statistic import Matrix, Statistic


class HeatMap(NamedTuple):
    """Sums, largest weights and numbers of visible pairs, (batch, heads, cells, cells) each."""

    sum: Tensor
    largest: Tensor
    pairs: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean weight of the visible pairs of each cell; 0 where there are none."""
        return self.sum / self.pairs.clamp(min=1)

    def __repr__(self) -> str:
        return f"HeatMap of {tuple(self.sum.shape)}: .sum, .largest, .mean, .pairs"

    def halve(self) -> HeatMap:
        """The same map in half as many cells: sums and pairs add up, the largest stays."""

        def quarter(t: Tensor) -> Tensor:
            odd = t.shape[-1] % 2
            t = torch.nn.functional.pad(t, (0, odd, 0, odd))
            return t.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2))  # (…, half, 2, half, 2)

        add = (quarter(t).sum((-1, -3)) for t in (self.sum, self.pairs))
        total, pairs = add
        return HeatMap(total, quarter(self.largest).amax((-1, -3)), pairs)


def cell_edges(length: int, cells: int) -> list[int]:
    return [c * length // cells for c in range(cells + 1)]


@dataclasses.dataclass(frozen=True)
class Heat(Statistic):
    cells: int
    per_row = False

    def __post_init__(self) -> None:
        if isinstance(self.cells, bool) or not isinstance(self.cells, int) or self.cells < 1:
            raise ValueError(
                f"heatmap(cells) takes a whole number from 1 on, but {self.cells!r} came; give one."
            )

    @property
    def key(self) -> str:  # type: ignore[override]
        return f"heatmap({self.cells})"

    def begin(self, view: View) -> _Heat:
        return _Heat(view, self.cells)

    def dense(self, matrix: Matrix) -> HeatMap:
        view = matrix.view
        rows = cell_edges(view.total, self.cells)
        keys = cell_edges(matrix.weights.shape[-1], self.cells)
        shape = (*matrix.weights.shape[:2], self.cells, self.cells)
        found = HeatMap(*(matrix.weights.new_zeros(shape) for _ in range(3)))
        for r in range(self.cells):
            inside = (view.queries >= rows[r]) & (view.queries < rows[r + 1])
            for c in range(self.cells):
                here = matrix.weights[:, :, inside, keys[c] : keys[c + 1]]
                found.sum[:, :, r, c] = here.sum((-1, -2))
                if here.numel():
                    found.largest[:, :, r, c] = here.amax((-1, -2))
                found.pairs[:, :, r, c] = matrix.allowed[:, :, inside, keys[c] : keys[c + 1]].sum(
                    (-1, -2)
                )
        return found


class _Heat:
    turn = 1  # columns can use what it sums

    def __init__(self, view: View, cells: int) -> None:
        self.key_edges = cell_edges(view.problem.key.shape[2], cells)
        # Rows are some of all queries, ascending: those of a cell lie together.
        edges = torch.tensor(cell_edges(view.total, cells), device=view.queries.device)
        self.row_edges = torch.searchsorted(view.queries, edges).tolist()
        self.total, self.largest = (view.empty(cells, cells) for _ in range(2))
        # Whole numbers, for a float32 counts to 2²⁴ alone; once for all heads if they see the same.
        self.pairs = self.total.new_zeros(len(self.total), 1, cells, cells, dtype=torch.int64)

    def spread(self, first: int, rows: int, queries: int, keys: int) -> None:
        """From here on take tiles of `rows` that stand from `first` on in a longer map."""
        cells = self.total.shape[-1]
        edges = cell_edges(queries, cells)
        self.row_edges = [min(max(edge - first, 0), rows) for edge in edges]
        self.key_edges = cell_edges(keys, cells)

    def add(self, tile: Tile) -> None:
        rows, down = _cut(self.row_edges, tile.rows.start, tile.rows.stop)
        columns, across = _cut(self.key_edges, tile.keys.start, tile.keys.stop)
        # Rows first: that leaves little to reduce along the keys.
        sums = _by_cell(tile.row_sums(down), across, -1, "sum")
        tops = _by_cell(_by_cell(tile.weights, down, -2, "amax"), across, -1, "amax")
        here = (tile.batch, slice(None), rows, columns)
        self.total[here] += sums
        torch.maximum(self.largest[here], tops, out=self.largest[here])
        if tile.allowed is None:
            heights, widths = (torch.tensor(sizes, device=sums.device) for sizes in (down, across))
            self.pairs[here] += heights[:, None] * widths
            return
        pairs = _by_cell(tile.allowed.to(sums.dtype), down, -2, "sum")
        if pairs.shape[1] > self.pairs.shape[1]:
            self.pairs = self.pairs.repeat(1, pairs.shape[1], 1, 1)
        self.pairs[here] += _by_cell(pairs, across, -1, "sum").long()

    def result(self) -> HeatMap:
        return HeatMap(self.total, self.largest, self.pairs.expand(self.total.shape))


def _cut(edges: list[int], first: int, last: int) -> tuple[slice, tuple[int, ...]]:
    """The cells that a span touches, and how much of the span lies in each."""
    one = bisect.bisect_right(edges, first) - 1
    two = bisect.bisect_left(edges, last)
    inside = [first, *edges[one + 1 : two], last]
    return slice(one, two), tuple(map(operator.sub, inside[1:], inside))


def _by_cell(tile: Tensor, sizes: tuple[int, ...], dim: int, how: str) -> Tensor:
    """Sums or maxima over consecutive groups along an axis."""
    if {*sizes} == {1}:
        return tile
    if len({*sizes}) == 1:
        if how == "amax" and dim == -1:  # the same, at a third of the time for a few keys
            return torch.nn.functional.max_pool1d(tile.flatten(0, 1), sizes[0]).view(
                *tile.shape[:-1], -1
            )
        return getattr(tile.unflatten(dim, (len(sizes), -1)), how)(dim)
    parts = tile.split(list(sizes), dim=dim)
    empty = tile.new_zeros(tile.sum(dim).shape) if 0 in sizes else tile
    reduced = [getattr(part, how)(dim) if part.shape[dim] else empty for part in parts]
    return torch.stack(reduced, dim=dim)
