# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""The forward kernel's choreography on Hopper: one warp fetches, two groups of four compute.

    fetch     K₀ V₀  K₁ V₁  …   into a ring of shared tiles, each as soon as both groups left it
    compute   S₁ = Q·K₁ᵀ and O += E₀·V₀ run in the tensor cores, E₁ is folded from S₁ meanwhile

A group has 64 rows of its own; while one of them folds, the tensor cores work for the other. What a
row carries, how a tile is folded in and what is told in the end is `forward.py`'s, which runs
everywhere: here is only what waits for what, and where a number lies.
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

from .forward import start_of, tell, tiles_of_walk, walk_of
from .hopper_fold import fold_careful, fold_plain, lanes, spread
from .tile import LN2, NEVER, NUMBERS, capped, seen, where_and_how_long

# Triton 3.6 knows them by other names than later ones.
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def _fetch(k_at, v_at, ks, vs, bars, batch, kv_head, walk,
           FIRST_KEYS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    here, free, _ = bars
    careful, total = tiles_of_walk(walk, KEYS)
    for tile in range(total):
        stage, turn = tile % STAGES, tile // STAGES & 1
        start = start_of(tile, walk, careful, KEYS)
        mbarrier.wait(free.index(stage), turn ^ 1)
        mbarrier.expect(here.index(stage), k_at.block_type.nbytes + v_at.block_type.nbytes)
        load_tile(k_at, [batch, kv_head, start, 0], here.index(stage), ks.index(stage))
        load_tile(v_at, [batch, kv_head, start, 0], here.index(stage), vs.index(stage))
    if FIRST_KEYS:  # once more those at the beginning
        stage, turn = total % STAGES, total // STAGES & 1
        mbarrier.wait(free.index(stage), turn ^ 1)
        mbarrier.expect(here.index(stage), k_at.block_type.nbytes)
        load_tile(k_at, [batch, kv_head, 0, 0], here.index(stage), ks.index(stage))


@gluon.jit
def score(tile, q, ks, here, STAGES: gl.constexpr, SCORES: gl.constexpr, KEYS: gl.constexpr):
    """The scores of a tile, under way."""
    stage = tile % STAGES
    mbarrier.wait(here.index(stage), tile // STAGES & 1)
    room = gl.zeros([64, KEYS], gl.float32, SCORES)
    return warpgroup_mma(q, ks.index(stage).permute((1, 0)), room, use_acc=False, is_async=True)


@gluon.jit
def _begin(
    tile, group, e, out, q, ks, vs, bars,
    KEYS: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr,
    SCORES: gl.constexpr, WEIGHTS: gl.constexpr,
):  # fmt: skip
    """This tile's scores, and the values of the last one on their way into `out`."""
    here, _, turns = bars
    if TURNS:  # while one group folds, the other has the tensor cores
        mbarrier.wait(turns.index(group), tile - 1 & 1)
    soon = score(tile, q, ks, here, STAGES, SCORES, KEYS)
    # In halves only here: a loop that carried them so would unpack and pack them again.
    p = gl.convert_layout(e.to(q.dtype), WEIGHTS)
    adding = warpgroup_mma(p, vs.index((tile - 1) % STAGES), out, is_async=True)
    if TURNS:
        mbarrier.arrive(turns.index(1 - group))
    return warpgroup_mma_wait(1, (soon,)), adding, p


@gluon.jit
def _end(tile, adding, p, fade, bars, STAGES: gl.constexpr, OUT: gl.constexpr):
    """The last tile's values are in; all that was faded fades."""
    out, _ = warpgroup_mma_wait(0, (adding, p))
    mbarrier.arrive(bars[1].index((tile - 1) % STAGES))
    return out * gl.convert_layout(fade, gl.SliceLayout(1, OUT))[:, None]


@gluon.jit
def _compute(
    group, out_at, qs, ks, vs, q_here, bars, told_at, sinks_at, numbers, walk,
    CAP: gl.constexpr, SINKS: gl.constexpr, ENTROPY: gl.constexpr, DISTANCE: gl.constexpr,
    PEAK: gl.constexpr, PEAK_KEY: gl.constexpr, FIRST_KEYS: gl.constexpr,
    ONE_SIDED: gl.constexpr, KEYS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr,
    TURNS: gl.constexpr,
):  # fmt: skip
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    CROSSES: gl.constexpr = DISTANCE and not ONE_SIDED and DIM == 64  # wider ones lack registers
    ROW: gl.constexpr = gl.SliceLayout(1, SCORES)
    batch, head, heads, queries, block, offset, left, right, length, scale, cap, prefix = numbers
    careful, total = tiles_of_walk(walk, KEYS)
    first_row = block * 128 + group * 64
    rows = first_row + gl.arange(0, 64, ROW)
    place, column = rows + offset, gl.arange(0, KEYS, gl.SliceLayout(0, SCORES))
    factor = 1.0 if CAP else scale
    q = qs.index(group)
    m, best = gl.full([64], NEVER, gl.float32, ROW), gl.full([64], -1, gl.int32, ROW)
    weight = gl.zeros([64], gl.float32, ROW)
    ex, far = weight, weight
    out = gl.zeros([64, DIM], gl.float32, OUT)

    mbarrier.wait(q_here.index(group), 0)
    scores = warpgroup_mma_wait(0, (score(0, q, ks, bars[0], STAGES, SCORES, KEYS),))
    start = start_of(0, walk, careful, KEYS)
    e, fade, m, weight, ex, far, best = fold_careful(
        capped(scores, scale, cap, CAP), start, column, m, weight, ex, far, best, place,
        left, right, length, factor, walk, ENTROPY, DISTANCE, PEAK_KEY, CROSSES,
    )  # fmt: skip
    for tile in range(1, careful):
        scores, adding, p = _begin(
            tile, group, e, out, q, ks, vs, bars, KEYS, STAGES, TURNS, SCORES, WEIGHTS
        )
        start = start_of(tile, walk, careful, KEYS)
        e, fade, m, weight, ex, far, best = fold_careful(
            capped(scores, scale, cap, CAP), start, column, m, weight, ex, far, best, place,
            left, right, length, factor, walk, ENTROPY, DISTANCE, PEAK_KEY, CROSSES,
        )  # fmt: skip
        out = _end(tile, adding, p, fade, bars, STAGES, OUT)
    LANES: gl.constexpr = lanes(e, KEYS).type.layout
    lane = gl.arange(0, 4, gl.SliceLayout(0, LANES))[None, :]
    weight, ex, far = spread(weight, lane), spread(ex, lane), spread(far, lane)
    for tile in range(gl.maximum(careful, 1), total):
        scores, adding, p = _begin(
            tile, group, e, out, q, ks, vs, bars, KEYS, STAGES, TURNS, SCORES, WEIGHTS
        )
        start = start_of(tile, walk, careful, KEYS)
        side = 1.0 if ONE_SIDED else gl.where(start >= walk[3], -1.0, 1.0)
        e, fade, m, weight, ex, far, best = fold_plain(
            capped(scores, scale, cap, CAP), start, column, m, weight, ex, far, best, place,
            factor, side, lane, ENTROPY, DISTANCE, PEAK_KEY, KEYS,
        )  # fmt: skip
        out = _end(tile, adding, p, fade, bars, STAGES, OUT)
    weight, ex, far = gl.sum(weight, 1), gl.sum(ex, 1), gl.sum(far, 1)
    p = gl.convert_layout(e.to(q.dtype), WEIGHTS)
    adding = warpgroup_mma(p, vs.index((total - 1) % STAGES), out, is_async=True)
    if FIRST_KEYS:
        FEW: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST_KEYS, 16])
        mbarrier.wait(bars[0].index(total % STAGES), total // STAGES & 1)
        room = gl.zeros([64, FIRST_KEYS], gl.float32, FEW)
        few = ks.index(total % STAGES).slice(0, FIRST_KEYS).permute((1, 0))
        soon = warpgroup_mma(q, few, room, use_acc=False, is_async=True)
        out, first_scores = warpgroup_mma_wait(0, (adding, soon))
    else:
        out = warpgroup_mma_wait(0, (adding,))

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
    tma.store_wait(0)


@gluon.jit(do_not_specialize=NUMBERS)
def hopper_kernel(
    q_at, k_at, v_at, out_at, lse_at, entropy_at, distance_at, peak_at, peak_key_at, first_at,
    sinks_at, lengths_at, offsets_at, prefix,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: gl.constexpr, SINKS: gl.constexpr, LENGTHS: gl.constexpr, OFFSETS: gl.constexpr,
    ENTROPY: gl.constexpr, DISTANCE: gl.constexpr, PEAK: gl.constexpr, PEAK_KEY: gl.constexpr,
    FIRST_KEYS: gl.constexpr, ONE_SIDED: gl.constexpr, KEYS: gl.constexpr, DIM: gl.constexpr,
    STAGES: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """128 rows of one head, as `forward_kernel`; pointers that are not asked for point anywhere."""
    program, batch = gl.program_id(0), gl.program_id(1)
    blocks = gl.cdiv(queries, 128)
    if ONE_SIDED:  # the last rows of a causal map have most to do: they come first
        block, head = blocks - 1 - program // heads, program % heads
    else:
        block, head = program % blocks, program // blocks
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    first = block * 128 + offset
    last = gl.minimum(block * 128 + 128, queries) - 1 + offset
    walk = walk_of(first, last, left, right, length, DISTANCE and not ONE_SIDED, KEYS)

    Q_TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, DIM], q_at.dtype)
    K_TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, DIM], q_at.dtype)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    qs = gl.allocate_shared_memory(q_at.dtype, [2, 64, DIM], Q_TILE)
    ks = gl.allocate_shared_memory(q_at.dtype, [STAGES, KEYS, DIM], K_TILE)
    vs = gl.allocate_shared_memory(q_at.dtype, [STAGES, KEYS, DIM], K_TILE)
    q_here = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    here = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    for i in gl.static_range(2):
        mbarrier.init(q_here.index(i), count=1)
        mbarrier.init(turns.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(here.index(i), count=1)
        mbarrier.init(free.index(i), count=2)
    fence_async_shared()
    if TURNS:
        mbarrier.arrive(turns.index(0))
    for i in gl.static_range(2):
        mbarrier.expect(q_here.index(i), q_at.block_type.nbytes)
        load_tile(q_at, [batch, head, block * 128 + 64 * i, 0], q_here.index(i), qs.index(i))

    bars = (here, free, turns)
    numbers = (batch, head, heads, queries, block, offset, left, right, length, scale, cap, prefix)
    told_at = (lse_at, entropy_at, distance_at, peak_at, peak_key_at, first_at)
    gl.warp_specialize(
        [
            (_compute, (0, out_at, qs, ks, vs, q_here, bars, told_at, sinks_at, numbers, walk,
                        CAP, SINKS, ENTROPY, DISTANCE, PEAK, PEAK_KEY, FIRST_KEYS, ONE_SIDED,
                        KEYS, DIM, STAGES, TURNS)),
            (_compute, (1, out_at, qs, ks, vs, q_here, bars, told_at, sinks_at, numbers, walk,
                        CAP, SINKS, ENTROPY, DISTANCE, PEAK, PEAK_KEY, FIRST_KEYS, ONE_SIDED,
                        KEYS, DIM, STAGES, TURNS)),
            (_fetch, (k_at, v_at, ks, vs, bars, batch, head // group, walk,
                      FIRST_KEYS, KEYS, STAGES)),
        ],
        [4, 1], [240, 24],  # warps and registers beyond the first group's
    )  # fmt: skip
