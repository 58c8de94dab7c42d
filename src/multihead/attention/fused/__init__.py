"""Our own kernels, in Triton: attention that tells what it saw, at the speed of attention.

Nothing here imports Triton before it is needed: `import multihead` stays light, and machines
without it have the other backends.
"""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import cudnn, sdpa
from ..band import FAR, Band, band_of
from ..merge import row_pull, sinks_gradient, sinks_weight
from ..problem import Partial, Problem, in_a_graph
from .question import Asked, Pulls, Question, Told, question_of

ABOUT = "our kernels: runs of keys (causal, window, offset, prefix, padding), softcap, sinks"
_WIDEST = 256


def refuses(problem: Problem) -> str | None:
    """Why this backend cannot answer, or None."""
    p = problem
    if (reason := _machine(p.query.device)) is not None:
        return reason
    if p.query.dtype not in (torch.bfloat16, torch.float16):
        return f"the kernels are for bfloat16 and float16, and this is {p.query.dtype}"
    if p.query.dtype == torch.bfloat16 and p.query.device.type == "cpu":
        return "Triton's interpreter, which runs the kernels here, knows no bfloat16; float16 does"
    if max(p.query.shape[3], p.value.shape[3]) > _WIDEST:
        return f"the kernels take heads of up to {_WIDEST} numbers"
    if p.query.shape[0] == 0:
        return "the kernels do not take an empty batch"
    if p.scale <= 0:
        return (
            "the kernels look for the largest score before they scale, which needs a scale above 0"
        )
    if band_of(p.mask) is None:
        return f"the kernels know masks that are one run of keys a query, and this one is {p.mask}"
    if p.bias is not None:
        return "the kernels know no bias"
    if p.dropout:
        return "the kernels know no dropout"
    if p.forward_mode or torch._C._are_functorch_transforms_active():
        return "the kernels know neither forward-mode derivatives nor torch.func transforms"
    if max(_farthest(p.offset), p.query.shape[2], p.key.shape[2]) >= FAR // 2:
        return "the kernels count positions in 32 bits"
    return None


def _farthest(offset: int | Tensor) -> int:
    """The largest offset, where asking does not wait for a GPU; there kernels stop at FAR / 2."""
    if isinstance(offset, int):
        return abs(offset)
    return int(offset.abs().max()) if offset.device.type == "cpu" else 0


def _needs_a_gpu(kind: str) -> str:
    return f"the kernels need a GPU, and these tensors are on {kind}"


@functools.cache
def _machine(device: torch.device) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None  # step by step in Python: for tests
    if device.type != "cuda":
        return _needs_a_gpu(device.type)
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the kernels need a GPU of compute capability 8.0 or more"
    return None


def hesitates(problem: Problem) -> str | None:
    """Why "auto" does not take it: as above, and Triton's interpreter must be asked for by name."""
    kind = problem.query.device.type
    if kind != "cuda":
        return _needs_a_gpu(kind)
    return in_a_graph() or refuses(problem)


def ready(device: torch.device) -> bool:
    """Whether kernels run on this device."""
    return _machine(device) is None


def run(problem: Problem) -> Partial:
    """Attention by our kernels."""
    return Partial(*look(problem, Asked())[:2])


def look(problem: Problem, asked: Asked) -> Told:
    """The same, and what was asked of every row on the way; differentiable but for the peaks."""
    given = (problem.query, problem.key, problem.value, problem.sinks)
    question = question_of(problem)
    if not problem.differentiable:
        return _forward(question, asked._replace(together=True))
    told = _Fused.apply(*given, question, asked, _cudnn_knows(problem))
    assert told is not None
    return Told(*told)


def _cudnn_knows(problem: Problem) -> bool:
    """Whether cuDNN, which is faster, can take the way back where `out` alone is pulled at."""
    return problem.query.device.type == "cuda" and sdpa.refuses(problem) is None


