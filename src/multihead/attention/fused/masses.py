# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""The weight of each row inside a band: with lse at hand (identity 4), only the band is looked at.

So that masses cost what their own tiles cost: one for `prefix(1)`, two or three for `offset(-1)`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tile import NEVER, NUMBERS, capped, inside, load_rows, lse_of_rows, where_and_how_long


@triton.jit
def mass_inside(
    band_at, q, k_at, batch, kv_head, first, last, place, lse2, left, right, length, scale, cap,
    CAP: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Σⱼ p inside a band and the row's own, (ROWS,)."""
    left = tl.minimum(left, tl.load(band_at))
    right = tl.minimum(right, tl.load(band_at + 1))
    length = tl.minimum(length, tl.load(band_at + 2))
    total = tl.zeros([ROWS], tl.float32)
    low = tl.maximum(first - left, 0) // KEYS * KEYS
    for start in tl.range(low, tl.minimum(last + right + 1, length), KEYS):
        k = load_rows(k_at, batch, kv_head, start, KEYS, DIM)
        scores = capped(tl.dot(q, k.T), scale, cap, CAP)
        keys = start + tl.arange(0, KEYS)
        seen = inside(keys[None, :] - place[:, None], keys[None, :], left, right, length)
        x = scores * (1.0 if CAP else scale) - lse2[:, None]
        total += tl.sum(tl.exp2(tl.where(seen, x, NEVER)), 1)
    return total


@triton.jit(do_not_specialize=NUMBERS)
def masses_kernel(
    q_at, k_at, lse_at, masses_at, bands_at, lengths_at, offsets_at,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: tl.constexpr, LENGTHS: tl.constexpr, OFFSETS: tl.constexpr, MASSES: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """The same where lse is known already: a pass of its own."""
    program, batch = tl.program_id(0), tl.program_id(1)
    block, head = program // heads, program % heads
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    rows = block * ROWS + tl.arange(0, ROWS)
    first = block * ROWS + offset
    last = tl.minimum(block * ROWS + ROWS, queries) - 1 + offset
    at = (batch * heads + head).to(tl.int64) * queries + rows
    q = load_rows(q_at, batch, head, block * ROWS, ROWS, DIM)
    lse2 = lse_of_rows(lse_at, at, rows < queries)
    for band in tl.static_range(MASSES):
        mass = mass_inside(
            bands_at + 3 * band, q, k_at, batch, head // group, first, last, rows + offset, lse2,
            left, right, length, scale, cap, CAP, ROWS, KEYS, DIM,
        )  # fmt: skip
        into = masses_at + band * tl.num_programs(1).to(tl.int64) * heads * queries
        tl.store(into + at, mass, mask=rows < queries)
