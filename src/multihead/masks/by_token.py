"""Masks of what the tokens are: repetition, and what followed it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .by_data import Ids, at, integers, per_row, pick, tokens
from .by_place import sort
from .mask import Allowed, Blocks, Mask, frozen, stand


@frozen
class same_token(Mask):
    """A query sees the earlier copies of its own token, never itself.

    >>> print(same_token([7, 4, 7, 4, 4, 9, 7, 4]).draw())
    · · · · · · · ·
    · · · · · · · ·
    ■ · · · · · · ·
    · ■ · · · · · ·
    · ■ · ■ · · · ·
    · · · · · · · ·
    ■ · ■ · · · · ·
    · ■ · ■ ■ · · ·
    """

    ids: Ids

    def __init__(self, ids: Ids | Sequence[int]) -> None:
        object.__setattr__(self, "ids", integers("same_token", ids, ranks=(1, 2)))

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        tokens("same_token", self.ids, batch, keys)

    def carried(self) -> tuple[int | None, int | None]:
        return None, self.ids.shape[-1]

    def row(self, rows: slice) -> Mask:
        return same_token(pick(self.ids, rows) if self.ids.ndim == 2 else self.ids)

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        ids = per_row(self.ids, key.device)
        place = stand(query, offset)
        mine, known = at(ids, place[:, 0, :, 0])
        return known & (key < place) & (mine == ids[:, None, None, key])

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        return _only_earlier(query_edges, key_edges, offset)

    def reach(self) -> tuple[float, float]:
        return -math.inf, -1


@frozen
class after_same_token(Mask):
    """A query sees the keys that follow earlier copies of its token, never itself: induction.

    >>> print(after_same_token([7, 4, 7, 4, 4, 9, 7, 4]).draw())
    · · · · · · · ·
    · · · · · · · ·
    · ■ · · · · · ·
    · · ■ · · · · ·
    · · ■ · · · · ·
    · · · · · · · ·
    · ■ · ■ · · · ·
    · · ■ · ■ ■ · ·
    """

    ids: Ids

    def __init__(self, ids: Ids | Sequence[int]) -> None:
        object.__setattr__(self, "ids", integers("after_same_token", ids, ranks=(1, 2)))

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        tokens("after_same_token", self.ids, batch, keys)

    def carried(self) -> tuple[int | None, int | None]:
        return None, self.ids.shape[-1]

    def row(self, rows: slice) -> Mask:
        return after_same_token(pick(self.ids, rows) if self.ids.ndim == 2 else self.ids)

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        ids = per_row(self.ids, key.device)
        place = stand(query, offset)
        mine, known = at(ids, place[:, 0, :, 0])
        before = ids[:, None, None, (key - 1).clamp(min=0)]
        return known & (key > 0) & (key < place) & (mine == before)

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        return _only_earlier(query_edges, key_edges, offset)

    def reach(self) -> tuple[float, float]:
        return -math.inf, -1


def _only_earlier(query_edges: Tensor, key_edges: Tensor, offset: int | Tensor) -> Blocks:
    """EMPTY where every key stands at or after every query, else PARTIAL: ids decide."""
    last = stand(query_edges[1:] - 1, offset)[:, 0]
    empty = key_edges[:-1] >= last
    return sort(full=torch.zeros_like(empty), empty=empty)
