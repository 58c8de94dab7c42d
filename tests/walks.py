"""A kernel that writes down which tiles a kernel comes by, and in which order."""

import triton
import triton.language as tl

from multihead.attention.fused.forward import start_of, tiles_of_walk, walk_of


@triton.jit
def walk_kernel(
    found_at, first, last, left, right, length, SIDES: tl.constexpr, KEYS: tl.constexpr
):
    walk = walk_of(first, last, left, right, length, SIDES, KEYS)
    careful, total = tiles_of_walk(walk, KEYS)
    tl.store(found_at, careful)
    tl.store(found_at + 1, total)
    for tile in range(total):
        tl.store(found_at + 2 + tile, start_of(tile, walk, careful, KEYS))
