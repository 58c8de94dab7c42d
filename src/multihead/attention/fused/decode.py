# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""Decoding: a few queries over many keys, so that the keys are shared out among programs.

All query heads of a group and all their queries are the rows of one tile, or of a few; a program
walks over its share of the keys for one of them and writes what it carries. A second kernel merges
the shares by their largest scores, the way any two parts of a row merge, and tells what the forward
kernel tells. Where a GPU can (EARLY), it is set up while the first is at work, and waits for it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .forward import nothing_yet, step, tell
from .tile import LN2, NEVER, NUMBERS, where_and_how_long


@triton.jit(do_not_specialize=[*NUMBERS, "first", "shares", "per_share"])
def share_kernel(
    q_at, k_at, v_at, out_at, carried_at, best_at, lengths_at, offsets_at,
    q_batch, q_head, q_row, dim, value_dim, first, shares, per_share,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: tl.constexpr, LENGTHS: tl.constexpr, OFFSETS: tl.constexpr,
    ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, PEAK_KEY: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        gdc_launch_dependents()
    share, block = tl.program_id(0) % shares, tl.program_id(0) // shares
    kv_head, batch = tl.program_id(1), tl.program_id(2)
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    row = block * ROWS + tl.arange(0, ROWS)
    head, query = kv_head * group + row // queries, row % queries
    real = row < group * queries
    column = tl.arange(0, DIM)
    into = q_at + batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    q = tl.load(
        (into + query.to(tl.int64) * q_row)[:, None] + column[None, :],
        mask=real[:, None] & (column < dim)[None, :], other=0.0,
    )  # fmt: skip
    place = query + offset
    begin = first + share * per_share
    low = tl.maximum(tl.maximum(offset - left, 0) // KEYS * KEYS, begin)
    high = tl.minimum(tl.minimum(offset + queries + right, length), begin + per_share)
    out, m, weight, ex, far, best = nothing_yet(ROWS, VALUE_DIM)
    for start in tl.range(low, high, KEYS):
        out, m, weight, ex, far, best = step(
            out, m, weight, ex, far, best, q, k_at, v_at, batch, kv_head, start, place,
            left, right, length, scale, cap, 1.0,
            True, CAP, ENTROPY, DISTANCE, PEAK_KEY, KEYS, DIM, VALUE_DIM,
        )  # fmt: skip
    total = tl.num_programs(2).to(tl.int64) * heads * queries
    at = share * total + (batch * heads + head).to(tl.int64) * queries + query
    every = shares * total
    tl.store(carried_at + at, m, mask=real)
    tl.store(carried_at + every + at, weight, mask=real)
    if ENTROPY:
        tl.store(carried_at + 2 * every + at, ex, mask=real)
    if DISTANCE:
        tl.store(carried_at + 3 * every + at, far, mask=real)
    if PEAK_KEY:
        tl.store(best_at + at, best, mask=real)
    column = tl.arange(0, VALUE_DIM)
    written = real[:, None] & (column < value_dim)[None, :]
    tl.store(out_at + at[:, None] * value_dim + column[None, :], out, mask=written)


@triton.jit(do_not_specialize=["queries", "total", "shares"])
def merge_kernel(
    parts_at, carried_at, best_at, out_at, lse_at, entropy_at, distance_at, peak_at, peak_key_at,
    sinks_at, heads, queries, total, shares, value_dim,
    SINKS: tl.constexpr, ENTROPY: tl.constexpr, DISTANCE: tl.constexpr, PEAK: tl.constexpr,
    PEAK_KEY: tl.constexpr, SHARES: tl.constexpr, VALUE_DIM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A row of one head from its shares, SHARES of them at a time: all are fetched at once."""
    if EARLY:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    column = tl.arange(0, VALUE_DIM)
    out, m, weight, ex, far, best = nothing_yet(1, VALUE_DIM)
    every = shares * total
    for first in tl.range(0, shares, SHARES):
        share = first + tl.arange(0, SHARES)[:, None]
        at, real = share * total + row[None, :], share < shares
        its_m = tl.load(carried_at + at, mask=real, other=NEVER)
        its_weight = tl.load(carried_at + every + at, mask=real, other=0.0)
        top = tl.max(its_m, 0)
        higher = tl.maximum(m, top)
        mine, its = tl.exp2(m - higher), tl.exp2(its_m - higher[None, :])
        if ENTROPY:
            its_ex = tl.load(carried_at + 2 * every + at, mask=real, other=0.0)
            ex = mine * (ex + (m - higher) * weight)
            ex += tl.sum(its * (its_ex + (its_m - higher[None, :]) * its_weight), 0)
        if DISTANCE:
            its_far = tl.load(carried_at + 3 * every + at, mask=real, other=0.0)
            far = far * mine + tl.sum(its * its_far, 0)
        if PEAK_KEY:  # shares come in the order of their keys: an equal one is further on
            its_best = tl.load(best_at + at, mask=real, other=-1)
            lowest = tl.min(tl.where(its_m == top[None, :], its_best, 2147483647), 0)
            best = tl.where(top > m, lowest, best)
        weight = weight * mine + tl.sum(its * its_weight, 0)
        part = tl.load(
            parts_at + at[:, :, None] * value_dim + column[None, None, :],
            mask=real[:, :, None] & (column < value_dim)[None, None, :], other=0.0,
        )  # fmt: skip
        out = out * mine[:, None] + tl.sum(its[:, :, None] * part, 0)
        m = higher
    sink = tl.zeros([1], tl.float32)
    if SINKS:
        sink = tl.load(sinks_at + row // queries % heads).to(tl.float32) / LN2
    out, _ = tell(
        row, row < total, out, m, weight, ex, far, best, sink,
        lse_at, entropy_at, distance_at, peak_at, peak_key_at,
        SINKS, ENTROPY, DISTANCE, PEAK, PEAK_KEY,
    )  # fmt: skip
    into = out_at + row[:, None] * value_dim + column[None, :]
    tl.store(into, out.to(out_at.dtype.element_ty), mask=(column < value_dim)[None, :])
