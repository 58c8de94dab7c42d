"""Mass: the weight that a row puts inside any mask M. Σⱼ p·M, between 0 and 1.

Identity 2: a ratio of two log-sum-exps, exp(lse(mask ∧ M) − lse); so every pattern detector is a
mask. Only the tiles that M touches are looked at. A row that sees nothing has 0.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from ...masks import Mask
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

    def begin(self, view: View) -> RowSum:
        batch, heads = view.problem.query.shape[:2]
        self.mask.check(batch, heads, view.total, view.problem.key.shape[2])
        return super().begin(view)

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
