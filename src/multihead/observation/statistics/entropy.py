"""Entropy: how widely a row looks. H = −Σⱼ p ln p over the real keys, in nats.

Identity 1: the logarithm of the weights is one more feature, H = Σ p·(−ln p). A row that sees
nothing has 0. `effective` = exp H, as many keys as a row would share its weight among evenly.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..sweep import LN2, Tile
from ..view import View
from .statistic import Expectation, Matrix, RowSum


@dataclasses.dataclass(frozen=True)
class Entropy(Expectation):
    key: str = "entropy"

    def feature(self, tile: Tile) -> Tensor:
        return tile.log2_weights  # its sign and base are turned at the end, not at each tile

    def begin(self, view: View) -> RowSum:
        return _Negated(self, view)

    def dense(self, matrix: Matrix) -> Tensor:
        return -torch.special.xlogy(matrix.weights, matrix.weights).sum(-1)


class _Negated(RowSum):
    turn = 1

    def add(self, tile: Tile) -> None:
        self.total[tile.here] += tile.log2_mean

    def result(self) -> Tensor:
        return (-LN2 * self.total).clamp(min=0.0) + 0.0  # rounding may leave it below, or at −0


@dataclasses.dataclass(frozen=True)
class Effective(Entropy):
    key: str = "effective"

    def begin(self, view: View) -> RowSum:
        return _Effective(self, view)

    def dense(self, matrix: Matrix) -> Tensor:
        return torch.where(matrix.lse > -torch.inf, super().dense(matrix).exp(), 0.0)


class _Effective(_Negated):
    def result(self) -> Tensor:
        return (-LN2 * self.total).exp().masked_fill(~self.view.seen, 0.0)
