"""PyTorch's flash kernel on a GPU, for one query over a cache: it asks little of the host.

A model that writes token by token waits for the host, which is done with this kernel in an eighth
of the time that launching our own two takes. On the device these are the faster ones, so they
answer where the host does not count: in a compiled graph, and while a CUDA graph is captured.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .problem import LEAST_SCALE, Partial, Problem, capability

_forward = torch.ops.aten._scaled_dot_product_flash_attention.default
_WIDEST, _STEP = 256, 8  # numbers of a head, and in how many the kernel reads them
_MOST = 65535  # of texts or heads: axes of a grid of programs have no more


def refuses(problem: Problem) -> str | None:
    """Why this kernel cannot answer, or None; of one query without mask or with a causal one."""
    p = problem
    dim = p.query.shape[3]
    if p.mask is not None and p.offset != p.key.shape[2] - 1:
        return "PyTorch's flash kernel takes one query that stands where the last key does"
    if p.differentiable:
        return "PyTorch's flash kernel is asked outside of graphs and without gradients alone"
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph spares the host, and on the device our own kernels are the faster"
    if p.query.dtype not in (torch.bfloat16, torch.float16):
        return f"PyTorch's flash kernel is for bfloat16 and float16, and this is {p.query.dtype}"
    if not torch.backends.cuda.is_flash_attention_available():
        return "this PyTorch was built without its flash kernel"
    if capability(p.query.device) < (8, 0):
        return "PyTorch's flash kernel needs a GPU of compute capability 8.0 or more"
    if dim != p.value.shape[3] or dim % _STEP or dim > _WIDEST:
        return f"PyTorch's flash kernel takes heads of one width, a multiple of 8 up to {_WIDEST}"
    if p.scale < LEAST_SCALE:
        return "PyTorch's flash kernel takes the largest score before it scales, which is above 0"
    if max(p.query.shape[:2]) > _MOST:
        return f"PyTorch's flash kernel takes up to {_MOST:,} texts or heads"
    if p.bias is not None or p.sinks is not None:
        return "PyTorch's flash kernel is asked without bias and sinks alone"
    if not all(map(_lies_well, (p.query, p.key, p.value))):
        return "PyTorch's flash kernel wants columns side by side, all else in steps of 16 bytes"
    return None


def _lies_well(tensor: Tensor) -> bool:
    *steps, column = tensor.stride()
    aligned = tensor.data_ptr() % (_STEP * tensor.element_size()) == 0
    return column == 1 and aligned and not any(step % _STEP for step in steps)


def run(problem: Problem) -> Partial:
    p = problem
    out, lse, *_ = _forward(p.query, p.key, p.value, scale=p.scale)
    return Partial(out, torch.add(lse, out[..., 0], alpha=0))  # of a NaN it says ±∞
