"""PyTorch's fused kernel, where the question fits: everything, or causal, with a plain bias.

A causal mask with an offset is two calls, merged by lse, and no matrix of booleans:

           keys   0 … offset        offset … offset + queries
    queries      ■ ■ ■ ■ ■ ■        ■ · · ·
                 ■ ■ ■ ■ ■ ■        ■ ■ · ·
                 ■ ■ ■ ■ ■ ■        ■ ■ ■ ·
                 everything         causal
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from ..masks import causal
from ..positions import Alibi
from . import cudnn, flash, flash_gpu
from .merge import add_sinks, merge, row_pull, sinks_gradient
from .problem import LEAST_SCALE, Partial, Problem, exact, is_mapped

ABOUT = "PyTorch's fused kernel: no mask or a causal one, a bias, sinks"


def refuses(problem: Problem) -> str | None:
    """Why this backend cannot answer, or None."""
    p = problem
    if p.query.device.type not in ("cpu", "meta", "cuda"):
        return f"it knows kernels for CPU and CUDA, and these tensors are on {p.query.device.type}"
    if p.query.shape[0] == 0:
        return "the kernel does not take an empty batch"
    if p.mask is not None and p.mask != causal():
        return f"the kernel knows no mask but causal(), and this one is {p.mask}"
    if p.mask is not None and isinstance(p.offset, Tensor):
        return "the kernel cannot start each batch row at an offset of its own"
    if p.mask is not None and p.scale < LEAST_SCALE:
        return f"the kernel masks before it scales, which needs a scale of {LEAST_SCALE} or more"
    if p.softcap is not None:
        return "the kernel has no softcap"
    if p.dropout:
        return "dropout would make the kernel build the whole matrix"
    if isinstance(p.bias, Alibi):
        return "the kernel would need the alibi bias as a whole matrix"
    if p.bias is not None and p.bias.requires_grad and torch.is_grad_enabled():
        return "a gradient for the bias would make the kernel build the whole matrix"
    if p.forward_mode:
        return "the kernel has no forward-mode derivative"
    if any(is_mapped(t) for t in (p.bias, p.sinks)):
        return "under vmap it maps over query, key and value alone"
    if p.bias is not None and p.mask is not None:
        return "the kernel takes a bias or a causal mask, not both"
    return _on_gpu(p).refuses(p) if p.query.device.type == "cuda" else None


def _on_gpu(p: Problem) -> ModuleType:
    """cuDNN plans for every length, and a cache grows."""
    return flash_gpu if p.query.shape[2] == 1 else cudnn


def run(problem: Problem) -> Partial:
    """Attention by PyTorch's fused kernel."""
    p = problem
    if p.query.device.type == "cuda":
        return _on_gpu(p).run(p)
    bias = p.bias
    if isinstance(bias, Tensor):
        tokens = p.query.shape[2], p.key.shape[2]
        bias = bias.detach().to(exact(p.query.dtype)).expand(-1, -1, *tokens)
    offset = None if p.mask is None else p.offset
    given = (p.query, p.key, p.value, p.sinks, bias, p.scale, offset)
    return Partial(*(_Fused.apply(*given) if p.differentiable else _Fused.forward(*given)))


class _Piece(NamedTuple):
    """A call of the kernel: the queries from `first` on, over the keys from `start` to `stop`.

    Plain numbers, not slices: in a slice a compiler would fix them.
    """

    first: int
    start: int
    stop: int
    causal: bool


def _pieces(queries: int, keys: int, offset: int | None) -> list[_Piece]:
    """The calls that a causal mask comes to; without one (offset None), one call for all."""
    if offset is not None and queries == 1 and offset >= 0:  # decoding: it sees all up to itself
        keys, offset = min(keys, offset + 1), None
    if offset is None:
        return [_Piece(0, 0, keys, causal=False)]
    pieces = []
    awake = max(0, -offset)  # queries before this one stand before every key
    if offset > 0:
        pieces.append(_Piece(0, 0, min(offset, keys), causal=False))
    if offset < keys and awake < queries:
        start = max(0, offset)
        pieces.append(_Piece(awake, start, min(keys, start + queries - awake), causal=True))
    return pieces


