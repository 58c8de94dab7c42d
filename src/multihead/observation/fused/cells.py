# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""The whole map in cells × cells: identity 4, each tile reduced as it goes by.

A program takes a row of cells. Small cells share a tile, each widened to a power of two; a large
one is several tiles, added up before it is reduced. Every cell is one program's: no atomics.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention.fused.launch import INTERPRETED, width
from ...attention.fused.question import Question
from ...attention.fused.tile import NEVER, NUMBERS, capped, inside, lse_of_rows, where_and_how_long

_SIDE = 16 if INTERPRETED else 64  # of a tile
_AT_ONCE = 2048  # rows whose links are counted together


@triton.jit(do_not_specialize=[*NUMBERS, "cells"])
def cells_kernel(
    q_at, k_at, lse_at, sum_at, largest_at, row_edges_at, key_edges_at, lengths_at, offsets_at,
    q_batch, q_head, q_row, k_batch, k_head, k_row, dim, cells,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: tl.constexpr, LENGTHS: tl.constexpr, OFFSETS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr, DOWN: tl.constexpr,
    ACROSS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    program, batch = tl.program_id(0), tl.program_id(1)
    groups = tl.cdiv(cells, SIDE // HEIGHT)
    head, cell_row = program % heads, (groups - 1 - program // heads) * (SIDE // HEIGHT)
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    side, column = tl.arange(0, SIDE), tl.arange(0, DIM)
    q_at += batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    k_at += batch.to(tl.int64) * k_batch + (head // group).to(tl.int64) * k_head
    lse_at += (batch * heads + head).to(tl.int64) * queries
    row_cell = cell_row + side // HEIGHT
    row_first = tl.load(row_edges_at + row_cell, mask=row_cell < cells, other=0)
    row_end = tl.load(row_edges_at + row_cell + 1, mask=row_cell < cells, other=0)
    top = tl.load(row_edges_at + cell_row) + offset
    bottom = tl.load(row_edges_at + tl.minimum(cell_row + SIDE // HEIGHT, cells)) - 1 + offset
    for cell in tl.range(0, cells, SIDE // WIDTH):
        begin = tl.load(key_edges_at + cell)
        end = tl.load(key_edges_at + tl.minimum(cell + SIDE // WIDTH, cells))
        if (end > top - left) & (begin <= bottom + right) & (begin < length):
            key_cell = cell + side // WIDTH
            key_first = tl.load(key_edges_at + key_cell, mask=key_cell < cells, other=0)
            key_end = tl.load(key_edges_at + key_cell + 1, mask=key_cell < cells, other=0)
            total = tl.zeros([SIDE, SIDE], tl.float32)
            largest = tl.zeros([SIDE, SIDE], tl.float32)
            for part in tl.range(0, DOWN * ACROSS):
                row = row_first + side % HEIGHT + part // ACROSS * HEIGHT
                key = key_first + side % WIDTH + part % ACROSS * WIDTH
                real_row, real_key = row < row_end, key < key_end
                q = tl.load(
                    q_at + row.to(tl.int64)[:, None] * q_row + column[None, :],
                    mask=real_row[:, None] & (column < dim)[None, :], other=0.0,
                )  # fmt: skip
                k = tl.load(
                    k_at + key.to(tl.int64)[:, None] * k_row + column[None, :],
                    mask=real_key[:, None] & (column < dim)[None, :], other=0.0,
                )  # fmt: skip
                scores = capped(tl.dot(q, k.T), scale, cap, CAP)
                x = scores * (1.0 if CAP else scale) - lse_of_rows(lse_at, row, real_row)[:, None]
                ahead = key[None, :] - (row + offset)[:, None]
                seen = inside(ahead, key[None, :], left, right, length) & real_key[None, :]
                e = tl.exp2(tl.where(seen, x, NEVER))
                total += e
                largest = tl.maximum(largest, e)
            shape: tl.constexpr = (SIDE // HEIGHT, HEIGHT, SIDE // WIDTH, WIDTH)
            down, across = tl.arange(0, SIDE // HEIGHT), tl.arange(0, SIDE // WIDTH)
            into = ((batch * heads + head).to(tl.int64) * cells + cell_row + down[:, None]) * cells
            into += cell + across[None, :]
            real = (cell_row + down < cells)[:, None] & (cell + across < cells)[None, :]
            tl.store(sum_at + into, tl.sum(tl.sum(total.reshape(shape), 3), 1), mask=real)
            tl.store(largest_at + into, tl.max(tl.max(largest.reshape(shape), 3), 1), mask=real)


def cells_of(question: Question, lse: Tensor, edges: list[list[int]]) -> tuple[Tensor, Tensor]:
    """The sum and the largest weight of each cell, (batch, heads, cells, cells)."""
    q, k = (t if t.stride(-1) == 1 else t.contiguous() for t in (question.query, question.key))
    batch, heads, _, dim = q.shape
    cells = len(edges[0]) - 1
    total = q.new_zeros(batch, heads, cells, cells, dtype=torch.float32)
    largest = torch.zeros_like(total)
    longest = [max(b - a for a, b in pairwise(some)) for some in edges]
    height, across = (min(_SIDE, triton.next_power_of_2(max(1, n))) for n in longest)
    row_edges, key_edges = (torch.tensor(e, dtype=torch.int32).to(q.device) for e in edges)
    cells_kernel[(triton.cdiv(cells, _SIDE // height) * heads, batch)](
        q, k, lse.contiguous(), total, largest, row_edges, key_edges, **question.numbers,
        q_batch=q.stride(0), q_head=q.stride(1), q_row=q.stride(2), k_batch=k.stride(0),
        k_head=k.stride(1), k_row=k.stride(2), dim=dim, cells=cells, HEIGHT=height, WIDTH=across,
        SIDE=_SIDE, DOWN=-(-longest[0] // height) or 1, ACROSS=-(-longest[1] // across) or 1,
        DIM=width(dim), num_warps=4, num_stages=3,
    )  # fmt: skip
    return total, largest


def pairs_of(question: Question, edges: list[list[int]]) -> Tensor:
    """How many links of each cell are allowed, (#batch, 1, cells, cells).

    A row sees one run of keys; of those below an edge there are so many, and a cell has those
    between two edges.
    """
    band, device = question.band, question.query.device
    rows, keys = edges
    offset = question.offset if question.offsets is None else question.offsets.to(device)[:, None]
    edge = torch.tensor(keys, device=device)
    end = torch.tensor(question.key.shape[2], device=device).clamp(max=band.length)
    if band.lengths is not None:
        end = end.minimum(band.lengths.to(device)[:, None])
    batch = 1 if isinstance(offset, int) and band.lengths is None else question.query.shape[0]
    below = torch.zeros(batch, len(rows) - 1, len(keys), dtype=torch.int64, device=device)
    sizes = torch.tensor(rows, device=device).diff()
    cell = torch.arange(len(sizes), device=device).repeat_interleave(sizes)  # of each row
    for some in torch.arange(rows[-1], device=device).split(_AT_ONCE):
        place = some + offset  # (#batch, row)
        low = (place - band.left).clamp(min=0)
        high = (place + band.right + 1).minimum(end).maximum(low)
        low, high = (t.reshape(-1, len(some), 1) for t in (low, high))
        seen = (edge.minimum(high) - low).clamp(min=0)  # (#batch, row, edge)
        below.index_add_(1, cell[some], seen.expand(batch, -1, -1))
    return below.diff(dim=-1)[:, None]
