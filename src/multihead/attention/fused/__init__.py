"""Our own kernels, in Triton: attention that tells what it saw, at the speed of attention.

Nothing here imports Triton before it is needed: `import multihead` stays light, and machines
without it have the other backends.
"""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import cudnn, sdpa
from ..band import FAR, band_of
from ..merge import row_pull, sinks_gradient, sinks_weight
from ..problem import (
    LEAST_SCALE,
    MOST_SCALE,
    Partial,
    Problem,
    capability,
    in_a_graph,
    in_an_export,
    remembered,
)
from . import operators
from .question import Asked, Pulls, Question, Told, question_of

ABOUT = "our kernels: runs of keys (causal, window, offset, prefix, padding), softcap, sinks"
_WIDEST = 256
_LONG, _LOT = 3000, 128  # tokens
_TEXTS = 65535  # at a time: an axis of a grid of programs has no more


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
    if not 0 < p.query.shape[0] <= _TEXTS:
        return f"the kernels do not take an empty batch, nor one of more than {_TEXTS:,}"
    if not LEAST_SCALE <= p.scale <= MOST_SCALE:
        return (
            "the kernels look for the largest score before they scale, which needs a scale above 0 "
            f"({LEAST_SCALE} to {MOST_SCALE})"
        )
    if (band := band_of(p.mask)) is None:
        return f"the kernels know masks that are one run of keys a query, and this one is {p.mask}"
    if p.bias is not None:
        return "the kernels know no bias"
    if p.dropout:
        return "the kernels know no dropout"
    if p.forward_mode or torch._C._are_functorch_transforms_active():
        return "the kernels know neither forward-mode derivatives nor torch.func transforms"
    farthest = max(_farthest(p.offset), p.query.shape[2], p.key.shape[2])
    if band.is_far or farthest >= FAR // 2:
        return "the kernels count positions in 32 bits"
    return None


def _farthest(offset: int | Tensor) -> int:
    """The largest offset, where asking waits for nobody; elsewhere kernels stop at FAR / 2."""
    if not isinstance(offset, Tensor):
        return abs(offset)
    known = offset.device.type == "cpu" and not torch.compiler.is_compiling()
    return int(offset.abs().max()) if known else 0


def _needs_a_gpu(kind: str) -> str:
    return f"the kernels need a GPU, and these tensors are on {kind}"


@remembered
def _machine(device: torch.device) -> str | None:
    """Why kernels do not run on this device, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None  # step by step in Python: for tests
    if device.type != "cuda":
        return _needs_a_gpu(device.type)
    if not torch.version.hip and capability(device) < (8, 0):
        return "the kernels need a GPU of compute capability 8.0 or more"
    return None


def hesitates(problem: Problem) -> str | None:
    """Why "auto" does not take it: as above, and Triton's interpreter must be asked for by name."""
    kind = problem.query.device.type
    if kind != "cuda":
        return _needs_a_gpu(kind)
    return in_an_export() or refuses(problem)


def rather(problem: Problem) -> str | None:
    """Why "auto" takes it where PyTorch's kernel could answer too, or None.

    It may be the faster. And cuDNN makes a plan for each length it meets, which takes as long as
    some hundred calls. Training meets few lengths, reading about as many as there are texts: there,
    plans are made where keys are not many, for its kernel is the faster for most of them, and for
    lengths that are round; and none for a few queries over a cache, which grows.
    """
    p, lengths = problem, (problem.query.shape[2], problem.key.shape[2])
    if p.query.device.type != "cuda" or p.differentiable or refuses(p) is not None:
        return None
    if p.query.shape[2] == 1:  # PyTorch takes another kernel, which makes no plans
        return None
    from .launch import decodes, outruns
    from .sizes import ring_of

    if decodes(p.query, p.key):
        return "cuDNN would plan for every length of a cache that grows"
    ring = ring_of(p.query.device, p.query.shape[3])
    if ring is None or lengths[1] < _LONG:
        return None
    if lengths[0] >= _LONG and p.value.shape[3] == p.query.shape[3] and outruns(p.query, ring):
        return "our kernel is the faster one for so many rows of such heads, but in training"
    if not any(n % _LOT for n in lengths):
        return None
    return f"cuDNN would plan for this length; it is asked for multiples of {_LOT}, and in training"


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
        return operators.forward(question, asked._replace(together=True))
    told = _Fused.apply(*given, question, asked, _cudnn_knows(problem))
    assert told is not None
    return Told(*told)


def _cudnn_knows(problem: Problem) -> bool:
    """Whether cuDNN, which is faster, can take the way back where `out` alone is pulled at."""
    known = problem.query.device.type == "cuda" and in_a_graph() is None  # which pulls at lse too
    return known and sdpa.refuses(problem) is None


class _Fused(torch.autograd.Function):
    """The two passes as one differentiable step."""

    @staticmethod
    def forward(ctx, query, key, value, sinks, question: Question, asked: Asked, known: bool):
        question = question._replace(
            query=query.detach(), key=key.detach(), value=value.detach(),
            sinks=None if sinks is None else sinks.detach(),
        )  # fmt: skip
        told = operators.forward(question, asked)
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
        found = operators.backward(question, grad_out.to(query.dtype), told.lse, pulls)
        grad_sinks = None
        if sinks is not None:  # no part in the entropy: H − R, where keys have H + 1 − R
            taken = back if grads.entropy is None else back - grads.entropy
            grad_sinks = sinks_gradient(sinks, told.lse, taken)
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