class _Fused(torch.autograd.Function):
    """The two passes as one differentiable step."""

    @staticmethod
    def forward(ctx, query, key, value, sinks, question: Question, asked: Asked, known: bool):
        question = question._replace(
            query=query.detach(), key=key.detach(), value=value.detach(),
            sinks=None if sinks is None else sinks.detach(),
        )  # fmt: skip
        told = _forward(question, asked)
        ctx.question, ctx.asked = question._replace(query=None, key=None, value=None), asked
        ctx.known = known
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, sinks, *told)
        ctx.mark_non_differentiable(*(t for t in (told.peak, told.peak_key) if t is not None))
        return tuple(told)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        query, key, value, sinks, *told = ctx.saved_tensors
        if all(grad is None for grad in grads):
            return (None,) * 7
        told, grads = Told(*told), Told(*grads)
        question = ctx.question._replace(query=query, key=key, value=value)
        by_cudnn = ctx.known and not torch.are_deterministic_algorithms_enabled()
        if by_cudnn and all(grad is None for grad in grads[1:]):
            causal, scale = question.band.right == 0, question.scale
            given = (grads.out, query, key, value, told.out, told.lse)
            return (*cudnn.gradients(*given, causal=causal, scale=scale), None, None, None, None)
        grad_out = torch.zeros_like(told.out) if grads.out is None else grads.out
        own = row_pull(grad_out, grads.lse, told.out, torch.float32)
        back = _backs(own, told, grads, sinks)
        bands = () if grads.masses is None else ctx.asked.masses
        pulls = Pulls(back, grads.entropy, grads.distance, grads.masses, bands).contiguous()
        found = _backward(question, grad_out.to(query.dtype), told.lse, pulls)
        grad_sinks = None if sinks is None else sinks_gradient(sinks, told.lse, own)
        return (*found, grad_sinks, None, None, None)


def _backs(own: Tensor, told: Told, grads: Told, sinks: Tensor | None) -> Tensor:
    """What each row takes back: Σ g·E over all that was told of it (for the entropy H + 1 − R)."""
    back = own
    if grads.entropy is not None and told.entropy is not None:
        taken = 0.0 if sinks is None else sinks_weight(sinks, told.lse)
        back = back + grads.entropy * (told.entropy + taken)
    if grads.distance is not None and told.distance is not None:
        back = back + grads.distance * told.distance
    if grads.masses is not None and told.masses is not None:
        back = back + (grads.masses * told.masses).sum(0)
    return back


# ---- the same two passes as operators, for compile and export -----------------------------------

_QUESTION = """Tensor query, Tensor key, Tensor value, Tensor? sinks, Tensor? lengths,
    Tensor? offsets, SymInt offset, int left, int right, int length, float scale, float? softcap"""


def _pack(q: Question) -> tuple:
    band = q.band
    return (*q.tensors, q.sinks, band.lengths, q.offsets, q.offset, *band[:3], q.scale, q.softcap)


def _unpack(
    query, key, value, sinks, lengths, offsets, offset, left, right, length, scale, softcap
):
    band = Band(left, right, length, lengths)
    return Question(query, key, value, band, offset, offsets, scale, softcap, sinks)


def _bands(flat: list[int]) -> tuple[Band, ...]:
    return tuple(Band(*some) for some in zip(flat[0::3], flat[1::3], flat[2::3], strict=True))


def _forward(question: Question, asked: Asked) -> Told:
    if torch.compiler.is_compiling():
        flat = [n for band in asked.masses for n in band[:3]]
        out, lse, *told = _forward_operator(*_pack(question), list(asked[:4]), flat)
        wanted = (*asked[:4], bool(asked.masses))
        return Told(out, lse, *(t if w else None for t, w in zip(told, wanted, strict=True)))
    from .launch import forward

    return forward(question, asked)


def _backward(question: Question, grad_out: Tensor, lse: Tensor, pulls: Pulls):
    if torch.compiler.is_compiling():
        flat = [n for band in pulls.bands for n in band[:3]]
        return tuple(_backward_operator(*_pack(question), grad_out, lse, *pulls[:4], flat))
    from .launch import backward

    return backward(question, grad_out, lse, pulls)


@torch.library.custom_op(
    "multihead::fused", mutates_args=(),
    schema=f"({_QUESTION}, bool[] asked, int[] bands) -> Tensor[]",
)  # fmt: skip
def _forward_operator(*given):
    from .launch import forward

    *question, flags, bands = given
    told = forward(_unpack(*question), Asked(*flags, masses=_bands(bands)))
    return [t if t is not None else told.lse.new_empty(0) for t in told]


@_forward_operator.register_fake
def _(*given):
    query, value, flags, bands = given[0], given[2], given[-2], given[-1]
    out = query.new_empty(*query.shape[:3], value.shape[3])
    told = Told.empty(out, Asked(*flags, masses=_bands(bands)))
    return [t if t is not None else told.lse.new_empty(0) for t in told]


@torch.library.custom_op(
    "multihead::fused_backward", mutates_args=(),
    schema=f"({_QUESTION}, Tensor grad_out, Tensor lse, Tensor back, Tensor? entropy, "
    "Tensor? distance, Tensor? masses, int[] bands) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
def _backward_operator(*given):
    from .launch import backward

    *question, grad_out, lse, back, entropy, distance, masses, bands = given
    pulls = Pulls(back, entropy, distance, masses, _bands(bands))
    return backward(_unpack(*question), grad_out, lse, pulls)


@_backward_operator.register_fake
def _(*given):
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in given[:3])
