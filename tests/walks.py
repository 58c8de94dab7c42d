"""Kernels that write down where other kernels come by, and in which order."""

import triton
import triton.language as tl

from multihead.attention.fused.forward import start_of, tiles_of_walk, walk_of
from multihead.attention.fused.hopper_work import divided, laps_of, room_of, work_of


@triton.jit
def walk_kernel(
    found_at, first, last, left, right, length, SIDES: tl.constexpr, KEYS: tl.constexpr
):
    """Which tiles a block of rows walks over."""
    walk = walk_of(first, last, left, right, length, SIDES, KEYS)
    careful, total = tiles_of_walk(walk, KEYS)
    tl.store(found_at, careful)
    tl.store(found_at + 1, total)
    for tile in range(total):
        tl.store(found_at + 2 + tile, start_of(tile, walk, careful, KEYS))


@triton.jit
def lap_kernel(
    found_at, heads, queries, works, across, by, by_shift, by_heads, by_heads_shift,
    MOST: tl.constexpr, ONE_SIDED: tl.constexpr, LAPS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Which blocks a program takes, and the room that the second group's queries have."""
    far = 1 << 30
    numbers = (works, heads, 1, queries, queries, far, far, far, 0, 0, 0, 0, across,
               (by, by_shift), (by_heads, by_heads_shift))  # fmt: skip
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    laps = laps_of(works, LAPS)
    for lap in range(laps):
        work = work_of(
            lap, numbers, found_at, found_at, False, False, False, ONE_SIDED, 128, LAPS, GROUPS
        )
        room, parity = room_of(lap, 1, LAPS, GROUPS)
        at = found_at + (program * MOST + lap) * 5
        tl.store(at, work[0])
        tl.store(at + 1, work[1])
        tl.store(at + 2, work[2])
        tl.store(at + 3, room)
        tl.store(at + 4, parity)


@triton.jit
def divided_kernel(found_at, numbers_at, by, by_shift, MANY: tl.constexpr):
    """Many numbers, divided."""
    many = tl.arange(0, MANY)
    tl.store(found_at + many, divided(tl.load(numbers_at + many), (by, by_shift)))
