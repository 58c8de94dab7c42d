# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""One tile of scores into what each row carries, as a group of four warps holds them on Hopper."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .forward import fold, peak_key


@gluon.jit
def lanes(tile, KEYS: gl.constexpr):
    """Each of the four threads that share a row adds up what it holds of it, (64, 4)."""
    return gl.sum(gl.sum(tile.reshape([64, KEYS // 8, 4, 2]), 1), 2)


@gluon.jit
def spread(row, lane):
    """A number a row as the sum of four, (64, 4): the first thread has it."""
    row = gl.convert_layout(row, gl.SliceLayout(1, lane.type.layout))[:, None]
    return gl.where(lane == 0, row, 0.0)


@gluon.jit
def fold_plain(
    scores, start, column, m, weight, ex, far, best, place, factor, side, lane,
    ENTROPY: gl.constexpr, DISTANCE: gl.constexpr, PEAK_KEY: gl.constexpr, KEYS: gl.constexpr,
):  # fmt: skip
    """`fold` of a tile that needs no mask; sums stay with the threads till the end, (64, 4)."""
    ROW: gl.constexpr = gl.SliceLayout(1, lane.type.layout)
    top = gl.max(scores, 1)
    higher = gl.maximum(m, top * factor)
    if PEAK_KEY:
        best = peak_key(scores, top, start + column, m, best, factor)
    x = scores * factor - higher[:, None]
    e = gl.exp2(x)
    fade = gl.exp2(m - higher)
    fading = gl.convert_layout(fade, ROW, assert_trivial=True)[:, None]
    total = lanes(e, KEYS)
    if ENTROPY:
        sunk = gl.convert_layout(m - higher, ROW, assert_trivial=True)[:, None]
        ex = fading * (ex + sunk * weight) + lanes(e * x, KEYS)
    if DISTANCE:  # a thread's columns are 2·lane and what is the same for all: so many constants
        same = (column // 8 * 8 + column % 2).to(gl.float32)
        near = lanes(e * same[None, :], KEYS)
        behind = gl.convert_layout(place - start, ROW, assert_trivial=True)[:, None] - 2 * lane
        far = far * fading + side * (behind.to(gl.float32) * total - near)
    return e, fade, higher, weight * fading + total, ex, far, best


@gluon.jit
def fold_careful(
    scores, start, column, m, weight, ex, far, best, place, left, right, length, factor, walk,
    ENTROPY: gl.constexpr, DISTANCE: gl.constexpr, PEAK_KEY: gl.constexpr,
    CROSSES: gl.constexpr,
):  # fmt: skip
    """`fold` of a tile that needs a mask or, where some CROSS it, lies on the diagonal.

    On the diagonal all may be seen, and then a mask would cost as much again as the tile.
    """
    if CROSSES:
        if (start >= walk[1]) & (start < walk[2]):
            e, fade, m, weight, ex, far, best = fold(
                scores, start, column, m, weight, ex, far, best, place, left, right, length,
                factor, 1.0, False, True, ENTROPY, DISTANCE, PEAK_KEY,
            )  # fmt: skip
        else:
            e, fade, m, weight, ex, far, best = fold(
                scores, start, column, m, weight, ex, far, best, place, left, right, length,
                factor, 1.0, True, True, ENTROPY, DISTANCE, PEAK_KEY,
            )  # fmt: skip
    else:
        e, fade, m, weight, ex, far, best = fold(
            scores, start, column, m, weight, ex, far, best, place, left, right, length,
            factor, 1.0, True, True, ENTROPY, DISTANCE, PEAK_KEY,
        )  # fmt: skip
    return e, fade, m, weight, ex, far, best
