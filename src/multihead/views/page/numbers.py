"""Numbers as JSON knows them, and no longer than anybody sees."""

from __future__ import annotations

import math

from torch import Tensor


def number(value: float | int, digits: int) -> float | int | None:
    """JSON knows no NaN and no infinity; and what nobody sees need not be sent.

    >>> number(0.123456, 3), number(float("nan"), 3)
    (0.123, None)
    """
    if isinstance(value, int):
        return value
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def numbers(values: Tensor, digits: int) -> list[float | None]:
    return [number(value, digits) for value in values.tolist()]
