"""Gradients through statistics of rows, in O(n) memory: one more pass over the tiles.

For E = Σⱼ pⱼ fⱼ with a feature f that does not depend on the scores,  dE/dsⱼ = pⱼ (fⱼ − E).
For the entropy, f = −ln p does:                                       dH/dsⱼ = pⱼ (fⱼ − H + R − 1)
where R = Σⱼ pⱼ, 1 unless a sink took a share. Both hold with masks, biases and dead rows (p = 0).
A sink is one more key with a feature of 0, and no part in the entropy: with its share w of the row,
dE/ds = −w E and dH/ds = −w (H − R).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..attention.merge import sinks_gradient, sinks_weight
from ..attention.problem import exact
from ..attention.tile import product, transposed_product
from .statistics import Expectation
from .statistics.entropy import Effective, Entropy
from .statistics.expect import Expect
from .sweep import LN2, sweep, tiles
from .view import View


def differentiable(statistic: object) -> bool:
    """Whether gradients flow through this statistic to query, key and sinks."""
    return isinstance(statistic, Expectation | Expect)


class RowStatistics(torch.autograd.Function):
    """Statistics of rows as functions of query, key and sinks."""

    @staticmethod
    def forward(ctx, query, key, sinks: Tensor | None, view: View, statistics):
        p = dataclasses.replace(
            view.problem, query=query.detach(), key=key.detach(),
            sinks=None if sinks is None else sinks.detach(),
        )  # fmt: skip
        view = dataclasses.replace(view, problem=p)
        gatherers = [statistic.begin(view) for statistic in statistics]
        sweep(view, gatherers)
        results = tuple(gatherer.result() for gatherer in gatherers)
        ctx.view, ctx.statistics = view, statistics
        # What it is a function of too, so that autograd sees when it was changed in place.
        ctx.save_for_backward(query, key, sinks, *results)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        view, p = ctx.view, ctx.view.problem
        dtype = exact(p.query.dtype)
        grad_query = torch.zeros(p.query.shape, dtype=dtype, device=p.query.device)
        grad_key = torch.zeros(p.key.shape, dtype=dtype, device=p.key.device)
        terms = [
            _Term(statistic, result, grad, view)
            for statistic, result, grad in zip(
                ctx.statistics, ctx.saved_tensors[3:], grads, strict=True
            )
            if grad is not None
        ]
        for tile in tiles(view):
            pull = torch.zeros_like(tile.weights)
            for term in terms:
                term.add(tile, pull)
            pull *= tile.weights
            key = tile.part.key[:, :, tile.keys].to(dtype)
            query = tile.part.query[:, :, tile.rows].to(dtype)
            if p.softcap is not None:  # d/dx c·tanh(x/c) = 1 − tanh²(x/c)
                slope = torch.tanh(product(query, key.mT) * (p.scale / p.softcap))
                pull *= 1 - slope.square()
            grad_query[tile.here] += product(pull, key) * p.scale
            grad_key[tile.batch, :, tile.keys] += (
                transposed_product(pull, query, key.shape[1]) * p.scale
            )
        grad_sinks = None
        if p.sinks is not None and ctx.needs_input_grad[2]:
            own = torch.stack([term.own() for term in terms]).sum(0)
            grad_sinks = sinks_gradient(p.sinks, view.lse, own)
        return grad_query.to(p.query.dtype), grad_key.to(p.key.dtype), grad_sinks, None, None


class _Term:
    """What one statistic adds to the gradient of the scores of a tile, before the weights."""

    def __init__(self, statistic, result: Tensor, grad: Tensor, view: View) -> None:
        self.statistic, self.result, self.grad, self.view = statistic, result, grad, view
        if isinstance(statistic, Effective):  # through exp, to the entropy itself
            self.grad = grad * result
            self.result = result.clamp(min=1e-30).log()
        if isinstance(statistic, Entropy) and view.problem.sinks is not None:
            taken = sinks_weight(view.problem.sinks.detach(), view.lse)
            self.result = self.result + taken  # H − (R − 1)

    def own(self) -> Tensor:
        """What a sink takes of it, over its share of the row."""
        result = self.result - 1 if isinstance(self.statistic, Entropy) else self.result
        found = self.grad * result
        return found.sum(-1) if found.ndim == 4 else found

    def add(self, tile, pull: Tensor) -> None:
        grad, result = self.grad[tile.here], self.result[tile.here]
        if isinstance(self.statistic, Expect):
            features = self.statistic.features(self.view)[:, :, tile.keys]
            features = features if features.shape[0] == 1 else features[tile.batch]
            if grad.ndim == 3:
                grad, result = grad[..., None], result[..., None]
            pull += grad @ features.mT - (grad * result).sum(-1, keepdim=True)
            return
        feature = self.statistic.feature(tile)
        feature = -LN2 * feature if isinstance(self.statistic, Entropy) else feature
        pull += grad[..., None] * (feature - result[..., None])
