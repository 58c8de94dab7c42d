"""The definition of attention, on one page. It builds the matrix; in float64 it is the oracle.

scores  = scale · q kᵀ  →  softcap  →  + bias  →  mask          (a sink is one more logit)
lse     = log Σⱼ exp(scores)
weights = exp(scores − lse)
out     = dropout(weights) v
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..positions import Alibi
from .dropout import keep
from .problem import Partial, Problem, exact

ABOUT = "the definition: builds the whole matrix, any question"


class Steps(NamedTuple):
    """Each step on the way, (batch, heads, query, key) but for lse and out."""

    scaled: Tensor
    capped: Tensor
    biased: Tensor
    masked: Tensor
    weights: Tensor
    lse: Tensor
    out: Tensor


def refuses(problem: Problem) -> str | None:
    """Why this backend cannot answer, or None: this one always can."""
    return None


def run(problem: Problem) -> Partial:
    """Attention by its definition."""
    every = steps(problem)
    return Partial(every.out, every.lse)


def steps(problem: Problem) -> Steps:
    """Attention by its definition, with every matrix on the way."""
    p, dtype = problem, exact(problem.query.dtype)
    query = p.query.to(dtype)
    key, value = (t.to(dtype).repeat_interleave(p.group, dim=1) for t in (p.key, p.value))
    rows, columns = (torch.arange(t.shape[2], device=query.device) for t in (query, key))

    scaled = query @ key.mT * p.scale  # (batch, heads, query, key)
    capped = scaled if p.softcap is None else p.softcap * torch.tanh(scaled / p.softcap)
    biased = capped
    if isinstance(p.bias, Alibi):
        biased = capped + p.bias.values(rows, columns, p.offset).to(dtype)
    elif p.bias is not None:
        biased = capped + p.bias.to(dtype)
    masked = biased
    if p.mask is not None:
        masked = biased.masked_fill(~p.mask.allows(rows, columns, p.offset), -torch.inf)

    # The greatest score is only a safe origin for exp: it cancels, so no gradient goes there.
    top = masked.detach().amax(-1, keepdim=True)
    sinks = None if p.sinks is None else p.sinks.to(dtype)[:, None, None]
    top = top if sinks is None else torch.maximum(top, sinks.detach())
    dead = top == -torch.inf  # a row that may see nothing: no weights, no output, no gradient
    top = top.masked_fill(dead, 0.0)
    powers = torch.exp(masked - top)
    total = powers.sum(-1, keepdim=True)
    total = total if sinks is None else total + torch.exp(sinks - top)
    weights = powers / total.masked_fill(dead, 1.0)
    lse = (top + total.masked_fill(dead, 1.0).log()).masked_fill(dead, -torch.inf).squeeze(-1)

    used = weights
    if p.dropout:
        assert p.seed is not None
        axes = [torch.arange(n, device=query.device) for n in weights.shape]
        used = weights * keep(p.seed, p.dropout, *axes) / (1.0 - p.dropout)
    out = (used @ value).to(p.query.dtype)
    return Steps(scaled, capped, biased, masked, weights, lse, out)
