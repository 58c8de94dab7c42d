"""What benchmarks on a GPU share: how a call is timed there, and the calls ours stand beside."""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import multihead as mh
from multihead.attention.fused.question import Asked
from multihead.attention.problem import Problem, pose

SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
OBSERVING = Asked(entropy=True, distance=True, peak=True)
Calls = dict[str, Callable[[], object]]
flex = torch.compile(flex_attention, dynamic=False)
torch._dynamo.config.recompile_limit = 256  # beyond, it would build the whole matrix


def timed(calls: Calls, least: int = 9, most: int = 60) -> dict[str, float]:
    """The median of each call on the device, in milliseconds; each turn has an order of its own.

    A long call warms the device, which slows the next: nobody shall always come after the same.
    """
    cache = torch.empty(2**28, dtype=torch.int8, device="cuda")
    taken: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    order, drawn = [*calls], random.Random(0)

    def turn() -> float:
        """Each once; the milliseconds of all."""
        drawn.shuffle(order)
        for _ in range(16):  # the device has something to do while we get ahead of it
            cache.zero_()
        for name in order:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            cache.zero_()
            begin.record()
            calls[name]()
            end.record()
            taken[name].append((begin, end))
        torch.cuda.synchronize()
        return sum(some[-1][0].elapsed_time(some[-1][1]) for some in taken.values())

    turn(), turn()  # compiled, and warm
    rounds = min(most, max(least, int(250 / turn())))
    for _ in range(rounds):
        turn()
    return {
        name: statistics.median(begin.elapsed_time(end) for begin, end in some[3:])
        for name, some in taken.items()
    }


def memory_beyond(call: Callable[[], object]) -> int:
    """Bytes at the highest, beyond what the call gives back."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak - kept


def drawn(batch: int, heads: int, tokens: int, dim: int, grad: bool = False) -> list[Tensor]:
    shape = (batch, heads, tokens, dim)
    made = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    return [t.requires_grad_(grad) for t in made]


def sdpa(name: str, q: Tensor, k: Tensor, v: Tensor, **more) -> Tensor:
    with sdpa_kernel(SDPA[name]):
        return F.scaled_dot_product_attention(q, k, v, **more)


def that_answer(calls: Calls) -> Calls:
    """Without those of our peers that do not know the question: grouped heads, or wide ones."""
    known: Calls = {}
    for name, call in calls.items():
        theirs = name in SDPA or name == "flex"
        with contextlib.suppress(*((RuntimeError, ValueError) if theirs else ())):
            call()
            known[name] = call
    return known


def blocks_of(causal: bool, tokens: int):
    """Flex's mask of blocks."""
    return create_block_mask(_causal, None, None, tokens, tokens) if causal else None


def _causal(b, h, q, k):
    return q >= k


def eager(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention as on the board, and the entropy of its rows."""
    scores = (q @ k.mT).float() * q.shape[-1] ** -0.5
    if causal:
        scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu_(1), -torch.inf)
    weights = scores.softmax(-1)
    return weights.to(q.dtype) @ v, -torch.special.xlogy(weights, weights).sum(-1)


def mask_of(causal: bool) -> mh.masks.Mask | None:
    return mh.causal() if causal else None


def problem(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Problem:
    return pose(q, k, v, mask=mask_of(causal), bias=None, scale=None, softcap=None, sinks=None,
                dropout=0.0, offset=None)  # fmt: skip


def with_backward(
    forwards: dict[str, Callable[[], Tensor | tuple]], tensors: list[Tensor]
) -> Calls:
    """The same calls, and the gradients of what they give: out, or out and the entropy."""
    pull = torch.randn_like(tensors[0])

    def both(call: Callable[[], Tensor | tuple]) -> None:
        made = call()
        if isinstance(made, Tensor):
            torch.autograd.grad(made, tensors, pull)
        else:
            torch.autograd.grad(made, tensors, (pull, torch.ones_like(made[1])))

    return {name: lambda call=call: both(call) for name, call in forwards.items()}
