# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false
"""What recording does beside attention, in one pass each on a GPU: copies, losses, ‖v W_O‖."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.fused.again import launch
from ..attention.fused.sizes import is_hopper
from ..attention.fused.tensors import blocks, on_its_device, width

_WIDEST = 128  # of a head: its square must fit beside the rows
_AT_ONCE = 4096  # words that are looked at together
_ROWS, _PROGRAMS = 64, 256  # keys of a tile, and how many programs keep a GPU at work
_COPIED = 4096  # numbers by a program


@triton.jit
def _copy(from_at, to_at, block, size, COPIED: tl.constexpr):
    at = block * COPIED + tl.arange(0, COPIED)
    if block * COPIED + COPIED <= size:  # many numbers at a time, where none has to be asked for
        tl.store(to_at + at, tl.load(from_at + at))
    else:
        tl.store(to_at + at, tl.load(from_at + at, mask=at < size), mask=at < size)


@triton.jit
def _row_norms(
    value_at, norms_at, block, batch_step, head_step, row_step, heads, tokens, dim,
    ROWS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    a_head = tl.cdiv(tokens, ROWS)
    batch, head = block // a_head // heads, block // a_head % heads
    rows, column = block % a_head * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    at = batch * batch_step + head * head_step + rows[:, None] * row_step + column[None, :]
    real = (rows < tokens)[:, None] & (column < dim)[None, :]
    value = tl.load(value_at + at, mask=real, other=0.0).to(tl.float32)
    norm = tl.sqrt(tl.sum(value * value, 1))
    tl.store(norms_at + (block // a_head) * tokens + rows, norm, mask=rows < tokens)


@triton.jit(do_not_specialize=["query_size", "key_size", "tokens"])
def _copies_kernel(
    query_at, query_to, key_at, key_to, value_at, norms_at, query_size, key_size,
    batch_step, head_step, row_step, heads, tokens, dim,
    COPIED: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    of_query, of_key = tl.cdiv(query_size, COPIED), tl.cdiv(key_size, COPIED)
    if program < of_query:
        _copy(query_at, query_to, program, query_size, COPIED)
    elif program < of_query + of_key:
        _copy(key_at, key_to, program - of_query, key_size, COPIED)
    else:
        _row_norms(
            value_at, norms_at, program - of_query - of_key, batch_step, head_step, row_step,
            heads, tokens, dim, ROWS, DIM,
        )  # fmt: skip


@on_its_device
def copies(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Copies of query and key, laid as they lie, and ‖v‖; None where numbers lie apart."""
    to_query, to_key = torch.empty_like(query), torch.empty_like(key)
    dense = to_query.stride() == query.stride() and to_key.stride() == key.stride()
    dims = width(value.shape[3])
    if not dense or value.stride(-1) != 1 or value.dtype == torch.float64 or dims > _COPIED:
        return None
    batch, heads, tokens, dim = value.shape
    norms = value.new_empty(batch, heads, tokens, dtype=torch.float32)
    rows = _COPIED // dims
    programs = (
        blocks(query.numel(), _COPIED) + blocks(key.numel(), _COPIED)
        + batch * heads * blocks(tokens, rows)
    )  # fmt: skip
    launch(
        _copies_kernel, (programs,), {"num_warps": 4},
        query, to_query, key, to_key, value, norms, query.numel(), key.numel(),
        *value.stride()[:3], heads, tokens, dim, COPIED=_COPIED, ROWS=rows, DIM=dims,
    )  # fmt: skip
    return to_query, to_key, norms


