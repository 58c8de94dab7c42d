"""Received: what each key gets from a query head. Σᵢ pᵢⱼ, over the rows looked at.

Identity 3: a column is the transposed pass, keys outer and queries inner, given lse.
`received_mean` divides by the number of queries whose mask lets them see the key (0 where none).
`received(by=factor)` weighs each key, by ‖v‖ or ‖v W_O‖ for one (Kobayashi et al. 2020).
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from ..sweep import Tile
from ..view import View
from .expect import per_head
from .statistic import Matrix, Statistic


@dataclasses.dataclass(frozen=True, eq=False)
class Received(Statistic):
    by: Tensor | None = None  # a factor for each key
    name: str | None = None
    per_row = False

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.name or ("received" if self.by is None else "received_by")

    def begin(self, view: View) -> _Received:
        return _Received(view, self.factor(view))

    def factor(self, view: View) -> Tensor | None:
        """What each key is weighed by, (#batch, heads, key, 1)."""
        factor = None if self.by is None else per_head(self.by, view, "received")
        if factor is not None and factor.shape[-1] != 1:
            raise ValueError(
                "received(by) takes one number a key, but "
                f"{factor.shape[-1]} columns came; ask for one at a time."
            )
        return factor

    def dense(self, matrix: Matrix) -> Tensor:
        total = matrix.weights.sum(-2)
        return (
            total if self.by is None else total * per_head(self.by, matrix.view, "received")[..., 0]
        )


class _Received:
    turn = 2

    def __init__(self, view: View, factor: Tensor | None = None) -> None:
        self.total, self.factor = view.empty(view.problem.key.shape[2]), factor

    def add(self, tile: Tile) -> None:
        self.total[tile.batch, :, tile.keys] += tile.column_sums

    def result(self) -> Tensor:
        return self.total if self.factor is None else self.total * self.factor[..., 0]


@dataclasses.dataclass(frozen=True)
class ReceivedMean(Statistic):
    key: str = "received_mean"
    per_row = False

    def begin(self, view: View) -> _ReceivedMean:
        return _ReceivedMean(view)

    def dense(self, matrix: Matrix) -> Tensor:
        return matrix.weights.sum(-2) / matrix.allowed.sum(-2).clamp(min=1)


class _ReceivedMean(_Received):
    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.visible = view.empty(view.problem.key.shape[2])

    def add(self, tile: Tile) -> None:
        super().add(tile)
        here = self.visible[tile.batch, :, tile.keys]
        here += tile.weights.shape[2] if tile.allowed is None else tile.allowed.sum(-2)

    def result(self) -> Tensor:
        return self.total / self.visible.clamp(min=1)
