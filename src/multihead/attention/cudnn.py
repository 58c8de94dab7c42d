"""cuDNN's fused kernel, which PyTorch brings: the fastest on Hopper where the question is plain.

All keys, or a square causal map; bfloat16 and float16; heads of one width, a multiple of 8 up to
128, or 256 on Hopper. Its lse comes without a gradient: who asks for one is told, and our own
kernels have it. Its way back takes any kernel's out and lse. In a compiled graph it is asked in
training alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .problem import Partial, Problem, capability, in_a_graph, in_an_export, remembered

_forward = torch.ops.aten._scaled_dot_product_cudnn_attention.default
_backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default


@remembered
def _widest(device: torch.device) -> int:
    """By PyTorch's own check (sdp_utils.cpp): wide heads since cuDNN 9.10, on Hopper alone."""
    wide = capability(device) == (9, 0) and (torch.backends.cudnn.version() or 0) >= 91000
    return 256 if wide else 128


def refuses(problem: Problem) -> str | None:
    """Why this kernel cannot answer, or None; of a problem without mask or with a causal one."""
    p = problem
    dim, widest = p.query.shape[3], _widest(p.query.device)
    if (reason := in_an_export() or (None if p.in_training else in_a_graph())) is not None:
        return reason
    if p.in_training and torch.are_deterministic_algorithms_enabled():
        return "cuDNN's way back adds up in no fixed order, and PyTorch is told to have one"
    if p.query.dtype not in (torch.bfloat16, torch.float16):
        return f"cuDNN's kernel is for bfloat16 and float16, and this is {p.query.dtype}"
    if capability(p.query.device) < (9, 0):
        return "cuDNN's kernel is the fastest from compute capability 9.0 on alone"
    if dim != p.value.shape[3] or dim % 8 or dim > widest:
        return f"cuDNN's kernel takes heads of one width, a multiple of 8 up to {widest}"
    if p.mask is not None and (p.offset != 0 or p.query.shape[2] != p.key.shape[2]):
        return "cuDNN's kernel takes a causal mask where queries and keys are the same tokens alone"
    if p.key.shape[2] < 2:
        return "cuDNN's kernel is not asked for a single key"
    if p.bias is not None or p.sinks is not None:
        return "cuDNN's kernel is asked without bias and sinks alone"
    if torch._C._are_functorch_transforms_active():
        return "cuDNN's kernel is not asked under torch.func transforms"
    return None


def run(problem: Problem) -> Partial:
    p = problem
    given = _with_rows(p.query, p.key, p.value)
    out, lse, *_ = _forward(*given, None, True, 0.0, p.mask is not None, scale=p.scale)
    lse = lse.reshape(p.query.shape[:3])
    if not p.differentiable:
        return Partial(out, lse)
    marked = marked_operator if torch.compiler.is_compiling() else _Marked.apply
    return Partial(out, marked(lse.detach(), p.query, p.key))


def gradients(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *,
    causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of query, key and value, where `out` alone is pulled at. It adds up in no fixed order."""
    q, k, v, out = _with_rows(query, key, value, out)
    if grad_out.stride() != out.stride():  # it would copy it too, and warn
        grad_out = torch.empty_like(out).copy_(grad_out)
    seed = torch.empty((), dtype=torch.int64, device=q.device)  # of a dropout that there is not
    return _backward(
        grad_out, q, k, v, out, lse.contiguous()[..., None], seed, seed, None, None, None,
        q.shape[2], k.shape[2], 0.0, causal, scale=scale,
    )  # fmt: skip


def _with_rows(*tensors: Tensor) -> list[Tensor]:
    """Each with its columns side by side, and no two numbers in one place."""
    return [t if t.stride(-1) == 1 and 0 not in t.stride() else t.contiguous() for t in tensors]


def _raise(ctx, *grads):
    raise ValueError("cuDNN's lse has no gradient; ask for backend='fused', whose lse has one.")


class _Marked(torch.autograd.Function):
    """An lse that says so where a gradient is asked of it, instead of giving none."""

    @staticmethod
    def forward(ctx, lse: Tensor, query: Tensor, key: Tensor):
        return lse.clone()

    backward = staticmethod(_raise)


@torch.library.custom_op(
    "multihead::marked", mutates_args=(), schema="(Tensor lse, Tensor query, Tensor key) -> Tensor"
)
def marked_operator(lse, query, key):
    """The same in a graph, which would trace the way back of a function."""
    return lse.clone()


@marked_operator.register_fake
def _(lse, query, key):
    return torch.empty_like(lse)


marked_operator.register_autograd(_raise)
