"""What benchmarks on a GPU share: how a call is timed there, and the calls ours stand beside."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import multihead as mh
from multihead.attention.fused.question import Asked
from multihead.attention.problem import Problem, pose
from multihead.measuring import peers
from multihead.measuring.clock import Calls, medians_on_gpu
from multihead.measuring.peers import ON_GPU as SDPA

OBSERVING = Asked(entropy=True, distance=True, peak=True)
flex = torch.compile(flex_attention, dynamic=False)
torch._dynamo.config.recompile_limit = 256  # beyond, it would build the whole matrix


def wanted() -> None:
    """Without it nothing here can be asked."""
    if not torch.cuda.is_available():
        raise SystemExit("this times a GPU, and PyTorch finds none here.")


def timed(calls: Calls, least: int = 9, most: int = 60) -> dict[str, float]:
    """The median of each call on the device, in milliseconds; each turn has an order of its own."""
    return {name: 1e3 * each for name, each in medians_on_gpu(calls, least, most).items()}


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
    return peers.sdpa(q, k, v, by=name, **more)


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
    return peers.eager(q, k, v, _seen(q.shape[2]) if causal else None)


@functools.lru_cache(1)
def _seen(tokens: int) -> Tensor:
    return peers.matrix_of(mh.causal(), tokens, "cuda")


def mask_of(causal: bool) -> mh.masks.Mask | None:
    return mh.causal() if causal else None


def problem(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Problem:
    return posed(q, k, v, mask_of(causal))


def posed(q: Tensor, k: Tensor, v: Tensor, mask: mh.masks.Mask | None) -> Problem:
    return pose(q, k, v, mask=mask, bias=None, scale=None, softcap=None, sinks=None, dropout=0.0,
                offset=None)  # fmt: skip


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
