"""Masks of position: they look at where query and key stand, and carry no data."""

from __future__ import annotations

import math

import torch
from jaxtyping import Int8
from torch import Tensor

from .mask import EMPTY, FULL, PARTIAL, Allowed, Blocks, Mask, frozen, stand


@frozen
class causal(Mask):
    """A query sees the keys up to where it stands: key ≤ query + offset.

    >>> print(causal().draw())                    # 8 queries, 8 keys
    ■ · · · · · · ·
    ■ ■ · · · · · ·
    ■ ■ ■ · · · · ·
    ■ ■ ■ ■ · · · ·
    ■ ■ ■ ■ ■ · · ·
    ■ ■ ■ ■ ■ ■ · ·
    ■ ■ ■ ■ ■ ■ ■ ·
    ■ ■ ■ ■ ■ ■ ■ ■
    >>> print(causal().draw(queries=3))           # the queries are the last positions
    ■ ■ ■ ■ ■ ■ · ·
    ■ ■ ■ ■ ■ ■ ■ ·
    ■ ■ ■ ■ ■ ■ ■ ■
    """

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        return key <= stand(query, offset)

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        nearest, farthest = _ahead(query_edges, key_edges, offset)
        return sort(full=farthest <= 0, empty=nearest > 0)

    def reach(self) -> tuple[float, float]:
        return -math.inf, 0

    def relative(self) -> bool:
        return True


@frozen
class window(Mask):
    """A query sees fewer than `size` steps either way; with causal, `size` keys, itself included.

    >>> print(window(2).draw())
    ■ ■ · · · · · ·
    ■ ■ ■ · · · · ·
    · ■ ■ ■ · · · ·
    · · ■ ■ ■ · · ·
    · · · ■ ■ ■ · ·
    · · · · ■ ■ ■ ·
    · · · · · ■ ■ ■
    · · · · · · ■ ■
    """

    size: int

    def __post_init__(self) -> None:
        _whole("window", "size", self.size, at_least=1)

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        return (key - stand(query, offset)).abs() < self.size

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        nearest, farthest = _ahead(query_edges, key_edges, offset)
        inside = (nearest > -self.size) & (farthest < self.size)
        return sort(full=inside, empty=(nearest >= self.size) | (farthest <= -self.size))

    def reach(self) -> tuple[float, float]:
        return 1 - self.size, self.size - 1

    def relative(self) -> bool:
        return True


@frozen
class offset(Mask):
    """A query sees the one key `distance` away from it: `offset(-1)` is the previous token.

    >>> print(offset(-1).draw())
    · · · · · · · ·
    ■ · · · · · · ·
    · ■ · · · · · ·
    · · ■ · · · · ·
    · · · ■ · · · ·
    · · · · ■ · · ·
    · · · · · ■ · ·
    · · · · · · ■ ·
    """

    distance: int

    def __post_init__(self) -> None:
        _whole("offset", "distance", self.distance)

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        return key - stand(query, offset) == self.distance

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        nearest, farthest = _ahead(query_edges, key_edges, offset)
        on_it = (nearest == self.distance) & (farthest == self.distance)
        return sort(full=on_it, empty=(nearest > self.distance) | (farthest < self.distance))

    def reach(self) -> tuple[float, float]:
        return self.distance, self.distance

    def relative(self) -> bool:
        return True


@frozen
class prefix(Mask):
    """Every query sees the first `size` keys.

    >>> print(prefix(2).draw(queries=3))
    ■ ■ · · · · · ·
    ■ ■ · · · · · ·
    ■ ■ · · · · · ·
    """

    size: int

    def __post_init__(self) -> None:
        _whole("prefix", "size", self.size, at_least=0)

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        return (key < self.size)[None, None, None, :]

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        first, last = key_edges[None, None, :-1], key_edges[None, None, 1:] - 1
        return sort(full=last < self.size, empty=first >= self.size)


def sort(*, full: Tensor, empty: Tensor) -> Int8[Tensor, "..."]:
    """Block answers from where they are known to be full and known to be empty."""
    return torch.where(full, FULL, torch.where(empty, EMPTY, PARTIAL)).to(torch.int8)


def _ahead(query_edges: Tensor, key_edges: Tensor, offset: int | Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest of key − query over each block, (batch | 1, queries, keys)."""
    first, last = stand(query_edges[:-1], offset)[:, 0], stand(query_edges[1:] - 1, offset)[:, 0]
    return key_edges[:-1] - last, key_edges[1:] - 1 - first


def _whole(mask: str, name: str, value: int, at_least: int = -(2**40)) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{mask}({name}) takes a whole number, but {value!r} came; give an int.")
    if not at_least <= value <= 2**40:  # beyond, positions would overflow
        raise ValueError(
            f"{mask}({name}) must be at least {at_least} and at most 2**40, but {value} came; "
            "give a number of tokens."
        )
