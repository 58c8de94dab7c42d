# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""The backward kernels: gradients of out, lse and the statistics, in one pass each way.

Everything that was told of a row is an expectation, E = Σⱼ p·f, and pulls on its scores by
p·(f − E): f is the value for out, 1 for lse, |i − j| for a distance, whether j is inside for a
mass, and −ln p for the entropy. Their sum is

    dsⱼ = pⱼ · (dO·vⱼ + gH·(−ln pⱼ) + gD·|i − j| + Σ gM·[j inside M] − back)

with one number a row, `back`, for all that is taken back. Rows outer give dq, keys outer dk and dv:
each is one program's, no atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import (
    LN2,
    NEVER,
    NUMBERS,
    capped,
    careful_tiles,
    inside,
    keys_of,
    load_rows,
    lse_of_rows,
    rows_of_keys,
    tile_at,
    where_and_how_long,
)


@triton.jit
def pull(
    raw, dp, ahead, keys, lse2, back, g_entropy, g_distance, masses_at, bands_at, at, every, shown,
    left, right, length, scale, cap,
    CAREFUL: tl.constexpr, CAP: tl.constexpr, ENTROPY: tl.constexpr, DISTANCE: tl.constexpr,
    MASSES: tl.constexpr,
):  # fmt: skip
    """p and ds of a tile; rows lie along either axis, and what is of rows comes spread out so."""
    scores = capped(raw, scale, cap, CAP)
    x = scores * (1.0 if CAP else scale) - lse2
    if CAREFUL:
        x = tl.where(inside(ahead, keys, left, right, length), x, NEVER)
    p = tl.exp2(x)
    dp -= back
    if ENTROPY:
        dp -= g_entropy * tl.where(p > 0, x, 0.0) * LN2
    if DISTANCE:
        dp += g_distance * tl.abs(ahead).to(tl.float32)
    for band in tl.static_range(MASSES):
        grad = tl.load(masses_at + band * every + at, mask=shown, other=0.0)
        its_left, its_right = tl.load(bands_at + 3 * band), tl.load(bands_at + 3 * band + 1)
        within = inside(ahead, keys, its_left, its_right, tl.load(bands_at + 3 * band + 2))
        dp += tl.where(within, grad, 0.0)
    ds = p * dp
    if CAP:  # d/dx c·tanh(x/c) = 1 − tanh²(x/c)
        ds *= 1.0 - (scores / cap) * (scores / cap)
    return p, ds


