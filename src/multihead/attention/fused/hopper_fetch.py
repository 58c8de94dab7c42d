# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""The warp that fetches: queries of a block, keys and values of its tiles, into shared memory."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from .forward import start_of, tiles_of_walk
from .hopper_work import laps_of, room_of, work_of

# Triton 3.6 knows them by other names than later ones.
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def fetch(
    given,
    LENGTHS: gl.constexpr, OFFSETS: gl.constexpr, SIDES: gl.constexpr, ONE_SIDED: gl.constexpr,
    FIRST_KEYS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, LAPS: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """Queries of each block, and the tiles of its walk, each as soon as there is room for it."""
    q_at, k_at, v_at, qs, ks, vs, bars, lengths_at, offsets_at, numbers = given
    here, free, q_here, q_free = bars[0], bars[1], bars[3], bars[4]
    reached = 0
    for lap in range(laps_of(numbers[0], LAPS)):
        work = work_of(
            lap, numbers, lengths_at, offsets_at,
            LENGTHS, OFFSETS, SIDES, ONE_SIDED, KEYS, LAPS, GROUPS,
        )  # fmt: skip
        batch, head, block, walk = work[0], work[1], work[2], work[5]
        kv_head = head // numbers[2]
        for group in gl.static_range(GROUPS):
            room, parity = room_of(lap, group, LAPS, GROUPS)
            mbarrier.wait(q_free.index(room), parity ^ 1)
            mbarrier.expect(q_here.index(room), q_at.block_type.nbytes)
            load_tile(q_at, [batch, head, (block * GROUPS + group) * 64, 0], q_here.index(room),
                      qs.index(room))  # fmt: skip
        careful, total = tiles_of_walk(walk, KEYS)
        for tile in range(total):
            stage, turn = (reached + tile) % STAGES, (reached + tile) // STAGES & 1
            start = start_of(tile, walk, careful, KEYS)
            mbarrier.wait(free.index(stage), turn ^ 1)
            mbarrier.expect(here.index(stage), k_at.block_type.nbytes + v_at.block_type.nbytes)
            load_tile(k_at, [batch, kv_head, start, 0], here.index(stage), ks.index(stage))
            load_tile(v_at, [batch, kv_head, start, 0], here.index(stage), vs.index(stage))
        reached += total
        if FIRST_KEYS:  # once more those at the beginning
            stage, turn = reached % STAGES, reached // STAGES & 1
            mbarrier.wait(free.index(stage), turn ^ 1)
            mbarrier.expect(here.index(stage), k_at.block_type.nbytes)
            load_tile(k_at, [batch, kv_head, 0, 0], here.index(stage), ks.index(stage))
            reached += 1
