# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false
"""The whole map in cells × cells: identity 4, each tile reduced as it goes by.

A program takes a row of cells. Small cells share a tile, a large one is several tiles, added up
before it is reduced. Where all cells have one size, a power of two, tiles lie side by side; else
each cell is widened to the next power of two, and what is beyond it left out. Every cell is one
program's: no atomics.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention.band import FAR
from ...attention.fused.again import INTERPRETED, launch
from ...attention.fused.launch import pointers_of
from ...attention.fused.question import Question
from ...attention.fused.sizes import Ring, cell_stages, ring_of
from ...attention.fused.tensors import (
    blocks,
    on_device,
    on_its_device,
    plain,
    rows_of,
    tiles_of,
    width,
)
from ...attention.fused.tile import (
    NEVER,
    NUMBERS,
    capped,
    inside,
    load_rows,
    lse_of_rows,
    tiles_of_rows,
    where_and_how_long,
)

_SIDE = 16 if INTERPRETED else 64  # of a tile
_AT_ONCE = 2048  # rows whose links are counted together
_PART, _NARROWEST = 16, 8  # of the Hopper kernel: rows of a warp, keys of the narrowest cell


@triton.jit
def _rows_at(at, edges_at, cell, part, step, dim, cells, STRETCH: tl.constexpr,
             SIDE: tl.constexpr, DIM: tl.constexpr):  # fmt: skip
    """Rows of the cells from `cell` on, each widened to STRETCH: which, whether real, what."""
    side, column = tl.arange(0, SIDE), tl.arange(0, DIM)
    mine = cell + side // STRETCH
    first = tl.load(edges_at + mine, mask=mine < cells, other=0)
    end = tl.load(edges_at + mine + 1, mask=mine < cells, other=0)
    row = first + side % STRETCH + part * STRETCH
    read = (row < end)[:, None] & (column < dim)[None, :]
    return (
        row,
        row < end,
        tl.load(at + row.to(tl.int64)[:, None] * step + column[None, :], mask=read, other=0.0),
    )


@triton.jit
def _one_tile(
    total, largest, step, q_at, k_at, lse_at, sum_at, largest_at, row_edges_at, key_edges_at,
    q_row, k_row, dim, cells, cell_row, batch, head, heads, kv_head, queries, keys,
    left, right, length, offset, scale, cap,
    CAREFUL: tl.constexpr, CAP: tl.constexpr, EVEN: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, SIDE: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    DIM: tl.constexpr,
):  # fmt: skip
    """One tile of a cell, or of several; with the last of a cell it is written."""
    PARTS: tl.constexpr = DOWN * ACROSS
    cell, part = step // PARTS * (SIDE // WIDTH), step % PARTS
    side = tl.arange(0, SIDE)
    if EVEN:
        first_row = cell_row * HEIGHT * DOWN + part // ACROSS * SIDE
        first_key = cell * WIDTH * ACROSS + part % ACROSS * SIDE
        q = load_rows(q_at, batch, head, first_row, SIDE, DIM)
        k = load_rows(k_at, batch, kv_head, first_key, SIDE, DIM)
        row, key = first_row + side, first_key + side
        real_row, real_key = row < queries, key < keys
    else:
        row, real_row, q = _rows_at(
            q_at, row_edges_at, cell_row, part // ACROSS, q_row, dim, cells, HEIGHT, SIDE, DIM
        )
        key, real_key, k = _rows_at(
            k_at, key_edges_at, cell, part % ACROSS, k_row, dim, cells, WIDTH, SIDE, DIM
        )
    scores = capped(tl.dot(q, k.T), scale, cap, CAP)
    x = scores * (1.0 if CAP else scale) - lse_of_rows(lse_at, row, real_row)[:, None]
    if CAREFUL:
        ahead = key[None, :] - (row + offset)[:, None]
        seen = inside(ahead, key[None, :], left, right, length) & real_key[None, :]
        x = tl.where(seen, x, NEVER)
    e = tl.exp2(x)
    if PARTS == 1:
        total, largest = e, e
    else:
        total = tl.where(part == 0, e, total + e)
        largest = tl.where(part == 0, e, tl.maximum(largest, e))
    if part == PARTS - 1:
        shape: tl.constexpr = (SIDE // HEIGHT, HEIGHT, SIDE // WIDTH, WIDTH)
        down, across = tl.arange(0, SIDE // HEIGHT), tl.arange(0, SIDE // WIDTH)
        into = ((batch * heads + head).to(tl.int64) * cells + cell_row + down[:, None]) * cells
        into += cell + across[None, :]
        real = (cell_row + down < cells)[:, None] & (cell + across < cells)[None, :]
        tl.store(sum_at + into, tl.sum(tl.sum(total.reshape(shape), 3), 1), mask=real)
        tl.store(largest_at + into, tl.max(tl.max(largest.reshape(shape), 3), 1), mask=real)
    return total, largest


@triton.jit(do_not_specialize=[*NUMBERS, "cells"])
def cells_kernel(
    q_at, k_at, lse_at, sum_at, largest_at, row_edges_at, key_edges_at, lengths_at, offsets_at,
    q_batch, q_head, q_row, k_batch, k_head, k_row, dim, cells,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: tl.constexpr, LENGTHS: tl.constexpr, OFFSETS: tl.constexpr, EVEN: tl.constexpr,
    UNBOUNDED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr,
    DOWN: tl.constexpr, ACROSS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    program, batch = tl.program_id(0), tl.program_id(1)
    groups = tl.cdiv(cells, SIDE // HEIGHT)
    head, cell_row = program % heads, (groups - 1 - program // heads) * (SIDE // HEIGHT)
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    kv_head = head // group
    if not EVEN:
        q_at += batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
        k_at += batch.to(tl.int64) * k_batch + kv_head.to(tl.int64) * k_head
    lse_at += (batch * heads + head).to(tl.int64) * queries
    below = tl.minimum(cell_row + SIDE // HEIGHT, cells)
    top = tl.load(row_edges_at + cell_row) + offset
    bottom = tl.load(row_edges_at + below) - 1 + offset
    # The cells that some of these rows see, in groups of a tile's width.
    low, high = tl.maximum(top - left, 0), tl.minimum(bottom + right + 1, length)
    low = ((low + 1).to(tl.int64) * cells - 1) // keys
    high = (high.to(tl.int64) * cells - 1) // keys + 1
    PARTS: tl.constexpr = DOWN * ACROSS
    low, high = tl.minimum(tl.maximum(low, 0), cells), tl.minimum(tl.maximum(high, 0), cells)
    low = low.to(tl.int32) // (SIDE // WIDTH) * PARTS
    high = tl.cdiv(high.to(tl.int32), SIDE // WIDTH) * PARTS
    # Those before the diagonal need no mask where all cells have one size.
    middle = low
    if EVEN and UNBOUNDED:
        middle = tl.maximum(tl.minimum(top + right + 1, length), 0) // (SIDE * ACROSS) * PARTS
        middle = tl.minimum(tl.maximum(middle, low), high)
    total = tl.zeros([SIDE, SIDE], tl.float32)
    largest = tl.zeros([SIDE, SIDE], tl.float32)
    for CAREFUL in tl.static_range(2):
        for step in tl.range(middle if CAREFUL else low, high if CAREFUL else middle):
            total, largest = _one_tile(
                total, largest, step, q_at, k_at, lse_at, sum_at, largest_at, row_edges_at,
                key_edges_at, q_row, k_row, dim, cells, cell_row, batch, head, heads, kv_head,
                queries, keys, left, right, length, offset, scale, cap,
                CAREFUL, CAP, EVEN, HEIGHT, WIDTH, SIDE, DOWN, ACROSS, DIM,
            )  # fmt: skip


@triton.jit(do_not_specialize=[*NUMBERS, "cells", "parts"])
def together_kernel(
    parts_at, sum_at, largest_at, lengths_at, offsets_at, cells, parts,
    heads, group, queries, keys, left, right, length, offset, scale, cap,
    CAP: tl.constexpr, LENGTHS: tl.constexpr, OFFSETS: tl.constexpr,
    WIDTH: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    ACROSS: tl.constexpr,
):  # fmt: skip
    """A row of cells from its parts of PART rows each: of those that the Hopper kernel wrote."""
    cell_row, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    offset, length = where_and_how_long(
        batch, offset, length, keys, lengths_at, offsets_at, LENGTHS, OFFSETS
    )
    row = (batch * heads + head).to(tl.int64) * cells + cell_row
    beyond = tl.num_programs(2).to(tl.int64) * heads * cells * parts * cells  # to the largest
    for start in tl.range(0, cells, ACROSS):
        cell = start + tl.arange(0, ACROSS)
        total, largest = tl.zeros([ACROSS], tl.float32), tl.zeros([ACROSS], tl.float32)
        for part in tl.range(0, parts):
            first = (cell_row * parts + part) * PART // ROWS * ROWS
            low, high = tiles_of_rows(first, left, right, length, offset, queries, ROWS, KEYS)
            end = tl.where(low < high, high, 0)  # rows that see nothing wrote nothing
            written = (cell < cells) & ((cell + 1) * WIDTH > low) & (cell * WIDTH < end)
            at = parts_at + (row * parts + part) * cells + cell
            total += tl.load(at, mask=written, other=0.0)
            largest = tl.maximum(largest, tl.load(at + beyond, mask=written, other=0.0))
        tl.store(sum_at + row * cells + cell, total, mask=cell < cells)
        tl.store(largest_at + row * cells + cell, largest, mask=cell < cells)


@on_its_device
def cells_of(question: Question, lse: Tensor, edges: list[list[int]]) -> tuple[Tensor, Tensor]:
    """The sum and the largest weight of each cell, (batch, heads, cells, cells)."""
    q, k = plain(question.query), plain(question.key)
    batch, heads, _, dim = q.shape
    cells = len(edges[0]) - 1
    ring = ring_of(q.device, width(dim))
    if ring is not None and _fits(edges):
        return _on_hopper(question._replace(query=q, key=k), lse, cells, ring)
    total = q.new_zeros(batch, heads, cells, cells, dtype=torch.float32)
    largest = torch.zeros_like(total)
    longest = [max(1, *(b - a for a, b in pairwise(some))) for some in edges]
    stretch = [min(_SIDE, 1 << (n - 1).bit_length()) for n in longest]
    parts = [-(-n // s) for n, s in zip(longest, stretch, strict=True)]
    whole = (s * p * cells for s, p in zip(stretch, parts, strict=True))
    even = [some[-1] for some in edges] == [*whole]
    row_edges, key_edges = (on_device(tuple(some), q.device) for some in edges)
    given = [rows_of(t, _SIDE, width(dim)) if even else t for t in (q, k)]
    cells_kernel[(blocks(cells, _SIDE // stretch[0]) * heads, batch)](
        *given, lse.contiguous(), total, largest, row_edges, key_edges, **question.numbers,
        q_batch=q.stride(0), q_head=q.stride(1), q_row=q.stride(2), k_batch=k.stride(0),
        k_head=k.stride(1), k_row=k.stride(2), dim=dim, cells=cells, EVEN=even,
        UNBOUNDED=question.band.left == FAR,
        HEIGHT=stretch[0], WIDTH=stretch[1], SIDE=_SIDE, DOWN=parts[0], ACROSS=parts[1],
        DIM=width(dim), num_warps=4, num_stages=cell_stages(dim),
    )  # fmt: skip
    return total, largest


def _fits(edges: list[list[int]]) -> bool:
    """Whether cells are all of one size, which fits to the tiles of the Hopper kernel."""
    cells = len(edges[0]) - 1
    (tall, rest), (wide, more) = (divmod(some[-1], cells) for some in edges)
    even = not rest and not more and tall % _PART == 0 and tall > 0
    return even and wide >= _NARROWEST and _side_by_side(wide, 64)


def _side_by_side(cell: int, tile: int) -> bool:
    """Whether whole cells make up a tile, or whole tiles a cell."""
    return tile % cell == 0 or cell % tile == 0


def _tile(dims: int, cell: int) -> tuple[int, int]:
    """Keys of a tile on Hopper; and registers of a thread, so few that programs share a place."""
    return (128, 112) if dims <= 64 and _side_by_side(cell, 128) else (64, 80)


def _on_hopper(question: Question, lse: Tensor, cells: int, ring: Ring) -> tuple[Tensor, Tensor]:
    """Every 16 rows by a warp of their own, then those of a cell together."""
    from .hopper import cells_on_hopper

    q, k = question.query, question.key
    batch, heads, queries, dim = q.shape
    dims, parts = width(dim), queries // _PART
    found = q.new_empty(2, batch, heads, parts, cells, dtype=torch.float32)
    wide, (rows, stages) = k.shape[2] // cells, ring.sweep
    keys, registers = _tile(dims, wide)
    common = {"WIDTH": wide, "ROWS": rows, "KEYS": keys, "cells": cells}
    launch(
        cells_on_hopper, (blocks(queries, rows) * heads, batch),
        {"num_warps": rows // _PART, "maxnreg": registers},
        tiles_of(q, rows, dims), tiles_of(k, keys, dims), lse.contiguous(), found,
        **pointers_of(question, lse), **common, UNBOUNDED=question.band.left == FAR, DIM=dims,
        STAGES=stages,
    )  # fmt: skip
    total, largest = (q.new_empty(batch, heads, cells, cells, dtype=torch.float32) for _ in "ab")
    launch(
        together_kernel, (cells, heads, batch), {"num_warps": 1}, found, total, largest,
        **question.numbers, **common, parts=parts // cells, PART=_PART,
        ACROSS=min(256, width(cells)),
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
