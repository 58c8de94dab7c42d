"""Distance: how far a row looks on average. Σⱼ p·|i − j|, with positions, so with the offset.

Identity 1 with the feature |i − j|, made tile by tile: float32 holds whole numbers up to 2²⁴, so
nothing cancels, and 16,000 tokens are as exact as 16. A row that sees nothing has 0.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from ...masks.mask import stand
from ..sweep import Tile
from .statistic import Expectation, Matrix


@dataclasses.dataclass(frozen=True)
class Distance(Expectation):
    key: str = "distance"

    def feature(self, tile: Tile) -> Tensor:
        dtype = tile.weights.dtype
        place = stand(tile.queries, tile.part.offset).to(dtype)
        return (place - tile.key_indices.to(dtype)).abs_()

    def dense(self, matrix: Matrix) -> Tensor:
        keys = matrix.view.queries.new_tensor(range(matrix.weights.shape[-1]))
        return (matrix.weights * (matrix.place - keys).abs()).sum(-1)
