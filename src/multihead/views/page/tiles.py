"""Tiles of a head's map, at any zoom: identity 4 close by, a pyramid of it far away.

A cell of *factor* f stands for f × f weights, a tile for 256 × 256 cells. Cells lie on multiples of
f tokens, so that four cells of one level are one of the next: a level is made of the one below by
adding sums and keeping the largest. Near the words a tile is exp(s − lse) of its own rows and keys;
beyond that it is cut out of a pyramid that one walk over the map has made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...masks import dense
from ...observation.statistics.heatmap import Heat
from ...observation.sweep import sweep
from ...observation.tiles import posed
from ...observation.view import View
from ...recording import Layer, Recording
from ...recording.layer import of_text

SIDE = 256  # cells of a tile
FEWEST = 64  # cells of the coarsest level
KEPT = 512  # cells at most that a pyramid keeps: finer ones are made when they are asked for
_STRIP = 512  # rows that are looked at together: fewer leave two cores waiting for each other

POOLS = ("largest", "mean", "sum")
BY = ("weight", "norm", "uniform")


@dataclasses.dataclass(frozen=True)
class Map:
    """Which map: of one head in one text, some keys left out.

    By weight; by weight × ‖v W_O‖; or by how many times the weight of a head that looks at all keys
    it may alike.
    """

    layer: int
    head: int
    batch: int = 0
    by: str = "weight"
    hidden: tuple[int, ...] = ()


class Cells(NamedTuple):
    """What is kept of the links in each cell, (row, column) of cells."""

    largest: Tensor
    total: Tensor
    over: Tensor  # what a mean divides by: links (of single ones whether it is one, as a byte), or
    # what they would weigh if all weighed the same

    def shown(self, pool: str, by: str) -> Tensor:
        """One number a cell; NaN where nobody may look."""
        if pool == "largest":
            value = self.largest
        elif pool == "mean" or by == "uniform":  # times what would be there: for a sum too
            value = self.total / self.over
        else:
            value = self.total
        return value.masked_fill(self.over == 0, torch.nan)

    @property
    def top(self) -> float:
        """The largest of single links, which is their mean and their sum as well."""
        return _top(self.largest)

    def tops(self, by: str) -> dict[str, float]:
        """The largest number shown of all cells, for each way of pooling."""
        mean = float((self.total / self.over.clamp(min=1e-30)).nan_to_num_(0.0).max())
        largest, total = (_top(part) for part in (self.largest, self.total))
        return {"largest": largest, "mean": mean, "sum": mean if by == "uniform" else total}

    def coarser(self) -> Cells:
        """Four cells in one."""
        largest, total, over = self
        return Cells(
            _quartered(largest, torch.maximum), _quartered(total, torch.add),
            _quartered(over, torch.add).to(total.dtype),
        )  # fmt: skip


def _top(plane: Tensor) -> float:
    top = float(plane.max())  # of weights that are not numbers the others still have a range
    return float(plane.nan_to_num(0.0).max()) if math.isnan(top) else top


def _quartered(plane: Tensor, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Rows first: they lie together, and leave half for the columns."""
    odd = (plane.shape[0] % 2, plane.shape[1] % 2)
    if any(odd):
        plane = torch.nn.functional.pad(plane, (0, odd[1], 0, odd[0]))
    half = join(plane[0::2], plane[1::2])
    return join(half[:, 0::2], half[:, 1::2])


class Pyramid(NamedTuple):
    """The coarse levels of a map, and the largest number shown at every level."""

    levels: dict[int, Cells]  # by factor
    most: dict[tuple[int, str], float]  # by factor and pool

    @property
    def nbytes(self) -> int:
        return sum(plane.nbytes for level in self.levels.values() for plane in level)


def factors(layer: Layer) -> list[int]:
    """1, 2, 4, … up to the factor at which the map is 64 cells: a small one has few pixels."""
    longest = max(layer.queries, layer.keys)
    return [2**i for i in range(max(1, math.ceil(math.log2(max(1, longest / FEWEST))) + 1))]


def block(
    rec: Recording, which: Map, rows: slice, keys: slice, allowed: Tensor | None = None
) -> Cells:
    """The weights of some rows over some keys, one a cell; `allowed` where it is known."""
    layer = rec.layer(which.layer)
    by = "norm" if which.by == "norm" else "weight"
    weights = rec.weights(which.layer, which.head, rows, keys, by=by, batch=which.batch).float()
    if allowed is None:
        allowed = layer.allowed(which.batch, which.head, rows, keys)
    first = keys.start or 0
    out = [key - first for key in which.hidden if 0 <= key - first < weights.shape[1]]
    if out:
        weights[:, out], allowed[:, out] = 0, False
    if which.by != "uniform":
        return Cells(weights, weights, allowed.view(torch.uint8))
    count = layer.seen(which.batch, which.head)[rows, None].float()
    return Cells(weights * count, weights, allowed / count.clamp(min=1))


