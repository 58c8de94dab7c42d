# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""The forward kernel: out, lse, and what was asked of every row on the way.

A program takes some rows of one head and walks over the keys of their band, tile by tile. Tiles
that lie in the band whole, to one side of the diagonal, need no mask, and a distance there has one
sign; the few others are looked at with care. It carries for each row

    m  largest score so far   weight  Σ e   ex  Σ e·x   far  Σ e·|i − j|   e = exp2(x), x = s − m

All fade by exp2(m − m′) when m grows. In the end p = e / weight, so that the entropy, in bits, is
log₂ weight − ex / weight (identity 1), and the peak is 1 / weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .masses import mass_inside
from .tile import (
    LN2,
    NEVER,
    NUMBERS,
    capped,
    careful_tiles,
    keys_of,
    load_rows,
    seen,
    up,
    where_and_how_long,
)


@triton.jit
def block_of(program, heads, blocks, ONE_SIDED: tl.constexpr):
    """Which block of rows of which head: those that have most to do come first."""
    if ONE_SIDED:  # the last rows of a causal map
        return blocks - 1 - program // heads, program % heads
    return program % blocks, program // blocks


@triton.jit
def nothing_yet(ROWS: tl.constexpr, VALUE_DIM: tl.constexpr):
    """What a row carries before its first key: out, m, weight, ex, far, best."""
    zeros = tl.zeros([ROWS], tl.float32)
    m, best = tl.full([ROWS], NEVER, tl.float32), tl.full([ROWS], -1, tl.int32)
    return tl.zeros([ROWS, VALUE_DIM], tl.float32), m, zeros, zeros, zeros, best


