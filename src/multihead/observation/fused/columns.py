# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""What each key receives: identity 3, the transposed pass, keys outer and queries inner, given lse.

A program takes some keys of one head and walks over the rows that may see them. It alone adds up
for its keys, in one order: no atomics, and every run gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention.fused.again import launch
from ...attention.fused.launch import pointers_of
from ...attention.fused.question import Question
from ...attention.fused.sizes import ring_of, sweep_sizes
from ...attention.fused.tensors import blocks, on_its_device, plain, rows_of, tiles_of, width
from ...attention.fused.tile import (
    NEVER,
    NUMBERS,
    capped,
    careful_tiles,
    inside,
    load_rows,
    lse_of_rows,
    rows_of_keys,
    tile_at,
    where_and_how_long,
)

_WIDEST_ON_HOPPER = 128  # of wider ones a multiprocessor has room for two small programs alone


@triton.jit
def _add_rows(
    total, k, q_at, lse_at, batch, head, heads, start, here, queries,
    left, right, length, offset, scale, cap,
    CAREFUL: tl.constexpr, CAP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    q = load_rows(q_at, batch, head, start, ROWS, DIM)
    scores = capped(tl.dot(k, q.T), scale, cap, CAP)
    rows = start + tl.arange(0, ROWS)
    at = (batch * heads + head).to(tl.int64) * queries + rows
    x = scores * (1.0 if CAP else scale) - lse_of_rows(lse_at, at, rows < queries)[None, :]
    if CAREFUL:
        ahead = here[:, None] - (rows + offset)[None, :]
        x = tl.where(inside(ahead, here[:, None], left, right, length), x, NEVER)
    return total + tl.sum(tl.exp2(x), 1)


@triton.jit(do_not_specialize=NUMBERS)
def received_kernel(
    q_at, k_at, lse_at, received_at, lengths_at, offsets_at,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: tl.constexpr, LENGTHS: tl.constexpr, OFFSETS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    program, batch = tl.program_id(0), tl.program_id(1)
    block, head = program // heads, program % heads  # the first keys are seen by most rows
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    first, last = block * KEYS, block * KEYS + KEYS - 1
    here = first + tl.arange(0, KEYS)
    low, plain_low, plain_high, high = rows_of_keys(
        first, last, left, right, length, offset, queries, ROWS
    )
    k = load_rows(k_at, batch, head // group, first, KEYS, DIM)
    total = tl.zeros([KEYS], tl.float32)
    before, after = careful_tiles(low, plain_low, plain_high, high, ROWS)
    for CAREFUL in tl.static_range(2):
        for tile in tl.range(0, after if CAREFUL else plain_high - plain_low, ROWS):
            start = tile_at(tile, low, plain_low, plain_high, before, CAREFUL)
            total = _add_rows(
                total, k, q_at, lse_at, batch, head, heads, start, here, queries,
                left, right, length, offset, scale, cap, CAREFUL, CAP, ROWS, DIM,
            )  # fmt: skip
    at = (batch * heads + head).to(tl.int64) * keys + here
    tl.store(received_at + at, total, mask=here < keys)


def _registers(dims: int) -> int:
    """Of a thread on Hopper: few, so that a multiprocessor has room for seven small programs, or
    three large ones. A few numbers more lie in its cache then, which costs less."""
    return 72 if dims <= 64 else 80


@on_its_device
def received(question: Question, lse: Tensor) -> Tensor:
    """Σᵢ pᵢⱼ, (batch, heads, key)."""
    q, k = plain(question.query), plain(question.key)
    batch, heads, _, dim = q.shape
    dims, keys = width(dim), k.shape[2]
    found = q.new_empty(batch, heads, keys, dtype=torch.float32)
    ring = ring_of(q.device, dims)
    if ring is not None and dims <= _WIDEST_ON_HOPPER:
        from .hopper import received_on_hopper

        down, _ = ring.sweep  # keys of a program
        launch(
            received_on_hopper, (blocks(keys, down) * heads, batch),
            {"num_warps": down // 16, "maxnreg": _registers(dims)},
            tiles_of(q, 64, dims), tiles_of(k, down, dims), lse.contiguous(), found,
            **pointers_of(question, lse), ROWS=64, KEYS=down, DIM=dims, STAGES=2,
        )  # fmt: skip
        return found
    # Keys go down here, and rows across.
    down, across, warps, stages = sweep_sizes(q.device, dims)
    received_kernel[(blocks(keys, down) * heads, batch)](
        rows_of(q, across, dims), rows_of(k, down, dims), lse.contiguous(), found,
        **question.numbers, ROWS=across, KEYS=down, DIM=dims, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return found


def seen_by(question: Question) -> Tensor:
    """How many queries may see each key, (#batch, 1, key)."""
    band, queries, keys = question.band, question.query.shape[2], question.key.shape[2]
    device = question.query.device
    key = torch.arange(keys, device=device)
    offset = question.offset if question.offsets is None else question.offsets[:, None].to(device)
    low = (key - band.right - offset).clamp(min=0)
    count = ((key + band.left - offset).clamp(max=queries - 1) - low + 1).clamp(min=0)
    count = torch.where(key < band.length, count, 0)
    if band.lengths is not None:
        count = torch.where(key < band.lengths.to(device)[:, None], count, 0)
    return count.reshape(-1, 1, keys)
