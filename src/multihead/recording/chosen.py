"""Which heads of which layers: pairs of numbers, as they are given and as they come by."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from .watch import Place

Heads = Iterable[tuple[int | str, int]]


class Chosen:
    """Which heads of which layers were asked for, and which of them came by."""

    def __init__(self, heads: Heads) -> None:
        self.by_layer: dict[int | str, list[int]] = {}
        for layer, head in _pairs(heads):
            self.by_layer.setdefault(layer, []).append(head)
        self._met: set[int | str] = set()

    def of(self, place: Place, count: int) -> list[int]:
        """The heads chosen in this layer, which has `count`."""
        asked = [name for name in (place.index, place.name) if name in self.by_layer]
        heads = sorted({head for name in asked for head in self.by_layer[name]})
        self._met |= {*asked}
        for head in heads:
            if not 0 <= head < count:
                raise ValueError(
                    f"layer {place.index}, {place.name}, has heads 0 to {count - 1}, "
                    f"but head {head} was asked for; choose one of those."
                )
        return heads

    def check_met(self) -> None:
        missed = [layer for layer in self.by_layer if layer not in self._met]
        if missed:
            raise ValueError(
                f"no layer {missed[0]!r} was called, so its heads were left as they are; layers "
                "are counted in order of first call, or named by their path: see rec.layers."
            )


def _pairs(heads: Any) -> list[tuple[int | str, int]]:
    """Layer and head of each that was asked for: one pair, or several, or the rows of a table."""
    given = heads.tolist() if hasattr(heads, "tolist") else heads  # an array's rows, or a tensor's
    if isinstance(given, tuple) and (one := _pair(given)) is not None:
        return [one]
    many = isinstance(given, Iterable) and not isinstance(given, str)
    found = []
    for some in given if many else [given]:
        if (pair := _pair(some)) is None:
            raise ValueError(
                f"heads are pairs of layer and head, but {some!r} came; give [(18, 6)], say."
            )
        found.append(pair)
    return found


def _pair(given: object) -> tuple[int | str, int] | None:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        return None
    layer, head = given[0] if isinstance(given[0], str) else whole(given[0]), whole(given[1])
    return None if layer is None or head is None else (layer, head)


def whole(given: Any) -> int | None:
    """A whole number, NumPy's too, but no True or False; None for what is none."""
    if isinstance(given, bool):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None
