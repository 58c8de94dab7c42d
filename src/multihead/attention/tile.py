"""One tile in plain torch, on any device: for what no fused kernel answers (softcap, dropout).

Scores live in buffers that all tiles share. Grouped heads are folded into the rows of one product,
so that no key head is ever copied: (batch · kv_heads, group · queries, dim) × (…, dim, keys).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor


class Scratch:
    """Buffers by name, made once and reused by every tile."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self._like, self._dtype, self._held = like, dtype, {}

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = 1
        for n in shape:
            size *= n
        held = self._held.get(name)
        if held is None or held.numel() < size:
            with torch.inference_mode(False):
                held = self._held[name] = self._like.new_empty(size, dtype=self._dtype)
        return held[:size].view(shape)


_IDLE: dict[torch.dtype, Scratch] = {}  # at most one for each dtype, in nobody's hands


@contextlib.contextmanager
def lent(like: Tensor, dtype: torch.dtype) -> Iterator[Scratch]:
    """Buffers that outlive the call: the first touch of a new page costs more than its tile.

    Whoever comes while they are lent gets new ones. CUDA keeps its memory by itself.
    """
    scratch = _IDLE.pop(dtype, None) if like.device.type == "cpu" else None
    with torch.inference_mode(False):  # so that they serve with and without gradients
        scratch = scratch or Scratch(torch.empty(0, device=like.device), dtype)
    try:
        yield scratch
    finally:
        if like.device.type == "cpu":
            _IDLE[dtype] = scratch


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    softcap: float | None,
    added: Tensor | None,
    kept: Tensor | None,
    scratch: Scratch,
) -> tuple[Tensor, Tensor]:
    """out and lse of these queries over these keys; `added` holds bias and mask, `kept` dropout."""
    powers = scores(query, key, scale, softcap, scratch)
    if added is not None:
        powers += added
    top = powers.amax(-1, keepdim=True)
    dead = top == -torch.inf
    top.masked_fill_(dead, 0.0)
    total = powers.sub_(top).exp_().sum(-1, keepdim=True)
    lse = (top + total.log()).squeeze(-1)  # log 0 is the −inf of a dead row
    if kept is not None:
        powers *= kept
    out = product(powers, value) / total.masked_fill_(dead, 1.0)
    return out, lse


def backward(
    grad_out: Tensor,
    pull: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lse: Tensor,
    *,
    scale: float,
    softcap: float | None,
    added: Tensor | None,
    kept: Tensor | None,
    scratch: Scratch,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, and of what was added to the scores (a shared buffer).

    With weights p = exp(score − lse):  d score = p · (kept · grad_out vᵀ − pull),
    where pull = Σ grad_out · out − grad_lse is one number a row.
    """
    weights = scores(query, key, scale, softcap, scratch)
    slope = None
    if softcap is not None:  # d/dx c·tanh(x/c) = 1 − tanh²(x/c)
        slope = scratch.take("slope", tuple(weights.shape))
        torch.mul(weights, weights, out=slope).mul_(-1 / softcap**2).add_(1.0)
    if added is not None:
        weights += added
    weights.sub_(lse[..., None]).exp_()
    grad = scratch.take("grad", tuple(weights.shape))
    product(grad_out, value.mT, out=grad)
    if kept is not None:
        grad *= kept
    grad.sub_(pull[..., None]).mul_(weights)
    if kept is not None:
        weights *= kept
    grad_value = transposed_product(weights, grad_out, key.shape[1])
    inner = grad
    if slope is not None:
        inner = slope.mul_(grad)
    grad_query = product(inner, key) * scale
    grad_key = transposed_product(inner, query, key.shape[1]) * scale
    return grad_query, grad_key, grad_value, grad


def scores(query: Tensor, key: Tensor, scale: float, softcap: float | None, scratch: Scratch):
    made = scratch.take("scores", (*query.shape[:3], key.shape[2]))
    product(query, key.mT, out=made).mul_(scale)
    return made if softcap is None else made.div_(softcap).tanh_().mul_(softcap)


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left (batch, heads, m, k) @ right (batch, kv_heads, k, n), groups folded into rows."""
    batch, heads, rows, _ = left.shape
    kv_heads, columns = right.shape[1], right.shape[3]
    folded = left.reshape(batch * kv_heads, heads // kv_heads * rows, -1)
    right = right.reshape(batch * kv_heads, -1, columns)
    if out is not None:
        torch.bmm(folded, right, out=out.view(batch * kv_heads, -1, columns))
        return out
    return torch.bmm(folded, right).view(batch, heads, rows, columns)


def transposed_product(left: Tensor, right: Tensor, kv_heads: int) -> Tensor:
    """leftᵀ right, summed over the query heads that share a key head."""
    batch, heads, rows, columns = left.shape
    left = left.reshape(batch * kv_heads, heads // kv_heads * rows, columns)
    right = right.reshape(batch * kv_heads, heads // kv_heads * rows, -1)
    return torch.bmm(left.mT, right).view(batch, kv_heads, columns, -1)
