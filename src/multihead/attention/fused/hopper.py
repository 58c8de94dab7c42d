# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""The forward kernel's choreography on Hopper: one warp fetches, GROUPS of four compute.

    fetch     K₀ V₀  K₁ V₁  …   into a ring of shared tiles, each as soon as all groups left it
    compute   S₁ = Q·K₁ᵀ and O += E₀·V₀ run in the tensor cores, E₁ is folded from S₁ meanwhile

A group has 64 rows of its own; while one of them folds, the tensor cores work for another. In LAPS
a program takes one block of rows after the other: what the next one needs is fetched while this one
ends. What a row carries, how a tile is folded in and what is told in the end is
`forward.py`'s, which runs everywhere: here is only what waits for what, and where a number lies.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .forward import start_of, tell, tiles_of_walk
from .hopper_fetch import fetch, store_tile
from .hopper_fold import by_thread, fold, halved, lanes, packed
from .hopper_steps import begin, end, in_sight, leave, pass_over
from .hopper_work import WORKS, laps_of, room_of, work_of
from .tile import LN2, NEVER, NUMBERS, capped, seen


@gluon.jit
def _block(
    lap, group, room, reached, turn, out_at, qs, ks, vs, bars, told_at, sinks_at, work, numbers,
    CAP: gl.constexpr, SINKS: gl.constexpr, ENTROPY: gl.constexpr, DISTANCE: gl.constexpr,
    PEAK: gl.constexpr, PEAK_KEY: gl.constexpr, FIRST_KEYS: gl.constexpr,
    ONE_SIDED: gl.constexpr, UNBOUNDED: gl.constexpr, KEYS: gl.constexpr, DIM: gl.constexpr,
    STAGES: gl.constexpr, TURNS: gl.constexpr, LAPS: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """64 rows of one head, from the first scores to what is told of them."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    CROSSES: gl.constexpr = DISTANCE and not ONE_SIDED
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    batch, head, block, offset, length, walk = work
    _, heads, _, queries, _, left, right, _, _, scale, cap, prefix, _, _, _ = numbers
    here, free = bars[0], bars[1]
    careful, total = tiles_of_walk(walk, KEYS)
    first_row = (block * GROUPS + group) * 64
    rows = first_row + gl.arange(0, 64, ROW)
    place, column = rows + offset, gl.arange(0, KEYS, gl.SliceLayout(0, SCORES))
    factor = 1.0 if CAP else scale
    q = qs.index(room)
    m, best = gl.full([64], NEVER, gl.float32, ROW), gl.full([64], -1, gl.int32, ROW)
    weight = lanes(by_thread(gl.zeros([64, KEYS], gl.float32, SCORES)))
    ex, far = weight, weight
    out = gl.zeros([64, DIM], gl.float32, OUT)

    e = packed(gl.zeros([64, KEYS], gl.float32, SCORES), q.dtype, GROUPS > 2)
    held, visited = reached, careful
    if ONE_SIDED:
        last = gl.minimum(first_row + 64, queries) - 1 + offset
        visited = in_sight(walk, careful, last, right, length, KEYS, STAGES)
    for tile in range(gl.maximum(visited, 1)):
        # The first one adds nothing: zeros times its own values, which are forgotten. Its code
        # apart would make the kernel longer than what a multiprocessor keeps of instructions.
        scores, adding, p = begin(
            reached + tile, held, turn + tile, group, e, out, q, ks, vs, bars,
            KEYS, STAGES, TURNS, GROUPS, SCORES, WEIGHTS,
        )  # fmt: skip
        start = start_of(tile, walk, careful, KEYS)
        e, fade, m, weight, ex, far, best = fold(
            capped(scores, scale, cap, CAP), start, column, m, weight, ex, far, best, place,
            left, right, length, factor, 1.0, True, CROSSES, UNBOUNDED, ENTROPY, DISTANCE, PEAK_KEY,
        )  # fmt: skip
        e = packed(e, q.dtype, GROUPS > 2)
        out = end(held, adding, p, fade, bars, tile > 0, STAGES, OUT)
        out = gl.where(tile > 0, out, 0.0)
        held = reached + tile
    leave(lap, group, bars, LAPS, GROUPS)
    if ONE_SIDED:
        for tile in range(visited, careful):
            pass_over(reached + tile, group, turn + tile, bars, STAGES, TURNS, GROUPS)
    for tile in range(gl.maximum(careful, 1), total):
        scores, adding, p = begin(
            reached + tile, held, turn + tile, group, e, out, q, ks, vs, bars,
            KEYS, STAGES, TURNS, GROUPS, SCORES, WEIGHTS,
        )  # fmt: skip
        start = start_of(tile, walk, careful, KEYS)
        side = 1.0 if ONE_SIDED else gl.where(start >= walk[3], -1.0, 1.0)
        e, fade, m, weight, ex, far, best = fold(
            capped(scores, scale, cap, CAP), start, column, m, weight, ex, far, best, place,
            left, right, length, factor, side, False, False, UNBOUNDED, ENTROPY, DISTANCE, PEAK_KEY,
        )  # fmt: skip
        e = packed(e, q.dtype, GROUPS > 2)
        out = end(held, adding, p, fade, bars, True, STAGES, OUT)
        held = reached + tile
    weight, ex, far = gl.sum(weight, 1), gl.sum(ex, 1), gl.sum(far, 1)
    p = halved(e, q.dtype, WEIGHTS, GROUPS > 2)
    reached += total
    adding = warpgroup_mma(p, vs.index(held % STAGES), out, is_async=True)
    if FIRST_KEYS:
        FEW: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST_KEYS, 16])
        mbarrier.wait(here.index(reached % STAGES), reached // STAGES & 1)
        nothing = gl.zeros([64, FIRST_KEYS], gl.float32, FEW)
        few = ks.index(reached % STAGES).slice(0, FIRST_KEYS).permute((1, 0))
        soon = warpgroup_mma(q, few, nothing, use_acc=False, is_async=True)
        out, first_scores = warpgroup_mma_wait(0, (adding, soon))
        mbarrier.arrive(free.index(reached % STAGES))
    else:
        out = warpgroup_mma_wait(0, (adding,))
    mbarrier.arrive(free.index(held % STAGES))

    sink = 0.0
    if SINKS:
        sink = gl.load(sinks_at + head).to(gl.float32) / LN2
    TOLD: gl.constexpr = gl.SliceLayout(1, OUT)
    m, best = gl.convert_layout(m, TOLD), gl.convert_layout(best, TOLD)
    weight, ex, far = (gl.convert_layout(weight, TOLD), gl.convert_layout(ex, TOLD),
                       gl.convert_layout(far, TOLD))  # fmt: skip
    at = (batch * heads + head).to(gl.int64) * queries + rows
    written = rows < queries
    out, lse2 = tell(
        gl.convert_layout(at, TOLD), gl.convert_layout(written, TOLD),
        out, m, weight, ex, far, best, sink,
        told_at[0], told_at[1], told_at[2], told_at[3], told_at[4],
        SINKS, ENTROPY, DISTANCE, PEAK, PEAK_KEY,
    )  # fmt: skip
    if FIRST_KEYS:  # what the first `prefix` keys have of each row, now that lse is known
        SOME: gl.constexpr = gl.SliceLayout(1, FEW)
        lse2, place = gl.convert_layout(lse2, SOME), gl.convert_layout(place, SOME)
        x = capped(first_scores, scale, cap, CAP) * factor - lse2[:, None]
        key = gl.arange(0, FIRST_KEYS, gl.SliceLayout(0, FEW))
        is_seen = seen(0, key, place, left, right, gl.minimum(length, prefix))
        mass = gl.sum(gl.exp2(gl.where(is_seen, x, NEVER)), 1)
        gl.store(told_at[5] + gl.convert_layout(at, SOME), mass,
                 mask=gl.convert_layout(written, SOME))  # fmt: skip
    q.store(out.to(q.dtype))  # by way of shared memory, where the queries lay
    fence_async_shared()
    store_tile(out_at, [batch, head, first_row, 0], q)


@gluon.jit
def _compute(
    group, given,
    CAP: gl.constexpr, SINKS: gl.constexpr, LENGTHS: gl.constexpr, OFFSETS: gl.constexpr,
    ENTROPY: gl.constexpr, DISTANCE: gl.constexpr, PEAK: gl.constexpr, PEAK_KEY: gl.constexpr,
    FIRST_KEYS: gl.constexpr, ONE_SIDED: gl.constexpr, UNBOUNDED: gl.constexpr, KEYS: gl.constexpr,
    DIM: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr, LAPS: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    out_at, qs, ks, vs, bars, told_at, sinks_at, lengths_at, offsets_at, numbers = given
    reached, turn = 0, 0  # tiles of all rounds so far, and turns at the tensor cores
    for lap in range(laps_of(numbers[0], LAPS)):
        work = work_of(
            lap, numbers, lengths_at, offsets_at,
            LENGTHS, OFFSETS, DISTANCE and not ONE_SIDED, ONE_SIDED, KEYS, LAPS, GROUPS,
        )  # fmt: skip
        room, parity = room_of(lap, group, LAPS, GROUPS)
        mbarrier.wait(bars[3].index(room), parity)
        _, total = tiles_of_walk(work[5], KEYS)
        if (work[2] * GROUPS + group) * 64 < numbers[3]:
            _block(
                lap, group, room, reached, turn, out_at, qs, ks, vs, bars, told_at, sinks_at, work,
                numbers, CAP, SINKS, ENTROPY, DISTANCE, PEAK, PEAK_KEY, FIRST_KEYS, ONE_SIDED,
                UNBOUNDED, KEYS, DIM, STAGES, TURNS, LAPS, GROUPS,
            )  # fmt: skip
        else:  # the last block's rows may end before this group's
            leave(lap, group, bars, LAPS, GROUPS)
            for tile in range(total):
                pass_over(reached + tile, group, turn + tile, bars, STAGES, TURNS, GROUPS)
            if FIRST_KEYS:
                pass_over(reached + total, group, turn, bars, STAGES, False, GROUPS)
        reached += total + (1 if FIRST_KEYS else 0)
        turn += total
    tma.store_wait(0)


@gluon.jit(do_not_specialize=(*NUMBERS, *WORKS, "prefix"))
def hopper_kernel(
    q_at, k_at, v_at, out_at, lse_at, entropy_at, distance_at, peak_at, peak_key_at, first_at,
    sinks_at, lengths_at, offsets_at, works, across, by, by_shift, by_heads, by_heads_shift, prefix,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: gl.constexpr, SINKS: gl.constexpr, LENGTHS: gl.constexpr, OFFSETS: gl.constexpr,
    ENTROPY: gl.constexpr, DISTANCE: gl.constexpr, PEAK: gl.constexpr, PEAK_KEY: gl.constexpr,
    FIRST_KEYS: gl.constexpr, ONE_SIDED: gl.constexpr, UNBOUNDED: gl.constexpr, KEYS: gl.constexpr,
    DIM: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr, LAPS: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """Blocks of rows, as `forward_kernel`; pointers that are not asked for point anywhere."""
    Q_TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, DIM], q_at.dtype)
    K_TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, DIM], q_at.dtype)
    ROOMS: gl.constexpr = 2 * GROUPS if LAPS else GROUPS
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    qs = gl.allocate_shared_memory(q_at.dtype, [ROOMS, 64, DIM], Q_TILE)
    ks = gl.allocate_shared_memory(q_at.dtype, [STAGES, KEYS, DIM], K_TILE)
    vs = gl.allocate_shared_memory(q_at.dtype, [STAGES, KEYS, DIM], K_TILE)
    q_here = gl.allocate_shared_memory(gl.int64, [ROOMS, 1], BARRIER)
    q_free = gl.allocate_shared_memory(gl.int64, [ROOMS, 1], BARRIER)
    here = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    turns = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], BARRIER)
    for i in gl.static_range(ROOMS):
        mbarrier.init(q_here.index(i), count=1)
        mbarrier.init(q_free.index(i), count=1)
    for i in gl.static_range(GROUPS):
        mbarrier.init(turns.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(here.index(i), count=1)
        mbarrier.init(free.index(i), count=GROUPS)
    fence_async_shared()
    if TURNS:
        mbarrier.arrive(turns.index(0))

    bars = (here, free, turns, q_here, q_free)
    numbers = (works, heads, group, queries, keys, left, right, length, offset, scale, cap, prefix,
               across, (by, by_shift), (by_heads, by_heads_shift))  # fmt: skip
    told_at = (lse_at, entropy_at, distance_at, peak_at, peak_key_at, first_at)
    given = (out_at, qs, ks, vs, bars, told_at, sinks_at, lengths_at, offsets_at, numbers)
    to_fetch = (q_at, k_at, v_at, qs, ks, vs, bars, lengths_at, offsets_at, numbers)
    # Written out, for constants stay constants here alone; and warps and registers of a thread of
    # all but the first group.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_compute, (0, given, CAP, SINKS, LENGTHS, OFFSETS, ENTROPY, DISTANCE, PEAK,
                            PEAK_KEY, FIRST_KEYS, ONE_SIDED, UNBOUNDED, KEYS, DIM, STAGES, TURNS,
                            LAPS, GROUPS)),
                (_compute, (1, given, CAP, SINKS, LENGTHS, OFFSETS, ENTROPY, DISTANCE, PEAK,
                            PEAK_KEY, FIRST_KEYS, ONE_SIDED, UNBOUNDED, KEYS, DIM, STAGES, TURNS,
                            LAPS, GROUPS)),
                (fetch, (to_fetch, LENGTHS, OFFSETS, DISTANCE and not ONE_SIDED, ONE_SIDED,
                         FIRST_KEYS, KEYS, STAGES, LAPS, GROUPS)),
            ],
            [4, 1], [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_compute, (0, given, CAP, SINKS, LENGTHS, OFFSETS, ENTROPY, DISTANCE, PEAK,
                            PEAK_KEY, FIRST_KEYS, ONE_SIDED, UNBOUNDED, KEYS, DIM, STAGES, TURNS,
                            LAPS, GROUPS)),
                (_compute, (1, given, CAP, SINKS, LENGTHS, OFFSETS, ENTROPY, DISTANCE, PEAK,
                            PEAK_KEY, FIRST_KEYS, ONE_SIDED, UNBOUNDED, KEYS, DIM, STAGES, TURNS,
                            LAPS, GROUPS)),
                (_compute, (2, given, CAP, SINKS, LENGTHS, OFFSETS, ENTROPY, DISTANCE, PEAK,
                            PEAK_KEY, FIRST_KEYS, ONE_SIDED, UNBOUNDED, KEYS, DIM, STAGES, TURNS,
                            LAPS, GROUPS)),
                (fetch, (to_fetch, LENGTHS, OFFSETS, DISTANCE and not ONE_SIDED, ONE_SIDED,
                         FIRST_KEYS, KEYS, STAGES, LAPS, GROUPS)),
            ],
            [4, 4, 1], [160, 160, 24],
        )  # fmt: skip