@triton.jit
def walk_of(first, last, left, right, length, SIDES: tl.constexpr, KEYS: tl.constexpr):
    """low, plain_low, plain_high (see `keys_of`), cross_low, crossing, before, after.

    With SIDES the plain tiles from cross_low on, as many keys as `crossing`, lie on the diagonal:
    a distance there has no one sign, so they go with those that are looked at with care.
    """
    low, plain_low, plain_high, high = keys_of(first, last, left, right, length, KEYS)
    cross_low, crossing = plain_high, plain_high - plain_high
    if SIDES:
        cross_low = tl.minimum(tl.maximum(first, 0) // KEYS * KEYS, plain_high)
        cross_low = tl.maximum(cross_low, plain_low)
        cross_high = tl.minimum(up(tl.maximum(last + 1, 0), KEYS), plain_high)
        crossing = tl.maximum(cross_high, cross_low) - cross_low
    before, after = careful_tiles(low, plain_low, plain_high, high, KEYS)
    return low, plain_low, plain_high, cross_low, crossing, before, after


@triton.jit
def tiles_of_walk(walk, KEYS: tl.constexpr):
    """How many tiles are looked at with care, and how many there are: one at least."""
    plain = (walk[2] - walk[1] - walk[4]) // KEYS
    careful = tl.maximum(tl.cdiv(walk[6] + walk[4], KEYS), 1 - plain)
    return careful, careful + plain


@triton.jit
def start_of(tile, walk, careful, KEYS: tl.constexpr):
    """Where a tile starts, in one order of all: those that are looked at with care come first."""
    low, plain_low, plain_high, cross_low, crossing, before, _ = walk
    reached = tile * KEYS
    at = tl.where(reached >= before, cross_low + reached - before, low + reached)
    at = tl.where(reached >= before + crossing, plain_high + reached - before - crossing, at)
    past = plain_low + (tile - careful) * KEYS
    past = tl.where(past >= cross_low, past + crossing, past)
    return tl.where(tile >= careful, past, at)


@triton.jit
def peak_key(scores, top, keys, m, best, factor):
    """The key with the largest score so far; tiles come in no order: of equal ones the lowest."""
    first = tl.min(tl.where(scores == top[:, None], keys[None, :], 2147483647), 1)
    lower = (top * factor == m) & (first < best)
    return tl.where((top * factor > m) | lower, first, best)


@triton.jit
def fold(
    scores, start, column, m, weight, ex, far, best, place, left, right, length, factor, side,
    MASKED: tl.constexpr, CROSSES: tl.constexpr, ENTROPY: tl.constexpr, DISTANCE: tl.constexpr,
    PEAK_KEY: tl.constexpr,
):  # fmt: skip
    """One tile of scores into what each row carries; e, and by what all before it fades.

    MASKED: some keys may not be seen. `side` is 1 where the tile's keys are behind every row, −1
    where they are ahead; where it CROSSES the diagonal, they are both.
    """
    if MASKED:
        is_seen = seen(start, column, place, left, right, length)
        scores = tl.where(is_seen, scores, float("-inf"))
    top = tl.max(scores, 1)
    higher = tl.maximum(m, top * factor)
    x = scores * factor - higher[:, None]
    if MASKED:
        x = tl.where(is_seen, x, NEVER)
    e = tl.exp2(x)
    fade = tl.exp2(m - higher)
    if PEAK_KEY:
        best = peak_key(scores, top, start + column, m, best, factor)
    row = tl.sum(e, 1)
    if ENTROPY:
        ex = fade * (ex + (m - higher) * weight) + tl.sum(e * x, 1)
    if DISTANCE:
        if CROSSES:
            ahead = column.to(tl.float32)[None, :] - (place - start).to(tl.float32)[:, None]
            far = far * fade + tl.sum(e * tl.abs(ahead), 1)
        else:  # Σ e·(i − j) = (i − start)·Σ e − Σ e·(j − start): no mask, no absolute value
            near = tl.sum(e * column.to(tl.float32)[None, :], 1)
            far = far * fade + side * ((place - start).to(tl.float32) * row - near)
    return e, fade, higher, weight * fade + row, ex, far, best


@triton.jit
def step(
    out, m, weight, ex, far, best,
    q, k_at, v_at, batch, kv_head, start, place, left, right, length, scale, cap, side,
    CAREFUL: tl.constexpr, CAP: tl.constexpr, ENTROPY: tl.constexpr, DISTANCE: tl.constexpr,
    PEAK_KEY: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    """One tile of keys: its scores, folded in, and its values."""
    k = load_rows(k_at, batch, kv_head, start, KEYS, DIM)
    scores = capped(tl.dot(q, k.T), scale, cap, CAP)
    e, fade, m, weight, ex, far, best = fold(
        scores, start, tl.arange(0, KEYS), m, weight, ex, far, best, place, left, right, length,
        1.0 if CAP else scale, side, CAREFUL, CAREFUL, ENTROPY, DISTANCE, PEAK_KEY,
    )  # fmt: skip
    v = load_rows(v_at, batch, kv_head, start, KEYS, VALUE_DIM)
    out = tl.dot(e.to(v.dtype), v, out * fade[:, None])
    return out, m, weight, ex, far, best


@triton.jit
def tell(
    at, written, out, m, weight, ex, far, best, sink,
    lse_at, entropy_at, distance_at, peak_at, peak_key_at,
    SINKS: tl.constexpr, ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, PEAK: tl.constexpr,
    PEAK_KEY: tl.constexpr,
):  # fmt: skip
    """Write what was asked of each row; give back its output and lse (to base 2, 0 if dead)."""
    total, peak = weight, 1.0
    if SINKS:  # one more key, with nothing to say
        sink = tl.where(sink > -NEVER, -NEVER, sink)  # more is NaN
        higher = tl.maximum(m, sink)
        fade = tl.exp2(m - higher)
        ex = fade * (ex + (m - higher) * weight)
        far, out, weight = far * fade, out * fade[:, None], weight * fade
        total, peak = weight + tl.exp2(sink - higher), tl.where(weight == 0, 0.0, fade)
        m = higher
    dead = total == 0
    total = tl.where(dead, 1.0, total)
    share = tl.where(dead, 0.0, 1.0 / total)
    lse2 = tl.where(dead, 0.0, m + tl.log2(total))
    tl.store(lse_at + at, tl.where(dead, float("-inf"), lse2 * LN2), mask=written)
    if ENTROPY:  # rounding may leave it, or the distance, a little below 0; a NaN stays one
        entropy = (weight * tl.log2(total) - ex) * share * LN2
        tl.store(entropy_at + at, tl.where(entropy < 0, 0.0, entropy), mask=written)
    if DISTANCE:
        tl.store(distance_at + at, tl.where(far < 0, 0.0, far * share), mask=written)
    if PEAK:  # rounding may leave it a little above 1; a NaN stays one
        peak = peak * share
        tl.store(peak_at + at, tl.where(peak > 1.0, 1.0, peak), mask=written)
    if PEAK_KEY:
        tl.store(peak_key_at + at, best.to(tl.int64), mask=written)
    return out * share[:, None], lse2


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
    q_at, k_at, v_at, out_at, lse_at, entropy_at, distance_at, peak_at, peak_key_at, masses_at,
    bands_at, sinks_at, lengths_at, offsets_at,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: tl.constexpr, SINKS: tl.constexpr, LENGTHS: tl.constexpr, OFFSETS: tl.constexpr,
    ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, PEAK: tl.constexpr, PEAK_KEY: tl.constexpr,
    MASSES: tl.constexpr, ONE_SIDED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1)
    block, head = block_of(tl.program_id(0), heads, tl.cdiv(queries, ROWS), ONE_SIDED)
    kv_head = head // group
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    rows = block * ROWS + tl.arange(0, ROWS)
    place = rows + offset
    first = block * ROWS + offset
    last = tl.minimum(block * ROWS + ROWS, queries) - 1 + offset
    low, plain_low, plain_high, cross_low, crossing, before, after = walk_of(
        first, last, left, right, length, DISTANCE and not ONE_SIDED, KEYS
    )
    q = load_rows(q_at, batch, head, block * ROWS, ROWS, DIM)
    out, m, weight, ex, far, best = nothing_yet(ROWS, VALUE_DIM)
    for start in tl.range(plain_low, plain_high - crossing, KEYS):
        side, here = 1.0, start
        if DISTANCE and not ONE_SIDED:
            here = tl.where(start >= cross_low, start + crossing, start)
            side = tl.where(start >= cross_low, -1.0, 1.0)
        out, m, weight, ex, far, best = step(
            out, m, weight, ex, far, best, q, k_at, v_at, batch, kv_head, here, place,
            left, right, length, scale, cap, side,
            False, CAP, ENTROPY, DISTANCE, PEAK_KEY, KEYS, DIM, VALUE_DIM,
        )  # fmt: skip
    for tile in tl.range(0, after + crossing, KEYS):
        here = tl.where(tile >= before, cross_low + tile - before, low + tile)
        here = tl.where(tile >= before + crossing, plain_high + tile - before - crossing, here)
        out, m, weight, ex, far, best = step(
            out, m, weight, ex, far, best, q, k_at, v_at, batch, kv_head, here, place,
            left, right, length, scale, cap, 1.0,
            True, CAP, ENTROPY, DISTANCE, PEAK_KEY, KEYS, DIM, VALUE_DIM,
        )  # fmt: skip

    sink = 0.0
    if SINKS:
        sink = tl.load(sinks_at + head).to(tl.float32) / LN2
    at = (batch * heads + head).to(tl.int64) * queries + rows
    out, lse2 = tell(
        at, rows < queries, out, m, weight, ex, far, best, sink,
        lse_at, entropy_at, distance_at, peak_at, peak_key_at,
        SINKS, ENTROPY, DISTANCE, PEAK, PEAK_KEY,
    )  # fmt: skip
    out_at.store([batch, head, block * ROWS, 0], out.to(q.dtype).reshape(1, 1, ROWS, VALUE_DIM))
    for band in tl.static_range(MASSES):
        mass = mass_inside(
            bands_at + 3 * band, q, k_at, batch, kv_head, first, last, place, lse2,
            left, right, length, scale, cap, CAP, ROWS, KEYS, DIM,
        )  # fmt: skip
        into = masses_at + band * tl.num_programs(1).to(tl.int64) * heads * queries
        tl.store(into + at, mass, mask=rows < queries)
