"""Peak: the largest weight of a row, the key that gets it, and the score behind it.

`peak` = max p. `peak_key` is that key, the lowest where several tie. `max_score` = max s, which
is lse + ln peak. A row that sees nothing has 0, key −1, and 0.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..sweep import LN2, NEVER, Tile
from ..view import View
from .statistic import Matrix, Statistic


@dataclasses.dataclass(frozen=True)
class Peak(Statistic):
    key: str = "peak"

    def begin(self, view: View) -> _Peak:
        return _Peak(view)

    def dense(self, matrix: Matrix) -> Tensor:
        return matrix.weights.amax(-1)


class _Peak:
    turn = 2

    def __init__(self, view: View) -> None:
        self.top = view.empty(len(view.queries))

    def add(self, tile: Tile) -> None:
        here = self.top[tile.here]
        torch.maximum(here, tile.largest, out=here)

    def result(self) -> Tensor:
        return self.top.clamp(max=1.0)  # rounding may leave it a little above


@dataclasses.dataclass(frozen=True)
class PeakKey(Statistic):
    key: str = "peak_key"
    per_row: bool = False  # a mean of keys says nothing

    def begin(self, view: View) -> _PeakKey:
        return _PeakKey(view)

    def dense(self, matrix: Matrix) -> Tensor:
        top = matrix.scores.amax(-1, keepdim=True)
        return torch.where(top == -torch.inf, -1, matrix.scores.eq(top).int().argmax(-1, True))[
            ..., 0
        ]


class _PeakKey:
    turn = 0

    def __init__(self, view: View) -> None:
        self.view = view
        self.top = view.empty(len(view.queries), fill=2 * NEVER)
        self.best = view.empty(len(view.queries), fill=-1, dtype=torch.int64)

    def add(self, tile: Tile) -> None:
        top = tile.log2_weights.amax(-1)
        last = tile.keys.stop  # beyond every key of the tile
        first = torch.where(tile.log2_weights == top[..., None], tile.key_indices, last).amin(-1)
        better = top > self.top[tile.here]  # an equal one further on does not count: lowest first
        self.best[tile.here] = torch.where(better, first, self.best[tile.here])
        self.top[tile.here] = torch.where(better, top, self.top[tile.here])

    def result(self) -> Tensor:
        return self.best.masked_fill(~self.view.seen | (self.top <= NEVER), -1)


@dataclasses.dataclass(frozen=True)
class MaxScore(Statistic):
    key: str = "max_score"

    def begin(self, view: View) -> _MaxScore:
        return _MaxScore(view)

    def dense(self, matrix: Matrix) -> Tensor:
        top = matrix.scores.amax(-1)
        return torch.where(top == -torch.inf, 0.0, top)


class _MaxScore:
    turn = 0

    def __init__(self, view: View) -> None:
        self.view = view
        self.top = view.empty(len(view.queries), fill=2 * NEVER)

    def add(self, tile: Tile) -> None:
        here = self.top[tile.here]
        torch.maximum(here, tile.log2_weights.amax(-1), out=here)

    def result(self) -> Tensor:
        lse = self.view.lse
        lse = lse.masked_fill(~self.view.seen, 0.0)
        return torch.where(self.top <= NEVER, 0.0, self.top * LN2 + lse)
