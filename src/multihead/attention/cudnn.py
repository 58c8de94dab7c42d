"""cuDNN's fused kernel, which PyTorch brings: the fastest on Hopper where the question is plain.

All keys, or a square causal map; bfloat16 and float16; heads of one width, a multiple of 8 up to
128. Its lse comes without a gradient: who asks for one is told, and our own kernels have it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .problem import Partial, Problem, in_a_graph

_forward = torch.ops.aten._scaled_dot_product_cudnn_attention.default
_WIDEST = 128


def refuses(problem: Problem) -> str | None:
    """Why this kernel cannot answer, or None; of a problem without mask or with a causal one."""
    p = problem
    dim = p.query.shape[3]
    if (reason := in_a_graph()) is not None:
        return reason
    if p.query.dtype not in (torch.bfloat16, torch.float16):
        return f"cuDNN's kernel is for bfloat16 and float16, and this is {p.query.dtype}"
    if torch.cuda.get_device_capability(p.query.device) < (9, 0):
        return "cuDNN's kernel is the fastest from compute capability 9.0 on alone"
    if dim != p.value.shape[3] or dim % 8 or dim > _WIDEST:
        return f"cuDNN's kernel takes heads of one width, a multiple of 8 up to {_WIDEST}"
    if p.mask is not None and (p.offset != 0 or p.query.shape[2] != p.key.shape[2]):
        return "cuDNN's kernel takes a causal mask where queries and keys are the same tokens alone"
    if p.query.shape[2] < 2 or p.key.shape[2] < 2:
        return "cuDNN's kernel is slow for a single query"
    if p.bias is not None or p.sinks is not None:
        return "cuDNN's kernel is asked without bias and sinks alone"
    if torch._C._are_functorch_transforms_active():
        return "cuDNN's kernel is not asked under torch.func transforms"
    return None


def run(problem: Problem) -> Partial:
    p = problem
    key, value = p.key, p.value
    if p.group > 1:
        key, value = (t.repeat_interleave(p.group, 1) for t in (key, value))
    given = (t if t.stride(-1) == 1 else t.contiguous() for t in (p.query, key, value))
    out, lse, *_ = _forward(*given, None, True, 0.0, p.mask is not None, scale=p.scale)
    lse = lse.reshape(p.query.shape[:3])
    return Partial(out, _NoGradient.apply(lse.detach(), p.query) if p.differentiable else lse)


class _NoGradient(torch.autograd.Function):
    """An lse that says so where a gradient is asked of it, instead of giving none."""

    @staticmethod
    def forward(ctx, lse: Tensor, query: Tensor):
        return lse.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("cuDNN's lse has no gradient; ask for backend='fused', whose lse has one.")
