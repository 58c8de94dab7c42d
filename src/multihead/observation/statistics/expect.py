"""Expectations: Σⱼ p·f(j) for any feature of the keys; `value_norm` is one, with f = ‖v‖.

Identity 1. A feature has one number a key, (keys,), (batch, keys) or (batch, kv_heads, keys), or
several columns of them, (…, keys, columns). A row that sees nothing has 0.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..sweep import Tile
from ..view import View
from .statistic import Matrix, Statistic


def per_head(feature: Tensor, view: View, who: str) -> Tensor:
    """A feature of the keys for each query head, (#batch, #heads, keys, columns)."""
    return _columns(feature, view, who)[0]


def _columns(feature: Tensor, view: View, who: str) -> tuple[Tensor, bool]:
    """The same, and whether it came with columns of its own."""
    p = view.problem
    batch, heads, kv_heads, keys = (*p.query.shape[:2], *p.key.shape[1:3])
    if not isinstance(feature, Tensor) or not feature.is_floating_point():
        raise ValueError(
            f"{who} takes a floating-point tensor of features; convert it with .float()."
        )
    shape = tuple(feature.shape)
    fits = [(keys,), (batch, keys), (1, keys), (batch, kv_heads, keys), (batch, heads, keys)]
    fits += [(1, kv_heads, keys), (1, heads, keys)]
    columns = shape not in fits
    if not columns:
        feature, shape = feature[..., None], (*shape, 1)
    if shape[:-1] not in fits:
        raise ValueError(
            f"{who} takes one number or column a key; the shape does not fit.\n"
            f"  came {shape}  expected (…, {keys}) or (…, {keys}, columns), … of batch {batch} and "
            f"{kv_heads} or {heads} heads"
        )
    if feature.ndim == 2:
        feature = feature[None, None]
    elif feature.ndim == 3:
        feature = feature[:, None]
    if feature.shape[1] == kv_heads != heads:
        feature = feature.repeat_interleave(p.group, dim=1)
    return feature.to(view.lse), columns


@dataclasses.dataclass(frozen=True, eq=False)
class Expect(Statistic):
    """`expect(f)`: the mean of a feature of the keys, as each row weighs them."""

    of: Tensor
    name: str = "expect"

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.name

    def features(self, view: View) -> Tensor:
        return per_head(self.of, view, self.name)

    def begin(self, view: View) -> _Expect:
        features = self.features(view)
        return _Expect(view, features, columns=self._has_columns(view))

    def _has_columns(self, view: View) -> bool:
        return _columns(self.of, view, self.name)[1]

    def dense(self, matrix: Matrix) -> Tensor:
        features = self.features(matrix.view).double().expand(*matrix.weights.shape[:2], -1, -1)
        found = matrix.weights @ features
        return found if self._has_columns(matrix.view) else found[..., 0]


class _Expect:
    turn = 2

    def __init__(self, view: View, features: Tensor, columns: bool) -> None:
        self.features, self.columns = features, columns
        self.total = view.empty(len(view.queries), features.shape[-1])

    def add(self, tile: Tile) -> None:
        features = self.features[:, :, tile.keys]
        features = features if features.shape[0] == 1 else features[tile.batch]
        if features.shape[-1] == 1:
            found = tile.expect(features.mT)[..., None]
        else:
            found = tile.weights @ features
        self.total[tile.here] += found

    def result(self) -> Tensor:
        return self.total if self.columns else self.total[..., 0]


@dataclasses.dataclass(frozen=True, eq=False)
class ValueNorm(Expect):
    """`value_norm`: Σⱼ p·‖v‖, what a row moves at most; most of what a sink gets moves nothing."""

    of: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    name: str = "value_norm"

    def features(self, view: View) -> Tensor:
        value = view.problem.value.detach().to(view.lse.dtype)
        return value.norm(dim=-1).repeat_interleave(view.problem.group, dim=1)[..., None]

    def _has_columns(self, view: View) -> bool:
        return False
