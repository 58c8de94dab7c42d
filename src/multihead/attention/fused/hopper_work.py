# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""Which blocks of rows a program of the Hopper kernel takes, one after the other.

All programs take one block a lap. Each lap turns around where the last one ended: who had the
longest block of one has the shortest of the next, so that causal blocks come longest first through
all heads of all texts. Nothing here is Hopper's own, so that it can be tested anywhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .forward import block_of, walk_of
from .tile import where_and_how_long


@triton.jit
def _place(lap):
    program = tl.program_id(0)
    return tl.where(lap % 2 == 0, program, tl.num_programs(0) - 1 - program)


@triton.jit
def laps_of(works, LAPS: tl.constexpr):
    """How many blocks this program takes: one, unless they go around in LAPS."""
    if not LAPS:
        return 1
    whole = works // tl.num_programs(0)
    return whole + tl.where(_place(whole) < works % tl.num_programs(0), 1, 0)


@triton.jit
def room_of(lap, group, LAPS: tl.constexpr, GROUPS: tl.constexpr):
    """Where a group's queries lie, and how often others lay there before, odd or even.

    In LAPS the next ones are fetched into a second room while the first is in use.
    """
    if LAPS:
        return lap % 2 * GROUPS + group, lap // 2 & 1
    return group, 0


@triton.jit
def work_of(
    lap, numbers, lengths_at, offsets_at,
    LENGTHS: tl.constexpr, OFFSETS: tl.constexpr, SIDES: tl.constexpr, ONE_SIDED: tl.constexpr,
    KEYS: tl.constexpr, LAPS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Which block of which head is next, where its first row stands and what it walks over."""
    works, heads, _, queries, keys, left, right, length, offset, _, _, _ = numbers
    work = lap * tl.num_programs(0) + _place(lap)
    rows = 64 * GROUPS
    blocks = tl.cdiv(queries, rows)
    together = works // blocks if LAPS and ONE_SIDED else heads  # heads of all texts, or of one
    block, head = block_of(work % (blocks * together), together, blocks, ONE_SIDED)
    head += work // (blocks * together) * together
    batch, head = head // heads, head % heads
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    first = block * rows + offset
    last = tl.minimum(block * rows + rows, queries) - 1 + offset
    walk = walk_of(first, last, left, right, length, SIDES, KEYS)
    return batch, head, block, offset, length, walk
