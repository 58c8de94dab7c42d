"""Attention by streaming tiles: every mask and bias, any device, O(n) memory both ways.

The two passes (stream.py) are `torch.library` operators, so that compile and export see one node
each. An operator's schema carries tensors, numbers and text: a mask travels as the line of text
that it prints and the tensors that it holds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import masks
from ..positions import Alibi, alibi
from .problem import Partial, Problem, exact
from .stream import stream_backward, stream_forward

ABOUT = "tile by tile in O(n) memory: every mask, bias, softcap, sinks, dropout"


def refuses(problem: Problem) -> str | None:
    """Why this backend cannot answer, or None."""
    if problem.forward_mode:
        return "it has no forward-mode derivative"
    if problem.mask is not None and not masks.known(problem.mask):
        return f"{problem.mask} holds a mask that is not in the table multihead.masks.MASKS"
    return None


def run(problem: Problem) -> Partial:
    """Attention by streaming tiles."""
    given = _pack(problem)
    return Partial(*(_Tiled.apply(*given) if problem.differentiable else _Tiled.forward(*given)))


# ---- a problem as what an operator can carry ---------------------------------------------------

_QUESTION = """Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? slopes, Tensor? sinks,
    Tensor? offsets, Tensor? seed, Tensor[] mask_data, SymInt offset, str mask, float scale,
    float? softcap, float dropout"""


class _Plain(NamedTuple):
    """The part of a problem that is no tensor."""

    offset: int
    mask: str
    scale: float
    softcap: float | None
    dropout: float


def _pack(p: Problem) -> tuple:
    """The problem as tensors, the mask's tensors and plain values: what `_Tiled` takes."""
    text, data = ("", []) if p.mask is None else masks.write(p.mask)
    bias, slopes = (None, p.bias.slopes) if isinstance(p.bias, Alibi) else (p.bias, None)
    offset, offsets = (0, p.offset) if isinstance(p.offset, Tensor) else (p.offset, None)
    plain = _Plain(offset, text, p.scale, p.softcap, p.dropout)
    return p.query, p.key, p.value, bias, slopes, p.sinks, offsets, p.seed, tuple(data), plain


def _unpack(
    query,
    key,
    value,
    bias,
    slopes,
    sinks,
    offsets,
    seed,
    data,
    offset,
    text,
    scale,
    softcap,
    dropout,
) -> Problem:
    return Problem(
        query=query,
        key=key,
        value=value,
        mask=masks.read(text, data) if text else None,
        bias=bias if slopes is None else alibi(slopes),
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout=dropout,
        seed=seed,
        offset=offset if offsets is None else offsets,
    )


# ---- the two operators -------------------------------------------------------------------------


@torch.library.custom_op(
    "multihead::tiled", mutates_args=(), schema=f"({_QUESTION}) -> (Tensor out, Tensor lse)"
)
def _forward(*question):
    return stream_forward(_unpack(*question))


@_forward.register_fake
def _(*question):
    query, value = question[0], question[2]
    rows = query.shape[:3]
    lse = query.new_empty(rows, dtype=exact(query.dtype))
    return query.new_empty(*rows, value.shape[-1]), lse


@torch.library.custom_op(
    "multihead::tiled_backward",
    mutates_args=(),
    schema=f"({_QUESTION}, Tensor out, Tensor lse, Tensor? grad_out, Tensor? grad_lse, "
    "bool want_bias) -> Tensor[]",
)
def _backward(*question):
    *question, out, lse, grad_out, grad_lse, want_bias = question
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    return stream_backward(_unpack(*question), out, lse, grad_out, grad_lse, want_bias)


@_backward.register_fake
def _(*question):
    query, key, value, bias, slopes, sinks = question[:6]
    want_bias = question[-1]
    asked = (query, key, value, bias if want_bias else None, slopes if want_bias else None, sinks)
    return [
        query.new_empty(0)
        if t is None
        else torch.empty_like(t, memory_format=torch.contiguous_format)
        for t in asked
    ]


def _one_by_one(operator, collect):
    """A vmap rule: the mapped problems one after another, whatever of them is mapped."""

    def rule(info, in_dims, *question):
        answers = []
        for index in range(info.batch_size):
            # Arguments are tensors, plain values and one list of tensors, and so are their dims.
            one = [
                [_pick(t, d, index) for t, d in zip(value, dim, strict=True)]
                if isinstance(value, list)
                else _pick(value, dim, index)
                for value, dim in zip(question, in_dims, strict=True)
            ]
            answers.append(operator(*one))
        stacked = collect(torch.stack(parts) for parts in zip(*answers, strict=True))
        return stacked, collect(0 for _ in stacked)

    operator.register_vmap(rule)


def _pick(value, dim: int | None, index: int):
    return value if dim is None else value.select(dim, index)


_one_by_one(_forward, tuple)
_one_by_one(_backward, list)


class _Tiled(torch.autograd.Function):
    """The two operators as one differentiable step, known to autograd and torch.func alike."""

    generate_vmap_rule = True

    @staticmethod
    def forward(query, key, value, bias, slopes, sinks, offsets, seed, data, plain):
        return _forward(query, key, value, bias, slopes, sinks, offsets, seed, [*data], *plain)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, data, ctx.plain = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output, *tensors, *data)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, grad_lse):
        if grad_out is None and grad_lse is None:
            return (None,) * 10
        out, lse, *tensors = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:6]
        grads = _backward(
            *tensors[:8], tensors[8:], *ctx.plain, out, lse, grad_out, grad_lse, any(wanted[3:5])
        )
        given = [grad if asked else None for grad, asked in zip(grads, wanted, strict=True)]
        return (*given, None, None, None, None)
