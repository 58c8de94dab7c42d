# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""Sweeps on Hopper: tiles arrive by themselves in a ring, and small programs share the rest.

Exponentials take longest here. So a program is small, a few warps of few registers, and several
share a multiprocessor: while one waits for a tile, for its scores or for the next program to
begin, the others have weights to work out. Numbers stay with the threads that made them until they
are written: a tile is seen as (row, eight keys, thread, 2), as its scores lie.

The simplest of them is here: the weight of each row inside a band.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper_fetch import load_tile
from .hopper_fold import by_thread, lanes, seen_by_thread
from .tile import NEVER, NUMBERS, capped, keys_of, lse_of_rows, up, where_and_how_long


@gluon.jit
def send(at, ring, here, stage, batch, head, start, end):
    """Have a tile brought into its place in the ring, unless it lies behind the last."""
    wanted = start < end
    mbarrier.expect(here.index(stage), at.block_type.nbytes, pred=wanted)
    load_tile(at, [batch, head, start, 0], here.index(stage), ring.index(stage), pred=wanted)


@gluon.jit
def set_out(
    own_at, tiles_at, batch, own_head, head, first, low, high,
    OWN: gl.constexpr, ROWS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A program's own rows and the first tiles of its ring on their way, and where they arrive.

    In `here` each stage of the ring has its barrier, and what is the program's own the last.
    """
    OWN_TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OWN, DIM], own_at.dtype)
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, DIM], own_at.dtype)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    own = gl.allocate_shared_memory(own_at.dtype, [OWN, DIM], OWN_TILE)
    ring = gl.allocate_shared_memory(own_at.dtype, [STAGES, ROWS, DIM], TILE)
    here = gl.allocate_shared_memory(gl.int64, [STAGES + 1, 1], BARRIER)
    for i in gl.static_range(STAGES + 1):
        mbarrier.init(here.index(i), count=1)
    fence_async_shared()
    mbarrier.expect(here.index(STAGES), own_at.block_type.nbytes)
    load_tile(own_at, [batch, own_head, first, 0], here.index(STAGES), own)
    for i in gl.static_range(STAGES):
        send(tiles_at, ring, here, i, batch, head, low + i * ROWS, high)
    return own, ring, here


@gluon.jit
def own_of(own, here, SCORES: gl.constexpr, STAGES: gl.constexpr):
    """What is the program's own, now that it is here, for products with tiles of the ring.

    From registers where these have room: products of two tiles in shared memory keep it so busy
    that everything else waits.
    """
    mbarrier.wait(here.index(STAGES), 0)
    if own.shape[1] <= 64:
        return own.load(gl.DotOperandLayout(0, SCORES, 2))
    else:  # a compiler reads on after a return
        return own


@gluon.jit
def weights_of(
    scores, lse2, start, place, left, right, length, scale, cap,
    CAREFUL: gl.constexpr, UNBOUNDED: gl.constexpr, CAP: gl.constexpr,
):  # fmt: skip
    """Of scores, (row, key), to weights, (row, eight keys, thread, 2)."""
    x = capped(scores, scale, cap, CAP) * (1.0 if CAP else scale) - lse2[:, None]
    x = by_thread(x)
    if CAREFUL:
        is_seen = seen_by_thread(x, start, place, left, right, length, UNBOUNDED)
        x = gl.where(is_seen, x, NEVER)
    return gl.exp2(x)


@gluon.jit(do_not_specialize=NUMBERS)
def masses_on_hopper(
    q_at, k_at, lse_at, masses_at, bands_at, lengths_at, offsets_at,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: gl.constexpr, LENGTHS: gl.constexpr, OFFSETS: gl.constexpr,
    ROWS: gl.constexpr, KEYS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Σⱼ p inside a band and the row's own, as `masses_kernel`; a program has one of the bands."""
    program, batch, band = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    block, head = gl.cdiv(queries, ROWS) - 1 - program // heads, program % heads
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    left = gl.minimum(left, gl.load(bands_at + 3 * band))
    right = gl.minimum(right, gl.load(bands_at + 3 * band + 1))
    length = gl.minimum(length, gl.load(bands_at + 3 * band + 2))
    first, last = block * ROWS, gl.minimum(block * ROWS + ROWS, queries) - 1
    low, plain_low, plain_high, high = keys_of(
        first + offset, last + offset, left, right, length, KEYS
    )
    high = gl.maximum(up(high, KEYS), low)
    plain_low = gl.minimum(plain_low, high)  # of rows that see nothing they lie behind
    plain_high = gl.minimum(plain_high, high)

    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [ROWS // 16, 1], [16, KEYS, 16])
    q, ks, here = set_out(
        q_at, k_at, batch, head, head // group, first, low, high, ROWS, KEYS, DIM, STAGES
    )

    at = (batch * heads + head).to(gl.int64) * queries
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    lse2 = lse_of_rows(lse_at + at, row, row < queries)
    room, tile = gl.zeros([ROWS, KEYS], gl.float32, SCORES), low - low
    total = lanes(by_thread(room))  # a thread's, (row, 4)
    q = own_of(q, here, SCORES, STAGES)
    for part in gl.static_range(3):  # keys that some rows see, all, and some
        begin = low if part == 0 else plain_low if part == 1 else plain_high
        for start in range(begin, plain_low if part == 0 else plain_high if part == 1 else high,
                           KEYS):  # fmt: skip
            stage = tile % STAGES
            mbarrier.wait(here.index(stage), tile // STAGES & 1)
            k = ks.index(stage).permute((1, 0))
            soon = warpgroup_mma(q, k, room, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, (soon,))
            send(k_at, ks, here, stage, batch, head // group, start + STAGES * KEYS, high)
            tile += 1
            weights = weights_of(
                scores, lse2, start, row + offset, left, right, length, scale, cap,
                part != 1, False, CAP,
            )  # fmt: skip
            total += lanes(weights)
    found = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, SCORES))
    into = masses_at + band * gl.num_programs(1).to(gl.int64) * heads * queries + at
    gl.store(into + row, found, mask=row < queries)
