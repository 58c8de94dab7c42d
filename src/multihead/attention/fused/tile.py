# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""What all kernels share: the scores of a tile, which of them a band lets through, what comes next.

Scores are to base 2: exp2 is what the hardware has. `scale` is scale · log₂ e and, with a softcap,
`cap` is softcap · log₂ e; then scores come capped, and nothing is left to scale.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..band import FAR

NEVER = tl.constexpr(-1.0e30)  # log₂ of a weight of 0: exp2 is 0, and 0 · this is 0
FARTHEST = tl.constexpr(FAR // 2)  # from any key, so that sums of positions fit into 32 bits
LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)

# Sizes and positions change from call to call, with every token that is decoded: a kernel that was
# compiled for some of them serves for all.
NUMBERS = ("queries", "keys", "left", "right", "length", "offset")


@triton.jit
def load_rows(descriptor, batch, head, start, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Rows of one head, (ROWS, DIM); zeros beyond the last row and the last column."""
    return descriptor.load([batch, head, start, 0]).reshape(ROWS, DIM)


@triton.jit
def capped(scores, scale, cap, CAP: tl.constexpr):
    """cap · tanh(scale · s / cap), or what came where there is no cap."""
    if CAP:
        small = tl.exp2(tl.abs(scores) * (scale / cap * -2.8853900817779268))  # e^(−2|y|)
        tanh = (1.0 - small) / (1.0 + small)
        return tl.where(scores < 0, -cap * tanh, cap * tanh)
    return scores


@triton.jit
def inside(ahead, keys, left, right, length):
    """Which keys are in the band; `ahead` is key − position of the query."""
    return (ahead >= -left) & (ahead <= right) & (keys < length)


@triton.jit
def seen(start, column, place, left, right, length):
    """Which keys of a tile each row sees, by one comparison: how far past the row's first one."""
    low = tl.maximum(place - left, 0)
    span = tl.minimum(place + right, length - 1) - low
    low = tl.where(span < 0, -1, low - start)  # past it by 1 or more, which no span reaches
    past = (column[None, :] - low[:, None]).to(tl.uint32, bitcast=True)
    return past <= tl.maximum(span, 0).to(tl.uint32, bitcast=True)[:, None]


@triton.jit
def up(number, STEP: tl.constexpr):
    """The next multiple of STEP."""
    return tl.cdiv(number, STEP) * STEP


@triton.jit
def where_and_how_long(
    batch, offset, length, keys, lengths_at, offsets_at,
    LENGTHS: tl.constexpr, OFFSETS: tl.constexpr,
):  # fmt: skip
    """The position of the first query of a batch row, and how many keys it has."""
    if OFFSETS:
        offset = tl.load(offsets_at + batch)
        offset = tl.minimum(tl.maximum(offset, -FARTHEST), FARTHEST).to(tl.int32)
    length = tl.minimum(length, keys)
    if LENGTHS:
        length = tl.minimum(length, tl.load(lengths_at + batch).to(tl.int32))
    return offset, length


@triton.jit
def keys_of(first, last, left, right, length, KEYS: tl.constexpr):
    """For rows at positions first … last: low, plain_low, plain_high, high.

    Some row sees something of low … high; every row sees all of plain_low … plain_high. All are
    multiples of KEYS but high.
    """
    low = tl.maximum(first - left, 0) // KEYS * KEYS
    high = tl.minimum(last + right + 1, length)
    plain_low = tl.maximum(up(tl.maximum(last - left, 0), KEYS), low)
    plain_high = tl.maximum(tl.minimum(first + right + 1, length), 0) // KEYS * KEYS
    return low, plain_low, tl.maximum(plain_high, plain_low), high


@triton.jit
def tiles_of_rows(first, left, right, length, offset, queries,
                  ROWS: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """From where to where the tiles lie of which some of the ROWS from `first` on see something."""
    top, bottom = first + offset, tl.minimum(first + ROWS, queries) - 1 + offset
    low = tl.maximum(top - left, 0) // KEYS * KEYS
    return low, tl.maximum(up(tl.minimum(bottom + right + 1, length), KEYS), low)


@triton.jit
def rows_of_keys(first, last, left, right, length, offset, queries, ROWS: tl.constexpr):
    """For the keys first … last: which rows see some of them, and which all; as `keys_of`."""
    low = tl.maximum(first - right - offset, 0) // ROWS * ROWS
    high = tl.minimum(tl.minimum(last, length - 1) + left - offset + 1, queries)
    high = tl.where(first < length, high, 0)
    plain_low = tl.maximum(up(tl.maximum(last - right - offset, 0), ROWS), low)
    plain_high = tl.maximum(tl.minimum(first + left - offset + 1, queries), 0) // ROWS * ROWS
    plain_high = tl.where(last < length, tl.maximum(plain_high, plain_low), plain_low)
    return low, plain_low, plain_high, high


@triton.jit
def careful_tiles(low, plain_low, plain_high, high, STEP: tl.constexpr):
    """How far tiles reach before the plain ones, and in all, in steps of STEP."""
    before = tl.maximum(tl.minimum(plain_low, up(high, STEP)) - low, 0)
    return before, before + tl.maximum(high - plain_high, 0)


@triton.jit
def tile_at(reached, low, plain_low, plain_high, before, CAREFUL: tl.constexpr):
    """Where a tile starts, of the plain ones or of those that are looked at with care."""
    if CAREFUL:
        return tl.where(reached >= before, plain_high + reached - before, low + reached)
    return plain_low + reached


@triton.jit
def lse_of_rows(lse_at, at, written):
    """log₂ of what a row's weights divide by; +inf where it has none, so that they are 0."""
    lse = tl.load(lse_at + at, mask=written, other=float("-inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse * LOG2E)