def build(rec: Recording, which: Map) -> Pyramid:
    """Walk over the map once, strip by strip, and keep what is coarse enough."""
    layer = rec.layer(which.layer)
    every = factors(layer)
    kept = [f for f in every if max(layer.queries, layer.keys) <= KEPT * f]
    parts: dict[int, list[Cells]] = {f: [] for f in kept}
    most: dict[tuple[int, str], float] = {}
    height = max(_STRIP, every[-1])  # a strip holds whole cells of every level
    for start in range(0, layer.queries, height):
        rows = slice(start, min(start + height, layer.queries))
        allowed = layer.allowed(which.batch, which.head, rows)
        allowed = allowed[:, : _last(allowed)]
        cells = block(rec, which, rows, slice(0, allowed.shape[1]), allowed)
        for factor in every:
            if factor > 1:
                cells = cells.coarser()
            tops = cells.tops(which.by) if factor > 1 else dict.fromkeys(POOLS, cells.top)
            for pool, top in tops.items():
                most[factor, pool] = max(top, most.get((factor, pool), 0.0))
            if factor in parts:
                parts[factor].append(_widened(cells, -(-layer.keys // factor)))
    joined = {
        f: Cells(*(torch.cat(planes) for planes in zip(*some, strict=True)))
        for f, some in parts.items()
    }
    return Pyramid(joined, most)


def _last(allowed: Tensor) -> int:
    """Up to which key some of the rows may look: beyond it there is nothing to work out."""
    if allowed[-1, -1]:
        return allowed.shape[1]
    keys = allowed.view(torch.uint8).amax(0).nonzero()  # at a tenth of the time of any()
    return int(keys[-1]) + 1 if len(keys) else 1


def _widened(cells: Cells, columns: int) -> Cells:
    more = columns - cells.total.shape[1]
    return Cells(*(torch.nn.functional.pad(plane, (0, more)) for plane in cells)) if more else cells


def tile(rec: Recording, which: Map, factor: int, row: int, column: int) -> Cells | None:
    """The cells of a tile that is too fine for the pyramid; None where the pyramid has it."""
    layer = rec.layer(which.layer)
    if max(layer.queries, layer.keys) <= KEPT * factor and factor > 1:
        return None
    span = SIDE * factor
    rows = slice(row * span, min((row + 1) * span, layer.queries))
    keys = slice(column * span, min((column + 1) * span, layer.keys))
    cells = block(rec, which, rows, keys)
    for _ in range(factor.bit_length() - 1):
        cells = cells.coarser()
    return cells


def pooled_layer(
    rec: Recording, layer: Layer, batch: int, factor: int, hidden: list[tuple[int, ...]]
) -> Tensor:
    """The largest weight of each cell, some keys of each head left out, (head, row, column).

    One sweep for the layer: as exact as a pyramid, and many heads for the time of one.
    """
    kept = torch.ones(1, layer.heads, 1, layer.keys, dtype=torch.bool)
    for head, keys in enumerate(hidden):
        kept[0, head, 0, list(keys)] = False
    cells, gatherer, first = -(-max(layer.queries, layer.keys) // factor), None, 0
    for i, chunk in enumerate(layer.chunks):
        query, key = (part[batch : batch + 1] for part in layer.qk(i))
        asked, left = of_text(layer.asked(i), batch), dense(kept[..., : chunk.keys])
        asked["mask"] = left if asked["mask"] is None else asked["mask"] & left
        lse = layer.tensors[f"{i}.lse"][batch : batch + 1]
        view = View(posed(query, key, asked), lse, torch.arange(chunk.rows), chunk.rows)
        gatherer = gatherer or Heat(cells).begin(view)
        gatherer.spread(first, chunk.rows, cells * factor, cells * factor)
        with torch.no_grad():
            sweep(view, [gatherer])
        first += chunk.rows
    assert gatherer is not None
    found = gatherer.result()
    largest = found.largest.masked_fill(found.pairs == 0, torch.nan)[0]
    return largest[:, : -(-layer.queries // factor), : -(-layer.keys // factor)]


def cut_out(pyramid: Pyramid, factor: int, row: int, column: int) -> Cells:
    level = pyramid.levels[factor]
    here = (slice(row * SIDE, (row + 1) * SIDE), slice(column * SIDE, (column + 1) * SIDE))
    return Cells(*(plane[here] for plane in level))
