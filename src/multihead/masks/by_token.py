"""Masks of what the tokens are: repetition, and what followed it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .by_data import ById, at, per_row
from .by_place import sort
from .mask import Allowed, Blocks, stand


class same_token(ById):
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

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        ids = per_row(self.ids, key.device)
        place = stand(query, offset)
        mine, known = at(ids, place[:, 0, :, 0])
        return known & (key < place) & (mine == ids[:, None, None, key])

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        return _only_earlier(query_edges, key_edges, offset)

    def reach(self) -> tuple[float, float]:
        return -math.inf, -1


class after_same_token(ById):
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