@triton.jit(do_not_specialize=["words", "row_step"])
def _nats_kernel(logits_at, targets_at, nats_at, words, row_step, AT_ONCE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits_at += row * row_step
    top, total = float("-inf"), 0.0
    for start in tl.range(0, words, AT_ONCE):
        word = start + tl.arange(0, AT_ONCE)
        some = tl.load(logits_at + word, mask=word < words, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(some, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(some - higher), 0)
        top = higher
    own = tl.load(logits_at + tl.load(targets_at + row)).to(tl.float32)
    tl.store(nats_at + row, tl.log(total) + top - own)


@on_its_device
def nats(logits: Tensor, targets: Tensor) -> Tensor:
    """−ln softmax at the targets, a number a row; logits (row, words), side by side."""
    found = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    if len(targets):
        targets = targets.contiguous()
        _nats_kernel[(len(targets),)](
            logits, targets, found, logits.shape[1], logits.stride(0), AT_ONCE=_AT_ONCE, num_warps=4
        )
    return found


@triton.jit(do_not_specialize=["tokens", "share"])
def _norms_kernel(
    value_at, weight_at, norms_at, batch_step, head_step, row_step, weight_row,
    weight_column, heads, group, tokens, share, dim, model,
    ROWS: tl.constexpr, DIM: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    part, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    column = tl.arange(0, DIM)
    # W Wᵀ of this head. Each of its programs works it out anew, sooner than it would be fetched.
    gram = tl.zeros([DIM, DIM], tl.float32)
    weight_at += (head * dim + column)[None, :].to(tl.int64) * weight_row
    for start in tl.range(0, model, AT_ONCE):
        here = start + tl.arange(0, AT_ONCE)
        real = (here < model)[:, None] & (column < dim)[None, :]
        at = here[:, None].to(tl.int64) * weight_column
        some = tl.load(weight_at + at, mask=real, other=0.0)
        gram = tl.dot(some.T, some, gram, input_precision="tf32x3")
    # Of bfloat16, three times eight digits make up a float32: products of halves, and exact.
    high = gram.to(tl.bfloat16)
    middle = (gram - high.to(tl.float32)).to(tl.bfloat16)
    low = (gram - high.to(tl.float32) - middle.to(tl.float32)).to(tl.bfloat16)
    value_at += batch.to(tl.int64) * batch_step + (head // group).to(tl.int64) * head_step
    norms_at += (batch * heads + head).to(tl.int64) * tokens
    for start in tl.range(part * share, tl.minimum(part * share + share, tokens), ROWS):
        rows = start + tl.arange(0, ROWS)
        real = (rows < tokens)[:, None] & (column < dim)[None, :]
        at = rows.to(tl.int64)[:, None] * row_step + column[None, :]
        value = tl.load(value_at + at, mask=real, other=0.0)
        if value.dtype == tl.bfloat16:
            moved = tl.dot(value, high, tl.dot(value, middle, tl.dot(value, low)))
        else:
            moved = tl.dot(value.to(tl.float32), gram, input_precision="tf32x3")
        norm = tl.sqrt(tl.maximum(tl.sum(moved * value.to(tl.float32), 1), 0.0))
        tl.store(norms_at + rows, norm, mask=rows < tokens)


@on_its_device
def norms(value: Tensor, weight: Tensor) -> Tensor | None:
    """‖v W‖ = √(v (W Wᵀ) vᵀ) of each key and query head; None where it finds no room.

    value (batch, kv_heads, key, dim), weight (heads · dim, model).
    """
    batch, kv_heads, tokens, dim = value.shape
    heads = weight.shape[0] // dim
    # Tiles take up to 192 KB of a multiprocessor, and AMD's compiler has no such product.
    no_room = value.is_cuda and not is_hopper(value.device)
    if no_room or dim > _WIDEST or value.stride(-1) != 1:
        return None
    found = value.new_empty(batch, heads, tokens, dtype=torch.float32)
    share = _ROWS * blocks(tokens, _ROWS * max(1, _PROGRAMS // (heads * batch)))
    stages = 2 if dim > 64 and weight.element_size() == 4 else 3
    launch(
        _norms_kernel, (blocks(tokens, share), heads, batch),
        {"num_warps": 4 if dim <= 64 else 8, "num_stages": stages},
        value, weight, found, *value.stride()[:3], *weight.stride(), heads, heads // kv_heads,
        tokens, share, dim, weight.shape[1], ROWS=_ROWS, DIM=width(dim),
        AT_ONCE=128,
    )  # fmt: skip
    return found
