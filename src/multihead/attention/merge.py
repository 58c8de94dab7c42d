"""Attention over parts of the keys, merged by lse: the step that makes streaming exact."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from .problem import Partial


def merge(one: Partial, two: Partial) -> Partial:
    """The same queries over two sets of keys → what one pass over both would give.

        lse = log(exp lse₁ + exp lse₂)      out = exp(lse₁ − lse)·out₁ + exp(lse₂ − lse)·out₂

    Outputs are summed in the dtype of lse, which is the exact one.
    """
    lse = torch.logaddexp(one.lse, two.lse)
    share_one, share_two = (_share(part.lse, lse)[..., None] for part in (one, two))
    return Partial(share_one * one.out + share_two * two.out, lse)


def add_sinks(part: Partial, sinks: Float[Tensor, "heads"]) -> Partial:
    """A sink is one more key with a logit for each head and nothing to say."""
    lse = torch.logaddexp(part.lse, sinks.to(part.lse.dtype)[:, None])
    return Partial(_share(part.lse, lse)[..., None] * part.out, lse)


def row_pull(
    grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, dtype: torch.dtype
) -> Float[Tensor, "batch heads query"]:
    """Σ grad_out · out − grad_lse: what each row takes back from the gradient of its scores."""
    pull = (grad_out.to(dtype) * out).sum(-1)
    return pull if grad_lse is None else pull - grad_lse


def sinks_gradient(sinks: Tensor, lse: Tensor, pull: Tensor) -> Float[Tensor, "heads"]:
    """The gradient of each sink's logit: minus its weight times the row's pull."""
    return -(sinks_weight(sinks, lse) * pull).sum((0, 2)).to(sinks.dtype)


def sinks_weight(sinks: Tensor, lse: Tensor) -> Float[Tensor, "batch heads query"]:
    """What a sink takes of each row: exp(sink − lse), all of it where lse has fewer digits."""
    return _share(sinks.to(lse.dtype)[:, None].expand_as(lse), lse).clamp(max=1.0)


def awake(lse: Tensor) -> Tensor:
    """lse with 0 for rows that see nothing: their scores are all −inf, and exp(−inf − 0) is 0."""
    return lse.masked_fill(lse == -torch.inf, 0.0)


def _share(lse: Tensor, total: Tensor) -> Tensor:
    # −inf − −inf: a row that saw nothing here nor elsewhere has no share to give.
    return torch.exp(lse - total).masked_fill(lse == -torch.inf, 0.0)
