"""When a head leaves its own history: collapse, and logits that explode.

There is no level that is healthy for every head: some look at one key and do so for good. A head is
held against itself: the median of its own past samples, and how far they usually lie from it (MAD).
It must stay outside for several samples in a row; one odd batch is none of its doing.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any, NamedTuple

from .summary import Record

MEMORY = 64  # samples
ENOUGH = 8  # before which nothing is said
IN_A_ROW = 3
WIDTH = 6 * 1.4826  # six standard deviations, of a normal history


class HeadWarning(UserWarning):
    """A head left its own history."""


class _Kind(NamedTuple):
    name: str
    says: str
    rises: bool
    share: float  # of its usual value, which it must have moved by at least
    least: float  # and by so much in its own unit


JUDGED = {
    "entropy": _Kind("collapse", "its relative entropy fell", False, 1 / 3, 0.0),
    # Scores are logarithms: 3 nats are a weight twenty times as large beside the others.
    "max_score": _Kind("explosion", "its largest score rose", True, 1 / 2, 3.0),
}


class History:
    """The past of every head, by layer and number."""

    def __init__(self) -> None:
        self._past: dict[tuple[str, str, int], _Past] = {}

    def take(self, record: Record) -> list[Record]:
        """Add one sample; the heads that left their history with it."""
        found = []
        for layer, told in enumerate(record["layers"]):
            for key in (key for key in JUDGED if key in told):
                undefined = told.get("undefined", {}).get(key, ())
                for head, value in enumerate(told[key]):
                    if head in undefined:  # no row of it has one: neither well nor ill
                        continue
                    past = self._past.setdefault((told["name"], key, head), _Past(JUDGED[key]))
                    if (left := past.judge(value)) is not None:
                        where = {"layer": layer, "name": told["name"], "head": head}
                        found.append(_warning(record["step"], key, value, left, where))
        return found


class _Left(NamedTuple):
    kind: str
    usual: float | None
    limit: float | None


class _Past:
    def __init__(self, kind: _Kind) -> None:
        self.kind, self.values = kind, deque(maxlen=MEMORY)
        self.outside = 0  # samples in a row
        self.was_no_number = False

    def judge(self, value: float | None) -> _Left | None:
        if value is None:  # not a number: said at once, and once
            told, self.was_no_number = self.was_no_number, True
            return None if told else _Left("not a number", None, None)
        self.was_no_number = False
        limit = self.limit()
        beyond = limit is not None and (value > limit if self.kind.rises else value < limit)
        if not beyond:
            self.outside = 0
            self.values.append(value)
            return None
        self.outside += 1
        if self.outside < IN_A_ROW:
            return None
        left = _Left(self.kind.name, statistics.median(self.values), limit)
        self.values.clear()  # what it does from now on is its history: beside its old one, a head
        self.outside = 0  # that stays where it went would be told of again and again
        return left

    def limit(self) -> float | None:
        """Beyond which it has left: outside its range, and far from its median as well."""
        if len(self.values) < ENOUGH:
            return None
        middle = statistics.median(self.values)
        spread = statistics.median(abs(value - middle) for value in self.values)
        far = max(WIDTH * spread, self.kind.share * abs(middle), self.kind.least)
        if self.kind.rises:
            return max(*self.values, middle + far)
        return min(*self.values, middle - far)


def _warning(
    step: int, key: str, value: float | None, left: _Left, where: dict[str, Any]
) -> Record:
    named = f"layer {where['layer']}, {where['name']}, head {where['head']}"
    if value is None or left.usual is None:
        text = f"{named}: at step {step:,} its {key} is not a number."
    else:
        text = (
            f"{named}, left its own history ({left.kind}): {JUDGED[key].says} to {value:.3g} at "
            f"step {step:,}, from a median of {left.usual:.3g}; {IN_A_ROW} samples in a row."
        )
    rounded = {
        name: None if number is None or not math.isfinite(number) else round(number, 5)
        for name, number in (("value", value), ("usual", left.usual), ("limit", left.limit))
    }
    return {"kind": left.kind, "statistic": key, **where, **rounded, "text": text}
