# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""What a group of warps does with a tile, on Hopper: begin, end, or pass it over.

`bars` are the barriers: tiles here, and free again; turns at the tensor cores; queries here, and
free again.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper_fold import halved
from .hopper_work import room_of


@gluon.jit
def begin(
    at, held, turn, group, e, out, q, ks, vs, bars,
    KEYS: gl.constexpr, STAGES: gl.constexpr, TURNS: gl.constexpr, GROUPS: gl.constexpr,
    SCORES: gl.constexpr, WEIGHTS: gl.constexpr,
):  # fmt: skip
    """A tile's scores, and the values of the one whose weights are held, under way to `out`."""
    here, turns, stage = bars[0], bars[2], at % STAGES
    if TURNS:  # while one group folds, another has the tensor cores
        mbarrier.wait(turns.index(group), turn & 1)
    mbarrier.wait(here.index(stage), at // STAGES & 1)
    room = gl.zeros([64, KEYS], gl.float32, SCORES)
    keys = ks.index(stage).permute((1, 0))
    soon = warpgroup_mma(q, keys, room, use_acc=False, is_async=True)
    p = halved(e, q.dtype, WEIGHTS, GROUPS > 2)
    adding = warpgroup_mma(p, vs.index(held % STAGES), out, is_async=True)
    if TURNS:
        mbarrier.arrive(turns.index((group + 1) % GROUPS))
    return warpgroup_mma_wait(1, (soon,)), adding, p


@gluon.jit
def end(held, adding, p, fade, bars, done, STAGES: gl.constexpr, OUT: gl.constexpr):
    """Those values are in; all that was faded fades."""
    out, _ = warpgroup_mma_wait(0, (adding, p))
    mbarrier.arrive(bars[1].index(held % STAGES), pred=done)
    return out * gl.convert_layout(fade, gl.SliceLayout(1, OUT))[:, None]


@gluon.jit
def in_sight(walk, careful, last, right, length, KEYS: gl.constexpr, STAGES: gl.constexpr):
    """How many of the tiles that are looked at with care reach up to what the `last` row sees.

    Of a block's groups of rows the first see less than the last. But while one tile's values wait,
    so many are passed over at most that the next one finds a place in the ring.
    """
    edge = gl.minimum(last + right + 1, length)
    seen = gl.cdiv(gl.minimum(edge - walk[0], walk[5]), KEYS)
    seen += gl.cdiv(gl.maximum(edge - walk[2], 0), KEYS)
    return gl.minimum(gl.maximum(gl.maximum(seen, careful - (STAGES - 2)), 1), careful)


@gluon.jit
def pass_over(
    tile, group, turn, bars,
    STAGES: gl.constexpr, TURNS: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """A tile of which none of this group's rows sees anything: others may have its place."""
    here, free, turns = bars[0], bars[1], bars[2]
    if TURNS:
        mbarrier.wait(turns.index(group), turn & 1)
        mbarrier.arrive(turns.index((group + 1) % GROUPS))
    mbarrier.wait(here.index(tile % STAGES), tile // STAGES & 1)
    mbarrier.arrive(free.index(tile % STAGES))


@gluon.jit
def leave(lap, group, bars, LAPS: gl.constexpr, GROUPS: gl.constexpr):
    """Waits until what the last block stored has left the room of its queries, and frees that."""
    if lap > 0:
        tma.store_wait(0)
        mbarrier.arrive(bars[4].index(room_of(lap - 1, group, LAPS, GROUPS)[0]))
