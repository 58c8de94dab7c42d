"""PyTorch's fused CPU kernel, its limits wrapped in one place.

The kernel gives out and lse of a whole rectangle of queries × keys in one pass. Raw, it loses a
NaN query over fewer than 16 keys, calls the lse of an empty row 0, wants one size for query, key
and value and their last axis without gaps, and has no gradient for lse. Through here it has none of
these limits. One stays: it masks before it scales, so a causal call needs a scale above 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from .merge import awake

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

_LANES = 16  # with fewer keys the kernel's maximum is a scalar loop, which drops NaN


def forward(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """out and lse of these queries over these keys; `causal` counts from the first of both.

    `bias` is added to the scores, (#batch, #heads, query, key); −inf forbids.
    """
    bias, causal = _settle(query, key, causal, bias)
    dim = max(query.shape[-1], value.shape[-1])
    out, lse = _forward(
        _widen(query, dim), _widen(key, dim), _widen(value, dim),
        0.0, causal, attn_mask=bias, scale=scale,
    )  # fmt: skip
    out = out if value.shape[-1] == dim else out[..., : value.shape[-1]]
    if bias is None and torch.compiler.is_compiling():
        # A graph should serve any number of keys, so here the lost NaN is put back instead.
        lost = query.isnan().any(-1)
        out, lse = out.masked_fill(lost[..., None], torch.nan), lse.masked_fill(lost, torch.nan)
    if bias is not None:
        dead = bias.amax(-1) == -torch.inf  # (#batch, #heads, query)
        out = out.masked_fill(dead[..., None], 0.0)
        lse = lse.masked_fill(dead, -torch.inf)
    return out, lse


def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value.

    `out` and `lse` may be those of a longer row of which these keys are a part: each weight is
    exp(score − lse), so that gradients of the parts add up to the gradient of the whole.
    """
    bias, causal = _settle(query, key, causal, bias)
    lse = awake(lse)
    dim = max(query.shape[-1], value.shape[-1])
    wide_value, wide_grad, wide_out = value, grad_out, out
    if grad_lse is not None:
        # d lse / d score is the weight itself: lse behaves as the output of one more value
        # column of ones, had that output been 0 (which silences its own row correction).
        dim = max(dim, value.shape[-1] + 1)
        wide_value = torch.cat([value, torch.ones_like(value[..., :1])], -1)
        wide_grad = torch.cat([grad_out, grad_lse[..., None].to(grad_out.dtype)], -1)
        wide_out = torch.cat([out, torch.zeros_like(out[..., :1])], -1)
    grads = _backward(
        _widen(wide_grad, dim), _widen(query, dim), _widen(key, dim), _widen(wide_value, dim),
        _widen(wide_out, dim), lse, 0.0, causal, attn_mask=bias, scale=scale,
    )  # fmt: skip
    sizes = (query.shape[-1], key.shape[-1], value.shape[-1])
    return tuple(  # type: ignore[return-value]
        grad if size == dim else grad[..., :size] for grad, size in zip(grads, sizes, strict=True)
    )


def _settle(query: Tensor, key: Tensor, causal: bool, bias: Tensor | None):
    """Say what was asked the way the kernel does right: a bias where there are few keys."""
    queries, keys = query.shape[2], key.shape[2]
    if bias is None and not torch.compiler.is_compiling() and keys < _LANES:
        bias = query.new_zeros(queries, keys)
        if causal:
            later = query.new_ones(queries, keys, dtype=torch.bool).triu(1)
            bias = bias.masked_fill(later, -torch.inf)
        causal = False
    return (None if bias is None else bias.reshape(_four(bias))), causal


def _four(tensor: Tensor) -> tuple[int, ...]:
    return (1,) * (4 - tensor.ndim) + tuple(tensor.shape)


def _widen(tensor: Tensor, dim: int) -> Tensor:
    """As wide as the others (zero columns change no product), and its columns side by side.

    The kernel takes any strides but of the last axis: there it reads on, past the end if need be.
    """
    if tensor.shape[-1] != dim:
        return pad(tensor, (0, dim - tensor.shape[-1]))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
