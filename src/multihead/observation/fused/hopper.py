# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""What each cell of a map holds and what each key receives, swept on Hopper (hopper_sweep.py)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...attention.fused.hopper_fold import by_thread
from ...attention.fused.hopper_sweep import own_of, send, set_out, weights_of
from ...attention.fused.tile import (
    NUMBERS,
    lse_of_rows,
    rows_of_keys,
    tiles_of_rows,
    up,
    where_and_how_long,
)

PART = gl.constexpr(16)  # rows of a warp: what it adds up of a cell is one number


@gluon.jit
def _of_threads(weights, CELLS: gl.constexpr):
    """Sum and largest of what each of a row's four threads holds of each cell, (row, CELLS, 4)."""
    mine = weights.reshape([weights.shape[0], CELLS, weights.shape[1] // CELLS, 4, 2])
    return gl.sum(gl.sum(mine, 2), 3), gl.max(gl.max(mine, 2), 3)


@gluon.jit
def _of_warps(tile, WARPS: gl.constexpr, CELLS: gl.constexpr):
    """(row, CELLS, 4) as (warp, 2, CELLS, 32): two rows of each of its threads."""
    tile = tile.reshape([WARPS, 2, PART // 2, CELLS, 4]).permute((0, 1, 3, 2, 4))
    return tile.reshape([WARPS, 2, CELLS, 32])


@gluon.jit
def _write(total, largest, sum_at, largest_at, part, cell, parts, cells, CELLS: gl.constexpr):
    """Each warp lays its 16 rows together."""
    WARPS: gl.constexpr = total.shape[0] // PART
    total, largest = _of_warps(total, WARPS, CELLS), _of_warps(largest, WARPS, CELLS)
    total = gl.sum(gl.sum(total, 1), 2)
    # Weights compare as their bits do, and of whole numbers a warp finds the largest at once.
    largest = gl.max(gl.max(largest, 1).to(gl.int32, bitcast=True), 2).to(gl.float32, bitcast=True)
    down = part + gl.arange(0, WARPS, gl.SliceLayout(1, total.type.layout))[:, None]
    across = cell + gl.arange(0, CELLS, gl.SliceLayout(0, total.type.layout))[None, :]
    real = (down < parts) & (across < cells)
    gl.store(sum_at + down * cells + across, total, mask=real)
    gl.store(largest_at + down * cells + across, largest, mask=real)


@gluon.jit(do_not_specialize=[*NUMBERS, "cells"])
def cells_on_hopper(
    q_at, k_at, lse_at, cells_at, lengths_at, offsets_at, cells,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: gl.constexpr, LENGTHS: gl.constexpr, OFFSETS: gl.constexpr, UNBOUNDED: gl.constexpr,
    WIDTH: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, DIM: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Of cells that are all WIDTH wide: sums of every 16 rows, then the largest weights of these.

    cells_at is (2, batch, heads, 16 rows, cell); where no tile lies nothing is written. Tiles come
    in order, so that a cell of several is whole before the next begins.
    """
    program, batch = gl.program_id(0), gl.program_id(1)
    block, head = gl.cdiv(queries, ROWS) - 1 - program // heads, program % heads
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    first = block * ROWS
    low, high = tiles_of_rows(first, left, right, length, offset, queries, ROWS, KEYS)
    plain = low
    if UNBOUNDED:  # behind the rows: then all tiles up to the first row's last key need no mask
        plain = gl.maximum(gl.minimum(first + offset + right + 1, length), 0) // KEYS * KEYS

    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [ROWS // 16, 1], [16, KEYS, 16])
    CELLS: gl.constexpr = 1 if WIDTH > KEYS else KEYS // WIDTH  # of a tile
    q, ks, here = set_out(
        q_at, k_at, batch, head, head // group, first, low, high, ROWS, KEYS, DIM, STAGES
    )

    at = (batch * heads + head).to(gl.int64)
    parts = queries // PART
    sum_at = cells_at + at * parts * cells
    largest_at = sum_at + gl.num_programs(1).to(gl.int64) * heads * parts * cells
    row = first + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    lse2 = lse_of_rows(lse_at + at * queries, row, row < queries)
    room, tile = gl.zeros([ROWS, KEYS], gl.float32, SCORES), low - low
    total, largest = _of_threads(by_thread(room), CELLS)
    q = own_of(q, here, SCORES, STAGES)
    for CAREFUL in gl.static_range(2):
        for start in range(plain if CAREFUL else low, high if CAREFUL else plain, KEYS):
            stage = tile % STAGES
            mbarrier.wait(here.index(stage), tile // STAGES & 1)
            k = ks.index(stage).permute((1, 0))
            soon = warpgroup_mma(q, k, room, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, (soon,))
            send(k_at, ks, here, stage, batch, head // group, start + STAGES * KEYS, high)
            tile += 1
            weights = weights_of(
                scores, lse2, start, row + offset, left, right, length, scale, cap,
                CAREFUL, UNBOUNDED, CAP,
            )  # fmt: skip
            some, most = _of_threads(weights, CELLS)
            begins = start % WIDTH == 0 or WIDTH <= KEYS
            total = gl.where(begins, some, total + some)
            largest = gl.where(begins, most, gl.maximum(largest, most))
            if WIDTH <= KEYS or (start + KEYS) % WIDTH == 0 or start + KEYS >= high:
                _write(total, largest, sum_at, largest_at, first // PART, start // WIDTH,
                       parts, cells, CELLS)  # fmt: skip


@gluon.jit(do_not_specialize=NUMBERS)
def received_on_hopper(
    q_at, k_at, lse_at, received_at, lengths_at, offsets_at,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: gl.constexpr, LENGTHS: gl.constexpr, OFFSETS: gl.constexpr,
    ROWS: gl.constexpr, KEYS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Σᵢ pᵢⱼ of the keys of a program, tiles of rows one upon another, and laid together last."""
    program, batch = gl.program_id(0), gl.program_id(1)
    block, head = program // heads, program % heads  # the first keys are seen by most rows
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    first, last = block * KEYS, block * KEYS + KEYS - 1
    low, plain_low, plain_high, high = rows_of_keys(
        first, last, left, right, length, offset, queries, ROWS
    )
    high = gl.maximum(up(high, ROWS), low)
    plain_low = gl.minimum(plain_low, high)  # of keys that nobody sees they lie behind
    plain_high = gl.minimum(gl.maximum(plain_high, plain_low), high)

    # Groups of four warps side by side, each with 64 keys: rows that arrive serve them all.
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, KEYS // 64], [16, 64, 16])
    k, qs, here = set_out(
        k_at, q_at, batch, head // group, head, first, low, high, KEYS, ROWS, DIM, STAGES
    )

    at = (batch * heads + head).to(gl.int64)
    down = gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    room, tile = gl.zeros([ROWS, KEYS], gl.float32, SCORES), low - low
    total = by_thread(room)
    mbarrier.wait(here.index(STAGES), 0)
    for part in gl.static_range(3):  # rows that see some, all, and some of these keys
        begin = low if part == 0 else plain_low if part == 1 else plain_high
        for start in range(begin, plain_low if part == 0 else plain_high if part == 1 else high,
                           ROWS):  # fmt: skip
            row = start + down
            lse2 = lse_of_rows(lse_at + at * queries, row, row < queries)
            stage = tile % STAGES
            mbarrier.wait(here.index(stage), tile // STAGES & 1)
            q = qs.index(stage)
            soon = warpgroup_mma(q, k.permute((1, 0)), room, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, (soon,))
            send(q_at, qs, here, stage, batch, head, start + STAGES * ROWS, high)
            tile += 1
            total += weights_of(
                scores, lse2, first, row + offset, left, right, length, scale, cap,
                part != 1, False, CAP,
            )  # fmt: skip
    FLAT: gl.constexpr = gl.SliceLayout(0, SCORES)
    key = first + gl.arange(0, KEYS, FLAT)
    found = gl.convert_layout(gl.sum(total, 0).reshape([KEYS]), FLAT)
    gl.store(received_at + at * keys + key, found, mask=key < keys)
