"""Top: the k largest weights of a row and their keys, largest first; of equal ones the lower key.

A key that is missing is −1 with weight 0: a row that sees fewer than k has as many of these.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from ..sweep import NEVER, Tile
from ..view import View
from .statistic import Matrix, Statistic


class Top(NamedTuple):
    """The largest weights and their keys, (batch, heads, row, k) each."""

    weights: Tensor
    keys: Tensor


@dataclasses.dataclass(frozen=True)
class TopK(Statistic):
    count: int
    name: str | None = None
    per_row = False

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise ValueError(
                f"top(k) takes a whole number from 1 on, but {self.count!r} came; give one."
            )

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.name or f"top({self.count})"

    def begin(self, view: View) -> _Top:
        return _Top(view, self.count)

    def dense(self, matrix: Matrix) -> Top:
        logs = torch.where(matrix.allowed, matrix.scores, -torch.inf)
        values, keys = logs.sort(dim=-1, descending=True, stable=True)
        values, keys = values[..., : self.count], keys[..., : self.count]
        missing = values == -torch.inf
        weights = matrix.weights.gather(-1, keys).masked_fill(missing, 0.0)
        short = self.count - keys.shape[-1]
        pad = torch.nn.functional.pad
        return Top(
            pad(weights, (0, short)), pad(keys.masked_fill(missing, -1), (0, short), value=-1)
        )


class _Top:
    turn = 0

    def __init__(self, view: View, count: int) -> None:
        self.count = count
        self.logs = view.empty(len(view.queries), count, fill=NEVER)
        self.keys = view.empty(len(view.queries), count, fill=-1, dtype=torch.int64)

    def add(self, tile: Tile) -> None:
        logs, order = tile.log2_weights.sort(dim=-1, descending=True, stable=True)
        logs, order = logs[..., : self.count], order[..., : self.count] + tile.keys.start
        # What was found before has lower keys, so a stable sort keeps it first among equals.
        logs = torch.cat([self.logs[tile.here], logs], dim=-1)
        keys = torch.cat([self.keys[tile.here], order], dim=-1)
        logs, order = logs.sort(dim=-1, descending=True, stable=True)
        self.logs[tile.here] = logs[..., : self.count]
        self.keys[tile.here] = keys.gather(-1, order)[..., : self.count]

    def result(self) -> Top:
        missing = self.logs <= NEVER
        return Top(self.logs.exp2().masked_fill(missing, 0.0), self.keys.masked_fill(missing, -1))
