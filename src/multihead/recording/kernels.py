# Triton only looks like Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false
"""What recording does beside attention, in one pass each on a GPU: losses, and ‖v W_O‖."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.fused.launch import blocks, width

_WIDEST = 128  # of a head: its square must fit beside the rows
_AT_ONCE = 4096  # words that are looked at together
_ROWS, _PROGRAMS = 64, 256  # keys of a tile, and how many programs keep a GPU at work


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


def nats(logits: Tensor, targets: Tensor) -> Tensor:
    """−ln softmax at the targets, a number a row; logits (row, words), side by side."""
    found = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    if len(targets):
        targets = targets.contiguous()
        _nats_kernel[(len(targets),)](
            logits, targets, found, logits.shape[1], logits.stride(0), AT_ONCE=_AT_ONCE, num_warps=8
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


def norms(value: Tensor, weight: Tensor) -> Tensor | None:
    """‖v W‖ = √(v (W Wᵀ) vᵀ) of each key and query head; None where a head is too wide.

    value (batch, kv_heads, key, dim), weight (heads · dim, model).
    """
    batch, kv_heads, tokens, dim = value.shape
    heads = weight.shape[0] // dim
    if dim > _WIDEST or value.stride(-1) != 1:
        return None
    found = value.new_empty(batch, heads, tokens, dtype=torch.float32)
    share = _ROWS * blocks(tokens, _ROWS * max(1, _PROGRAMS // (heads * batch)))
    _norms_kernel[(blocks(tokens, share), heads, batch)](
        value, weight, found, *value.stride()[:3], *weight.stride(), heads, heads // kv_heads,
        tokens, share, dim, weight.shape[1], ROWS=_ROWS,
        DIM=width(dim), AT_ONCE=64, num_warps=4 if dim <= 64 else 8,
    )  # fmt: skip
    return found
