"""The function: query, key and value in, attention out.

`attend` checks what is asked (problem.py), chooses a backend, and calls it. Every backend answers
the same question with the same numbers; they differ in speed, memory and in what they can answer.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from ..masks import Mask
from ..positions import Alibi
from . import dense, flex, fused, sdpa, tiled
from .problem import Partial, Problem, pose, without_autocast

__all__ = ["BACKENDS", "Choice", "Partial", "Problem", "attend", "explain_choice"]

# A new backend is one more line here. "auto" takes the first that does not refuse.
BACKENDS: dict[str, ModuleType] = {
    "sdpa": sdpa,
    "fused": fused,
    "flex": flex,
    "tiled": tiled,
    "dense": dense,
}


def attend(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Mask | Tensor | None = None,
    bias: Float[Tensor, "..."] | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "heads"] | None = None,
    dropout: float = 0.0,
    offset: int | Int[Tensor, "batch"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "batch heads query value_dim"]:
    """Multi-head attention: each query's average of the values, weighted by how well keys match.

        out = softmax(mask(softcap(scale · q kᵀ) + bias)) v

        heads           query  0 1 2 3 4 5      each query head reads one key head:
        multi-head      key    0 1 2 3 4 5      as many as query heads
        grouped-query   key    0 0 1 1 2 2      query head h reads h // group
        multi-query     key    0 0 0 0 0 0      one for all

    - `mask`: who may look at whom, as in `mh.causal() & mh.window(256)`; a boolean tensor means
      True = may attend. A query that may see nothing gets 0.
    - `bias`: added to the scores; a tensor broadcastable to (batch, heads, query, key), or
      `mh.alibi(slopes)`.
    - `scale`: 1/√dim unless given. `softcap`: scores become softcap · tanh(scores / softcap).
    - `sinks`: one logit for each head that takes weight and gives nothing.
    - `dropout`: the share of weights dropped, in training or not: it is what you say.
    - `offset`: where the first query stands among the keys, an int or one for each batch row;
      by default the queries are the last positions.
    - `backend`: "auto" takes the fastest that can answer (`mh.explain_choice` says which and why);
      a backend asked for by name answers or raises.

    A NaN in a query stays in its row. Keys and values must be finite, also where no query may see
    them: 0 · NaN is NaN.

    >>> import multihead as mh
    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 4, 7, 16), torch.randn(2, 4, 7, 16)
    >>> mh.attend(q, k, v, mask=mh.causal() & mh.window(3)).shape
    torch.Size([2, 8, 5, 16])
    """
    if has_torch_function((query, key, value)):
        return handle_torch_function(
            attend, (query, key, value), query, key, value, mask=mask, bias=bias, scale=scale,
            softcap=softcap, sinks=sinks, dropout=dropout, offset=offset, backend=backend,
        )  # fmt: skip
    problem = pose(
        query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout=dropout, offset=offset,
    )  # fmt: skip
    return answer(problem, backend).out


def answer(problem: Problem, backend: str = "auto") -> Partial:
    """Have a backend, chosen or named, answer a problem."""
    room = BACKENDS[choose(problem, backend).backend]
    if problem.dropout and problem.seed is None:
        # From torch's own generator, so that torch.manual_seed decides what drops.
        seed = torch.randint(2**62, (), device=problem.query.device)
        problem = dataclasses.replace(problem, seed=seed)
    with without_autocast(problem.query.device.type):
        return room.run(problem)


class Choice(NamedTuple):
    """Which backend answers, and why; `refused` gives the reason of each that cannot."""

    backend: str
    why: str
    refused: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.backend}: {self.why}"]
        lines += [f"  not {name}: {reason}" for name, reason in self.refused.items()]
        return "\n".join(lines)


def choose(problem: Problem, backend: str = "auto") -> Choice:
    """The backend that was asked for, if it can answer; for "auto", the fastest that can."""
    if backend != "auto":
        if not isinstance(backend, str) or backend not in BACKENDS:
            raise ValueError(
                f"there is no backend {backend!r}; choose one of "
                f"{', '.join(map(repr, ('auto', *BACKENDS)))}."
            )
        if (reason := BACKENDS[backend].refuses(problem)) is not None:
            raise ValueError(
                f"backend {backend!r} cannot answer this: {reason}; "
                "ask another, or let backend='auto' choose."
            )
        return Choice(backend, "asked for by name", {})
    refused = {}
    for name, room in BACKENDS.items():
        if name == "tiled" and _tiny(problem):
            return Choice("dense", "so few scores that building the matrix is fastest", refused)
        reason = fused.hesitates(problem) if room is fused else room.refuses(problem)
        if reason is None and room is sdpa:
            reason = fused.rather(problem)
        if reason is None:
            return Choice(name, room.ABOUT, refused)
        refused[name] = reason
    raise AssertionError("dense answers everything")


def _tiny(problem: Problem) -> bool:
    """About as many scores as 16 heads of 64 tokens: a plan of tiles costs more than it saves."""
    if torch.compiler.is_compiling():
        return False  # a size decides nothing that a graph could not outlive
    batch, heads, queries, _ = problem.query.shape
    return batch * heads * queries * problem.key.shape[2] <= 2**16


def explain_choice(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    mask: Mask | Tensor | None = None,
    bias: Float[Tensor, "..."] | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "heads"] | None = None,
    dropout: float = 0.0,
    offset: int | Int[Tensor, "batch"] | None = None,
    backend: str = "auto",
) -> Choice:
    """Which backend `attend` would use for the same arguments, and why.

    >>> import multihead as mh
    >>> q = torch.randn(1, 2, 1024, 4)
    >>> print(mh.explain_choice(q, q, q, mask=mh.causal() & mh.window(3)))
    tiled: tile by tile in O(n) memory: every mask, bias, softcap, sinks, dropout
      not sdpa: the kernel knows no mask but causal(), and this one is causal() & window(3)
      not fused: the kernels need a GPU, and these tensors are on cpu
      not flex: the kernel needs a GPU, and these tensors are on cpu
    """
    problem = pose(
        query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout=dropout, offset=offset,
    )  # fmt: skip
    return choose(problem, backend)
