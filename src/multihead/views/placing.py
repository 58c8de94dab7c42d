"""Where labels stand beside their dots: near, and on no other dot or label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DOT = 4.5  # points that a dot and the air around it reach
GAPS = (3.0, 8.0, 14.0, 22.0, 32.0, 44.0, 58.0, 74.0, 92.0, 112.0)  # between a dot and its label
TURNS = np.linspace(0.0, 2.0 * np.pi, 16, endpoint=False) + np.pi / 8  # up to the right first

ALONG = np.linspace(0.1, 0.8, 8)  # places on the line from a dot to its label
LINE = np.full(2, 0.5)  # half of what the line takes there


def stands_off(shift: tuple[float, float], size: tuple[float, float]) -> bool:
    """Whether a label is so far from its dot that a line must lead there."""
    gap = np.maximum(np.abs(shift) - np.array(size) / 2, 0.0)
    return bool(np.hypot(*gap) > DOT + GAPS[0] + 1.0)


def place(
    labels: Sequence[tuple[float, float]],
    owners: Sequence[int],
    dots: np.ndarray,
    room: tuple[float, float],
) -> list[tuple[float, float]]:
    """Where the middle of each label goes, seen from its dot, in points.

    `labels` are widths and heights, `owners` which dot each belongs to, and `room` the size of the
    plane, (0, 0) its lower left. Greedy: each label takes the first free place, nearest first;
    where none is free, the one that covers least.

    >>> dots = np.array([[50.0, 50.0], [60.0, 54.0]])
    >>> [(round(x), round(y)) for x, y in place([(20, 10)], [0], dots, (100, 100))]
    [(-7, 12)]
    """
    taken: list[tuple[np.ndarray, np.ndarray]] = []  # middles and halves of what stands already
    found = []
    for (width, height), owner in zip(labels, owners, strict=True):
        half = np.array([width, height]) / 2
        best, least = np.zeros(2), np.inf
        for gap in GAPS:
            for turn in TURNS:
                shift = np.array([np.cos(turn), np.sin(turn)]) * (half + DOT + gap)
                covers = _covered(dots[owner] + shift, half, dots, taken, room)
                covers += 3.0 * sum(_meet(dots[owner] + shift * t, LINE, taken) for t in ALONG)
                if covers < least:
                    best, least = shift, covers
            if least == 0:
                break
        found.append((float(best[0]), float(best[1])))
        taken.append((dots[owner] + best, half))
        # The line from the dot to its label is in the way of later ones, too.
        taken += [(dots[owner] + best * t, LINE) for t in ALONG]
    return found


def _covered(
    middle: np.ndarray,
    half: np.ndarray,
    dots: np.ndarray,
    taken: Sequence[tuple[np.ndarray, np.ndarray]],
    room: tuple[float, float],
) -> float:
    """How much a label would cover there; what leads out of the room counts as much as a crowd."""
    on_dots = (np.abs(dots - middle) < half + DOT).all(-1).sum()
    on_others = _meet(middle, half, taken)
    outside = bool((middle - half < 0).any() or (middle + half > np.array(room)).any())
    return float(on_dots) + 3.0 * on_others + 1000.0 * outside


def _meet(
    middle: np.ndarray, half: np.ndarray, taken: Sequence[tuple[np.ndarray, np.ndarray]]
) -> int:
    """How many of what stands already a box meets."""
    return sum(bool((np.abs(m - middle) < half + h).all()) for m, h in taken)