class _Fused(torch.autograd.Function):
    """The pieces of a problem and their merging as one step, differentiable in out and lse."""

    @staticmethod
    def forward(query, key, value, sinks, bias, scale, offset):
        whole = None
        for first, start, stop, is_causal in _pieces(query.shape[2], key.shape[2], offset):
            out, lse = flash.forward(
                query[:, :, first:], key[:, :, start:stop], value[:, :, start:stop],
                scale=scale, causal=is_causal, bias=bias,
            )  # fmt: skip
            if first:  # the queries before may see nothing at all
                out, lse = pad(out, (0, 0, first, 0)), pad(lse, (first, 0), value=-torch.inf)
            whole = Partial(out, lse) if whole is None else merge(whole, Partial(out, lse))
        if whole is None:
            out = query.new_zeros(*query.shape[:3], value.shape[3])
            lse = query.new_full(query.shape[:3], -torch.inf, dtype=exact(query.dtype))
            whole = Partial(out, lse)
        if sinks is not None:
            whole = add_sinks(whole, sinks)
        out = whole.out
        # Not a bare .to(): where it has nothing to do it returns its input, and the compiler of
        # torch 2.11 then loses the gradient of this output.
        return out if out.dtype == query.dtype else out.to(query.dtype), whole.lse

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.scale, ctx.offset = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_lse):
        if grad_out is None and grad_lse is None:
            return (None,) * 7
        query, key, value, sinks, bias, out, lse = ctx.saved_tensors
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        sums: list[Tensor] | None = None
        wholes = (query, key, value)
        for first, start, stop, is_causal in _pieces(query.shape[2], key.shape[2], ctx.offset):
            grads = flash.backward(
                grad_out[:, :, first:], None if grad_lse is None else grad_lse[:, :, first:],
                query[:, :, first:], key[:, :, start:stop], value[:, :, start:stop],
                out[:, :, first:], lse[:, :, first:],
                scale=ctx.scale, causal=is_causal, bias=bias,
            )  # fmt: skip
            covers = all(g.shape == t.shape for g, t in zip(grads, wholes, strict=True))
            if sums is None and covers:  # one piece is everything
                sums = [*grads]
                continue
            if sums is None:  # parts of a row are summed in the exact dtype and rounded once
                pairs = zip(grads, wholes, strict=True)
                sums = [grad.new_zeros(t.shape, dtype=lse.dtype) for grad, t in pairs]
            sums[0][:, :, first:] += grads[0]
            sums[1][:, :, start:stop] += grads[1]
            sums[2][:, :, start:stop] += grads[2]
        sums = [torch.zeros_like(t) for t in wholes] if sums is None else sums
        grad_sinks = None
        if sinks is not None:
            pull = row_pull(grad_out, grad_lse, out, lse.dtype)
            grad_sinks = sinks_gradient(sinks, lse, pull)
        return (*(total.to(query.dtype) for total in sums), grad_sinks, None, None, None)

    @staticmethod
    def vmap(info, in_dims, query, key, value, sinks, bias, scale, offset):
        """One more batch axis is more batch rows: fold it in and out."""
        folded = []
        for tensor, dim in zip((query, key, value), in_dims[:3], strict=True):
            every = (
                tensor.expand(info.batch_size, *tensor.shape)
                if dim is None
                else tensor.movedim(dim, 0)
            )
            folded.append(every.flatten(0, 1))
        if bias is not None and bias.shape[0] > 1:
            bias = bias.repeat(info.batch_size, 1, 1, 1)
        out, lse = _Fused.apply(*folded, sinks, bias, scale, offset)
        sizes = (info.batch_size, -1)
        return (out.unflatten(0, sizes), lse.unflatten(0, sizes)), (0, 0)
