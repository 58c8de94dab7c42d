"""What a statistic is: a small value with a name, that can be set to work on a view."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ...masks import Mask
from ..sweep import Gatherer, Tile
from ..view import View


class Statistic:
    """One thing to know of every head.

    A file a statistic: its definition, the identity that gives it, its value on rows that see
    nothing, its tolerance, and (for the tests alone) its formula on the whole matrix.
    """

    key: str
    # Of the result, relative to the largest it can be, and 4·2⁻²³ for each unit of the largest
    # score more, as everywhere (a float32 score of 1,000 is good to 6e-5). For bfloat16 and float16
    # ten times this, because PyTorch's CPU kernel gives their lse to within 6e-5.
    tolerance: float = 1e-5
    per_row = True  # whether it has one value a query row, so that a mean over rows makes sense

    def needs(self) -> Mask | None:
        """The part of the map it must see; None for all of it."""
        return None

    def at_once(self, view: View) -> Tensor | None:
        """Its values where they need no sweep; None where they do."""
        return None

    def begin(self, view: View) -> Gatherer:
        """Set to work: what it gathers tile by tile."""
        raise NotImplementedError

    def dense(self, matrix: Matrix) -> Tensor | tuple[Tensor, ...]:
        """Its formula on the whole matrix, in float64."""
        raise NotImplementedError


class Matrix(NamedTuple):
    """The whole map of some rows, for tests: weights, scores, who may see whom, places, values."""

    weights: Tensor  # (batch, heads, row, key), 0 where forbidden
    scores: Tensor  # −inf where forbidden
    allowed: Tensor  # (batch, heads, row, key)
    lse: Tensor  # (batch, heads, row)
    place: Tensor  # where each row stands, (batch, 1, row, 1)
    view: View


class RowSum:
    """A gatherer of Σⱼ p·f: an expectation is a value column (identity 1)."""

    turn = 2

    def __init__(self, statistic: Expectation, view: View) -> None:
        self.statistic, self.view = statistic, view
        self.total = view.empty(len(view.queries))

    def add(self, tile: Tile) -> None:
        self.total[tile.here] += tile.expect(self.statistic.feature(tile))

    def result(self) -> Tensor:
        return self.total


class Expectation(Statistic):
    """A statistic Σⱼ p·f, with f what `feature` says of a tile; differentiable."""

    def feature(self, tile: Tile) -> Tensor:
        """f over the tile, broadcastable to (batch, heads, query, key)."""
        raise NotImplementedError

    def begin(self, view: View) -> RowSum:
        return RowSum(self, view)
