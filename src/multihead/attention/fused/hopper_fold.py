# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""One tile of scores into what each row carries, as a group of four warps holds them on Hopper.

A row lies with four threads, each with two of every eight keys: a tile is seen as (row, eight keys,
thread, 2). What a key's place is compared and multiplied with is then a constant and a number of
the thread, and sums stay with the threads, (row, 4), until the last tile.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .forward import peak_key
from .tile import NEVER

NAN_TOO = gl.constexpr(tl.PropagateNan.ALL)


@gluon.jit
def by_thread(tile):
    """(row, key) as (row, eight keys, thread, 2)."""
    return tile.reshape([tile.shape[0], tile.shape[1] // 8, 4, 2])


@gluon.jit
def lanes(tile):
    """Each of the four threads that share a row adds up what it holds of it, (row, 4)."""
    return gl.sum(gl.sum(tile, 1), 2)


@gluon.jit
def _largest(scores):
    """Of each row. Each thread compares its numbers in two chains, which wait for less."""
    top = gl.max(gl.max(gl.max(by_thread(scores), 1), 2), 1)
    return gl.convert_layout(top, gl.SliceLayout(1, scores.type.layout), assert_trivial=True)


@gluon.jit
def _columns(tile):
    """Those of a row's first thread, (1, eight keys, 1, 2): constants."""
    TILE: gl.constexpr = tile.type.layout
    EIGHT: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, TILE)))
    OWN: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, TILE)))
    eight = gl.arange(0, tile.shape[1], EIGHT)[None, :, None, None]
    return 8 * eight + gl.arange(0, 2, OWN)[None, None, None, :]


@gluon.jit
def _of_rows(tile, row):
    """A number a row, (row, 1, 1, 1)."""
    TILE: gl.constexpr = tile.type.layout
    ROW: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, TILE)))
    return gl.convert_layout(row, ROW)[:, None, None, None]


@gluon.jit
def _of_threads(tile, place):
    """A place in a tile, one a row, counted from each thread's own columns, (row, 1, 4, 1)."""
    TILE: gl.constexpr = tile.type.layout
    THREAD: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, TILE)))
    return _of_rows(tile, place) - 2 * gl.arange(0, 4, THREAD)[None, None, :, None]


@gluon.jit
def seen_by_thread(tile, start, place, left, right, length, UNBOUNDED: gl.constexpr):
    """`seen` of a tile, one comparison a key; UNBOUNDED: none lies too far behind."""
    last = gl.minimum(place + right, length - 1)
    if UNBOUNDED:
        return _columns(tile) <= _of_threads(tile, last - start)
    low = gl.maximum(place - left, 0)  # how far past it a key lies says all
    span = last - low
    low = gl.where(span < 0, -1, low - start)  # past it by 1 or more, which no span reaches
    past = _columns(tile) - _of_threads(tile, low)
    span = _of_rows(tile, gl.maximum(span, 0).to(gl.uint32, bitcast=True))
    return past.to(gl.uint32, bitcast=True) <= span


@gluon.jit
def fold(
    scores, start, column, m, weight, ex, far, best, place, left, right, length, factor, side,
    MASKED: gl.constexpr, CROSSES: gl.constexpr, UNBOUNDED: gl.constexpr,
    ENTROPY: gl.constexpr, DISTANCE: gl.constexpr, PEAK_KEY: gl.constexpr,
):  # fmt: skip
    """As `forward.fold`, where sums are (row, 4); e, and by what all before it fades."""
    SCORES: gl.constexpr = scores.type.layout
    LANES: gl.constexpr = weight.type.layout
    ROW: gl.constexpr = gl.SliceLayout(1, LANES)
    if MASKED:
        tile = by_thread(scores)
        is_seen = seen_by_thread(tile, start, place, left, right, length, UNBOUNDED)
        tile = gl.where(is_seen, tile, float("-inf")).reshape(scores.shape)
        scores = gl.convert_layout(tile, SCORES, assert_trivial=True)
    top = _largest(scores)
    higher = gl.maximum(m, top * factor)
    if PEAK_KEY:
        best = peak_key(scores, top, start + column, m, best, factor)
    x = scores * factor - higher[:, None]
    if MASKED and ENTROPY:  # 0 · −∞ would be NaN; and a NaN that came stays one
        x = gl.maximum(x, NEVER, propagate_nan=NAN_TOO)
    e = gl.exp2(x)
    tile = by_thread(e)
    fade = gl.exp2(m - higher)
    fading = gl.convert_layout(fade, ROW, assert_trivial=True)[:, None]
    total = lanes(tile)
    if ENTROPY:
        sunk = gl.convert_layout(m - higher, ROW, assert_trivial=True)[:, None]
        ex = fading * (ex + sunk * weight) + lanes(by_thread(e * x))
    if DISTANCE:
        same = _columns(tile).to(gl.float32)
        if CROSSES:
            behind = _of_threads(tile, place - start).to(gl.float32)
            far = far * fading + lanes(tile * gl.abs(behind - same))
        else:  # Σ e·(i − j): no absolute value
            behind = gl.convert_layout(place - start, ROW, assert_trivial=True)[:, None]
            behind = behind - 2 * gl.arange(0, 4, gl.SliceLayout(0, LANES))[None, :]
            far = far * fading + side * (behind.to(gl.float32) * total - lanes(tile * same))
    return e, fade, higher, weight * fading + total, ex, far, best


@gluon.jit
def packed(e, dtype: gl.constexpr, PAIRS: gl.constexpr):
    """Weights as the loop carries them: as they are or, for want of registers, neighbours in PAIRS.

    A pair is a number of 32 bits: halves by themselves would be unpacked and packed in each turn.
    """
    if PAIRS:
        low, high = gl.split(e.reshape([e.shape[0], e.shape[1] // 2, 2]))
        AS: gl.constexpr = "bf16x2" if dtype == gl.bfloat16 else "f16x2"
        PACK: gl.constexpr = "cvt.rn." + AS + ".f32 $0, $2, $1;"
        return gl.inline_asm_elementwise(
            PACK, "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
        )
    else:  # a compiler reads on after a return
        return e


@gluon.jit
def halved(e, dtype: gl.constexpr, WEIGHTS: gl.constexpr, PAIRS: gl.constexpr):
    """And as the tensor cores take them."""
    if PAIRS:
        low, high = gl.inline_asm_elementwise(
            "mov.b32 {$0, $1}, $2;",
            "=h,=h,r",
            [e],
            dtype=(gl.int16, gl.int16),
            is_pure=True,
            pack=1,
        )
        whole = gl.join(low, high).reshape([e.shape[0], 2 * e.shape[1]])
        return gl.convert_layout(whole.to(dtype, bitcast=True), WEIGHTS, assert_trivial=True)
    else:
        return gl.convert_layout(e.to(dtype), WEIGHTS)