@triton.jit(do_not_specialize=NUMBERS)
def query_kernel(
    q_at, k_at, v_at, do_at, dq_at, lse_at, back_at, entropy_at, distance_at, masses_at, bands_at,
    lengths_at, offsets_at,
    heads, group, queries, keys, left, right, length, offset, scale, cap, plain_scale,
    CAP: tl.constexpr, LENGTHS: tl.constexpr, OFFSETS: tl.constexpr,
    ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, MASSES: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    program, batch = tl.program_id(0), tl.program_id(1)
    block, head = tl.cdiv(queries, ROWS) - 1 - program // heads, program % heads
    kv_head = head // group
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    rows = block * ROWS + tl.arange(0, ROWS)
    place, shown = (rows + offset)[:, None], (rows < queries)[:, None]
    first = block * ROWS + offset
    last = tl.minimum(block * ROWS + ROWS, queries) - 1 + offset
    every = tl.num_programs(1).to(tl.int64) * heads * queries
    at = ((batch * heads + head).to(tl.int64) * queries + rows)[:, None]
    q = load_rows(q_at, batch, head, block * ROWS, ROWS, DIM)
    do = load_rows(do_at, batch, head, block * ROWS, ROWS, VALUE_DIM)
    lse2, back = lse_of_rows(lse_at, at, shown), tl.load(back_at + at, mask=shown, other=0.0)
    g_entropy, g_distance = 0.0, 0.0
    if ENTROPY:
        g_entropy = tl.load(entropy_at + at, mask=shown, other=0.0)
    if DISTANCE:
        g_distance = tl.load(distance_at + at, mask=shown, other=0.0)
    dq = tl.zeros([ROWS, DIM], tl.float32)
    low, plain_low, plain_high, high = keys_of(first, last, left, right, length, KEYS)
    before, after = careful_tiles(low, plain_low, plain_high, high, KEYS)
    for CAREFUL in tl.static_range(2):
        for tile in tl.range(0, after if CAREFUL else plain_high - plain_low, KEYS):
            start = tile_at(tile, low, plain_low, plain_high, before, CAREFUL)
            k = load_rows(k_at, batch, kv_head, start, KEYS, DIM)
            v = load_rows(v_at, batch, kv_head, start, KEYS, VALUE_DIM)
            here = (start + tl.arange(0, KEYS))[None, :]
            _, ds = pull(
                tl.dot(q, k.T), tl.dot(do, v.T), here - place, here, lse2, back,
                g_entropy, g_distance, masses_at, bands_at, at, every, shown, left, right, length,
                scale, cap, CAREFUL, CAP, ENTROPY, DISTANCE, MASSES,
            )  # fmt: skip
            dq = tl.dot(ds.to(k.dtype), k, dq)
    dq_at.store(
        [batch, head, block * ROWS, 0], (dq * plain_scale).to(q.dtype).reshape(1, 1, ROWS, DIM)
    )


@triton.jit(do_not_specialize=NUMBERS)
def key_kernel(
    q_at, k_at, v_at, do_at, dk_at, dv_at, lse_at, back_at, entropy_at, distance_at, masses_at,
    bands_at, lengths_at, offsets_at,
    heads, group, queries, keys, left, right, length, offset, scale, cap, plain_scale,
    CAP: tl.constexpr, LENGTHS: tl.constexpr, OFFSETS: tl.constexpr,
    ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, MASSES: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    program, batch = tl.program_id(0), tl.program_id(1)
    kv_heads = heads // group
    block, kv_head = program // kv_heads, program % kv_heads
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    first, last = block * KEYS, block * KEYS + KEYS - 1
    here = (first + tl.arange(0, KEYS))[:, None]
    every = tl.num_programs(1).to(tl.int64) * heads * queries
    k = load_rows(k_at, batch, kv_head, first, KEYS, DIM)
    v = load_rows(v_at, batch, kv_head, first, KEYS, VALUE_DIM)
    dk = tl.zeros([KEYS, DIM], tl.float32)
    dv = tl.zeros([KEYS, VALUE_DIM], tl.float32)
    low, plain_low, plain_high, high = rows_of_keys(
        first, last, left, right, length, offset, queries, ROWS
    )
    before, after = careful_tiles(low, plain_low, plain_high, high, ROWS)
    for member in tl.range(0, group):  # every query head that reads this key head
        head = kv_head * group + member
        for CAREFUL in tl.static_range(2):
            for tile in tl.range(0, after if CAREFUL else plain_high - plain_low, ROWS):
                start = tile_at(tile, low, plain_low, plain_high, before, CAREFUL)
                dk, dv = _add_rows(
                    dk, dv, k, v, q_at, do_at, lse_at, back_at, entropy_at, distance_at, masses_at,
                    bands_at, batch, head, heads, start, here, queries, every,
                    left, right, length, offset, scale, cap,
                    CAREFUL, CAP, ENTROPY, DISTANCE, MASSES, ROWS, DIM, VALUE_DIM,
                )  # fmt: skip
    dk = (dk * plain_scale).to(k.dtype)
    dk_at.store([batch, kv_head, first, 0], dk.reshape(1, 1, KEYS, DIM))
    dv_at.store([batch, kv_head, first, 0], dv.to(v.dtype).reshape(1, 1, KEYS, VALUE_DIM))


@triton.jit
def _add_rows(
    dk, dv, k, v, q_at, do_at, lse_at, back_at, entropy_at, distance_at, masses_at,
    bands_at, batch, head, heads, start, here, queries, every,
    left, right, length, offset, scale, cap,
    CAREFUL: tl.constexpr, CAP: tl.constexpr, ENTROPY: tl.constexpr, DISTANCE: tl.constexpr,
    MASSES: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    """What some rows add to the gradients of some keys; keys down, rows across."""
    q = load_rows(q_at, batch, head, start, ROWS, DIM)
    do = load_rows(do_at, batch, head, start, ROWS, VALUE_DIM)
    rows = (start + tl.arange(0, ROWS))[None, :]
    shown = rows < queries
    at = (batch * heads + head).to(tl.int64) * queries + rows
    lse2, back = lse_of_rows(lse_at, at, shown), tl.load(back_at + at, mask=shown, other=0.0)
    g_entropy, g_distance = 0.0, 0.0
    if ENTROPY:
        g_entropy = tl.load(entropy_at + at, mask=shown, other=0.0)
    if DISTANCE:
        g_distance = tl.load(distance_at + at, mask=shown, other=0.0)
    p, ds = pull(
        tl.dot(k, q.T), tl.dot(v, do.T), here - (rows + offset), here, lse2, back,
        g_entropy, g_distance, masses_at, bands_at, at, every, shown, left, right, length,
        scale, cap, CAREFUL, CAP, ENTROPY, DISTANCE, MASSES,
    )  # fmt: skip
    dv = tl.dot(p.to(do.dtype), do, dv)
    dk = tl.dot(ds.to(q.dtype), q, dk)
    return dk, dv
