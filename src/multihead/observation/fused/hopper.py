# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""The map in cells on Hopper: as in attention there, one warp fetches and groups of four compute.

Four groups, for here exponentials take longest: while one waits for its scores, the others have
theirs to turn into weights. A group has 64 rows of its own. Tiles come in order, so that a cell of
several is whole before the next begins; what threads hold of it is laid together only then.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma_wait,
)

from ...attention.fused.hopper import load_tile, score
from ...attention.fused.tile import (
    NEVER,
    NUMBERS,
    capped,
    lse_of_rows,
    seen,
    up,
    where_and_how_long,
)

GROUPS = gl.constexpr(4)
PART = gl.constexpr(16)  # rows of a warp: what it adds up of a cell is one number


@gluon.jit
def _fetch(k_at, ks, here, free, batch, kv_head, low, high,
           KEYS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    for tile in range((high - low) // KEYS):
        stage = tile % STAGES
        mbarrier.wait(free.index(stage), tile // STAGES & 1 ^ 1)
        mbarrier.expect(here.index(stage), k_at.block_type.nbytes)
        load_tile(k_at, [batch, kv_head, low + tile * KEYS, 0], here.index(stage), ks.index(stage))


@gluon.jit
def _of_threads(weights, CELLS: gl.constexpr, KEYS: gl.constexpr):
    """Sum and largest of what each of a row's four threads holds of each cell, (64, CELLS, 4)."""
    mine = weights.reshape([64, CELLS, KEYS // 8 // CELLS, 4, 2])
    return gl.sum(gl.sum(mine, 2), 3), gl.max(gl.max(mine, 2), 3)


@gluon.jit
def _write(total, largest, sum_at, largest_at, part, cell, parts, cells, CELLS: gl.constexpr):
    """Each warp lays its 16 rows together."""
    total = gl.sum(gl.sum(total.reshape([4, PART, CELLS, 4]), 1), 2)
    largest = gl.max(gl.max(largest.reshape([4, PART, CELLS, 4]), 1), 2)
    down = part + gl.arange(0, 4, gl.SliceLayout(1, total.type.layout))[:, None]
    across = cell + gl.arange(0, CELLS, gl.SliceLayout(0, total.type.layout))[None, :]
    real = (down < parts) & (across < cells)
    gl.store(sum_at + down * cells + across, total, mask=real)
    gl.store(largest_at + down * cells + across, largest, mask=real)


@gluon.jit
def _pool(
    group, shared, told_at, numbers, walk,
    CAP: gl.constexpr, WIDTH: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    CELLS: gl.constexpr = 1 if WIDTH > KEYS else KEYS // WIDTH  # of a tile
    qs, ks, q_here, here, free = shared
    lse_at, sum_at = told_at
    low, plain, high = walk
    first, heads, queries, cells, left, right, length, offset, scale, cap = numbers
    largest_at = sum_at + gl.num_programs(1).to(gl.int64) * heads * (queries // PART) * cells
    first += group * 64
    row = first + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
    column = gl.arange(0, KEYS, gl.SliceLayout(0, SCORES))
    lse2 = lse_of_rows(lse_at, row, row < queries)
    mbarrier.wait(q_here.index(group), 0)
    q, tile = qs.index(group), low - low
    total, largest = _of_threads(gl.zeros([64, KEYS], gl.float32, SCORES), CELLS, KEYS)
    for CAREFUL in gl.static_range(2):
        for start in range(plain if CAREFUL else low, high if CAREFUL else plain, KEYS):
            scores = warpgroup_mma_wait(0, (score(tile, q, ks, here, STAGES, SCORES, KEYS),))
            mbarrier.arrive(free.index(tile % STAGES))
            tile += 1
            x = capped(scores, scale, cap, CAP) * (1.0 if CAP else scale) - lse2[:, None]
            if CAREFUL:
                x = gl.where(seen(start, column, row + offset, left, right, length), x, NEVER)
            some, most = _of_threads(gl.exp2(x), CELLS, KEYS)
            if WIDTH <= KEYS:
                _write(some, most, sum_at, largest_at, first // PART, start // WIDTH,
                       queries // PART, cells, CELLS)  # fmt: skip
            else:
                begins = start % WIDTH == 0
                total = gl.where(begins, some, total + some)
                largest = gl.where(begins, most, gl.maximum(largest, most))
                if (start + KEYS) % WIDTH == 0 or start + KEYS >= high:
                    _write(total, largest, sum_at, largest_at, first // PART, start // WIDTH,
                           queries // PART, cells, CELLS)  # fmt: skip


@gluon.jit(do_not_specialize=[*NUMBERS, "cells"])
def cells_on_hopper(
    q_at, k_at, lse_at, cells_at, lengths_at, offsets_at, cells,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: gl.constexpr, LENGTHS: gl.constexpr, OFFSETS: gl.constexpr, UNBOUNDED: gl.constexpr,
    WIDTH: gl.constexpr, KEYS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Of cells that are all WIDTH wide: sums of every 16 rows, then the largest weights of these.

    cells_at is (2, batch, heads, 16 rows, cell), and 0 where nothing is seen.
    """
    program, batch = gl.program_id(0), gl.program_id(1)
    block, head = gl.cdiv(queries, 64 * GROUPS) - 1 - program // heads, program % heads
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    first = block * 64 * GROUPS
    top, bottom = first + offset, gl.minimum(first + 64 * GROUPS, queries) - 1 + offset
    low = gl.maximum(top - left, 0) // KEYS * KEYS
    high = gl.maximum(gl.minimum(bottom + right + 1, length), low)
    plain = low
    if UNBOUNDED:  # behind the rows: then all tiles up to the first row's last key need no mask
        plain = gl.maximum(gl.minimum(top + right + 1, length), 0) // KEYS * KEYS
    high = gl.maximum(up(high, KEYS), plain)

    Q_TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, DIM], q_at.dtype)
    K_TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, DIM], q_at.dtype)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    qs = gl.allocate_shared_memory(q_at.dtype, [GROUPS, 64, DIM], Q_TILE)
    ks = gl.allocate_shared_memory(q_at.dtype, [STAGES, KEYS, DIM], K_TILE)
    q_here = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], BARRIER)
    here = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for i in gl.static_range(GROUPS):
        mbarrier.init(q_here.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(here.index(i), count=1)
        mbarrier.init(free.index(i), count=GROUPS)
    fence_async_shared()
    for i in gl.static_range(GROUPS):
        mbarrier.expect(q_here.index(i), q_at.block_type.nbytes)
        load_tile(q_at, [batch, head, first + 64 * i, 0], q_here.index(i), qs.index(i))

    at = (batch * heads + head).to(gl.int64)
    lse_at += at * queries
    cells_at += at * (queries // PART) * cells
    numbers = (first, heads, queries, cells, left, right, length, offset, scale, cap)
    shared, told_at, walk = (qs, ks, q_here, here, free), (lse_at, cells_at), (low, plain, high)
    gl.warp_specialize(
        [
            (_pool, (0, shared, told_at, numbers, walk, CAP, WIDTH, KEYS, STAGES)),
            (_pool, (1, shared, told_at, numbers, walk, CAP, WIDTH, KEYS, STAGES)),
            (_pool, (2, shared, told_at, numbers, walk, CAP, WIDTH, KEYS, STAGES)),
            (_pool, (3, shared, told_at, numbers, walk, CAP, WIDTH, KEYS, STAGES)),
            (_fetch, (k_at, ks, here, free, batch, head // group, low, high, KEYS, STAGES)),
        ],
        [4, 4, 4, 1], [112, 112, 112, 24],  # warps and registers beyond the first group's
    )  # fmt: skip
