"""The two passes of our kernels; a compiled graph sees each as one operator."""

from __future__ import annotations

import torch
from torch import Tensor

from ..band import Band
from .question import Asked, Pulls, Question, Told

_QUESTION = """Tensor query, Tensor key, Tensor value, Tensor? sinks, Tensor? lengths,
    Tensor? offsets, SymInt offset, int left, int right, int length, float scale, float? softcap"""


def forward(question: Question, asked: Asked) -> Told:
    """out, lse and what was asked."""
    if torch.compiler.is_compiling():
        out, lse, *told = forward_operator(*pack(question), list(asked[:4]), _flat(asked.masses))
        wanted = (*asked[:4], len(asked.masses) > 0)
        return Told(out, lse, *(t if w else None for t, w in zip(told, wanted, strict=True)))
    from . import launch

    return launch.forward(question, asked)


def backward(question: Question, grad_out: Tensor, lse: Tensor, pulls: Pulls) -> tuple[Tensor, ...]:
    """Gradients of query, key and value."""
    if torch.compiler.is_compiling():
        given = (grad_out, lse, *pulls[:4], _flat(pulls.bands))
        return tuple(backward_operator(*pack(question), *given))
    from . import launch

    return launch.backward(question, grad_out, lse, pulls)


def pack(q: Question) -> tuple:
    band = q.band
    return (*q.tensors, q.sinks, band.lengths, q.offsets, q.offset, *band[:3], q.scale, q.softcap)


def _unpack(
    query, key, value, sinks, lengths, offsets, offset, left, right, length, scale, softcap
) -> Question:
    band = Band(left, right, length, lengths)
    return Question(query, key, value, band, offset, offsets, scale, softcap, sinks)


def _flat(bands: tuple[Band, ...]) -> list[int]:
    return [n for band in bands for n in band[:3]]


def _bands(flat: list[int]) -> tuple[Band, ...]:
    return tuple(Band(*some) for some in zip(flat[0::3], flat[1::3], flat[2::3], strict=True))


# A graph is told before it runs how results lie: as their tensor does, wherever it lies in memory.


def _rows_like(tensor: Tensor, *shape: int) -> Tensor:
    from .tensors import empty_like_rows

    return empty_like_rows(tensor, *shape)


def _lying(found: Tensor, tensor: Tensor) -> Tensor:
    told = _rows_like(tensor, *found.shape[1:])
    return found if found.stride() == told.stride() else told.copy_(found)


@torch.library.custom_op(
    "multihead::fused", mutates_args=(),
    schema=f"({_QUESTION}, bool[] asked, int[] bands) -> Tensor[]",
)  # fmt: skip
def forward_operator(*given):
    from . import launch

    *question, flags, bands = given
    told = launch.forward(_unpack(*question), Asked(*flags, masses=_bands(bands)))
    told = told._replace(out=_lying(told.out, given[0]))
    return [t if t is not None else told.lse.new_empty(0) for t in told]


@forward_operator.register_fake
def _(*given):
    query, value, flags, bands = given[0], given[2], given[-2], given[-1]
    out = _rows_like(query, *query.shape[1:3], value.shape[3])
    told = Told.empty(out, Asked(*flags, masses=_bands(bands)))
    return [t if t is not None else told.lse.new_empty(0) for t in told]


@torch.library.custom_op(
    "multihead::fused_backward", mutates_args=(),
    schema=f"({_QUESTION}, Tensor grad_out, Tensor lse, Tensor back, Tensor? entropy, "
    "Tensor? distance, Tensor? masses, int[] bands) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
def backward_operator(*given):
    from . import launch

    *question, grad_out, lse, back, entropy, distance, masses, bands = given
    pulls = Pulls(back, entropy, distance, masses, _bands(bands))
    found = launch.backward(_unpack(*question), grad_out, lse, pulls)
    return tuple(_lying(grad, t) for grad, t in zip(found, given, strict=False))


@backward_operator.register_fake
def _(*given):
    return tuple(_rows_like(t, *t.shape[1:]) for t in given[:3])
