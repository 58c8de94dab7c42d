# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""Which blocks of rows a program of the Hopper kernel takes, one after the other.

All programs take one block a lap. Each lap turns around where the last one ended: who had the
longest block of one has the shortest of the next, so that causal blocks come longest first through
all heads of all texts. Nothing here is Hopper's own, so that it can be tested anywhere.

Between two blocks everybody waits for these numbers, and a division by a number that is not known
takes some thirty instructions, each waiting for the one before: we multiply instead (`divider`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .forward import walk_of
from .tensors import blocks as blocks_of
from .tile import where_and_how_long

WORKS = ("works", "across", "by", "by_shift", "by_heads", "by_heads_shift")


def shared_out(
    batch: int, heads: int, blocks: int, one_sided: bool, programs: int
) -> tuple[tuple[int, ...], dict[str, int]]:
    """The grid, and WORKS, by which so many programs know their blocks; 0: a program a block."""
    texts = batch if programs else 1  # which programs share
    works, across = blocks * heads * texts, heads * texts if one_sided else blocks
    grid = (min(works, programs),) if programs else (works, batch)
    numbers = works, across, *divider(across), *divider(heads)
    return grid, dict(zip(WORKS, numbers, strict=True))


def three_end_sooner(heads: int, queries: int, processors: int, *, alike: bool) -> bool:
    """Whether all rows of so many heads are done no later by three groups a block than by two.

    A block of 192 rows takes 4/3 of the time of one of 128. Those that are `alike` go in rounds,
    one to a processor, and the last round takes as long as any other, however few are left for it.
    Where the first rows see fewer keys, short blocks fill the processors up; but all wait for the
    longest one, which takes twice the time of the average.

    A row's last bits may differ between the two: other rows beside it, another order of tiles.

    >>> [three_end_sooner(16, n, 132, alike=True) for n in (2000, 5000, 16384)]
    [False, False, True]
    """
    two, three = (heads * blocks_of(queries, rows) for rows in (128, 192))
    if alike:
        two, three = blocks_of(two, processors), blocks_of(three, processors)
    else:
        three = max(three, 2 * processors)
    return 4 * three <= 3 * two


def divider(by: int) -> tuple[int, int]:
    """What `divided` takes: ⌈2³¹⁺ˢ / by⌉ and s, so large that the first has all of its 32 bits.

    They are told as a number of 32 bits with a sign.

    >>> divider(12)
    (-1431655765, 4)
    """
    shift = (by - 1).bit_length()
    return -(-(1 << 31 + shift) // by) - (1 << 32), shift


@triton.jit
def divided(number, divider):
    """number // by, for numbers below 2³⁰, which are more blocks than any memory has."""
    twice, by = (2 * number).to(tl.uint32, bitcast=True), divider[0].to(tl.uint32, bitcast=True)
    return (tl.umulhi(twice, by) >> divider[1]).to(tl.int32, bitcast=True)


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
    """Which block of which head is next, where its first row stands and what it walks over.

    Of ONE_SIDED maps `across` is all heads, which come one after the other, and the last rows
    first; of others it is the blocks of a head. In LAPS heads are those of all texts.
    """
    _, heads, _, queries, keys, left, right, length, offset, _, _, _, across, by, by_heads = numbers
    rows = 64 * GROUPS
    work, batch = tl.program_id(0), tl.program_id(1)
    if LAPS:
        work = lap * tl.num_programs(0) + _place(lap)
    slow = divided(work, by)
    quick = work - slow * across
    head, block = slow, quick
    if ONE_SIDED:
        head, block = quick, tl.cdiv(queries, rows) - 1 - slow
    if LAPS:
        batch = divided(head, by_heads)
        head -= batch * heads
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    first = block * rows + offset
    last = tl.minimum(block * rows + rows, queries) - 1 + offset
    walk = walk_of(first, last, left, right, length, SIDES, KEYS)
    return batch, head, block, offset, length, walk
