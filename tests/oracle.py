"""What results are held against: attention by hand, the float64 oracle, and the numerics rule."""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch
from torch import Tensor

from multihead.attention import Problem, dense
from multihead.attention.problem import exact
from multihead.positions import Alibi


def by_hand(p: Problem) -> tuple[Tensor, Tensor]:
    """out and lse in plain Python numbers, a pair at a time: the semantics table, spelled out."""
    batch, heads, queries, dim = p.query.shape
    keys = p.key.shape[2]
    q, k, v = (t.tolist() for t in (p.query, p.key, p.value))
    allowed = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
    if p.mask is not None:
        allowed = p.mask.allows(torch.arange(queries), torch.arange(keys), p.offset)
        allowed = allowed.expand(batch, heads, queries, keys)
    out = torch.zeros(batch, heads, queries, p.value.shape[3], dtype=torch.float64)
    lse = torch.full((batch, heads, queries), -math.inf, dtype=torch.float64)
    for b, h, i in itertools.product(range(batch), range(heads), range(queries)):
        g = h // (heads // p.key.shape[1])
        place = i + (int(p.offset[b]) if isinstance(p.offset, Tensor) else p.offset)
        scores = {}
        for j in range(keys):
            if not allowed[b, h, i, j]:
                continue
            score = p.scale * sum(q[b][h][i][c] * k[b][g][j][c] for c in range(dim))
            if p.softcap is not None:
                score = p.softcap * math.tanh(score / p.softcap)
            if isinstance(p.bias, Alibi):
                score -= float(p.bias.slopes[h]) * abs(place - j)
            elif p.bias is not None:
                score += float(p.bias.expand(batch, heads, queries, keys)[b, h, i, j])
            if score > -math.inf:
                scores[j] = score
        logits = [*scores.values()] + ([] if p.sinks is None else [float(p.sinks[h])])
        if not logits:
            continue
        top = max(logits)
        lse[b, h, i] = top + math.log(sum(math.exp(s - top) for s in logits))
        for j, score in scores.items():
            weight = math.exp(score - float(lse[b, h, i]))
            out[b, h, i] += weight * torch.tensor(v[b][g][j], dtype=torch.float64)
    return out, lse


def gold(p: Problem) -> Problem:
    """The same problem in float64, on inputs already rounded to their dtype."""
    wide = {name: getattr(p, name).double() for name in ("query", "key", "value")}
    if isinstance(p.bias, Tensor):
        wide["bias"] = p.bias.double()
    elif isinstance(p.bias, Alibi):
        wide["bias"] = Alibi(p.bias.slopes.double())
    if p.sinks is not None:
        wide["sinks"] = p.sinks.double()
    return dataclasses.replace(p, **wide)


def results(run, p: Problem, grad_out: Tensor) -> dict[str, Tensor]:
    """out and the gradients of query, key and value, through a backend."""
    leaves = [t.detach().clone().requires_grad_() for t in (p.query, p.key, p.value)]
    query, key, value = leaves
    out = run(dataclasses.replace(p, query=query, key=key, value=value)).out
    grads = torch.autograd.grad(out, leaves, grad_out.to(out.dtype))
    return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *grads), strict=True))


def low(p: Problem, grad_out: Tensor) -> dict[str, Tensor]:
    """float32 scores and softmax, weights and results rounded to the dtype: an honest low bar."""
    dtype, wide = p.query.dtype, exact(p.query.dtype)

    def rounded(t: Tensor) -> Tensor:
        return t.to(dtype).to(wide)

    def summed(t: Tensor) -> Tensor:  # over the query heads that share a key head
        return t.unflatten(1, (-1, p.group)).sum(2)

    with torch.no_grad():
        steps = dense.steps(p)
    weights, grad_out = steps.weights, grad_out.to(wide)
    query, key, value = (t.to(wide) for t in (p.query, p.key, p.value))
    key, value = (t.repeat_interleave(p.group, 1) for t in (key, value))
    out = rounded(rounded(weights) @ value)
    grad_scores = weights * (grad_out @ value.mT - (grad_out * out).sum(-1, keepdim=True))
    if p.softcap is not None:
        grad_scores = grad_scores * (1 - (steps.capped / p.softcap) ** 2)
    grad_scores = rounded(grad_scores)
    return {
        "out": out,
        "dq": rounded(grad_scores @ key * p.scale),
        "dk": rounded(summed(grad_scores.mT @ query) * p.scale),
        "dv": rounded(summed(rounded(weights).mT @ grad_out)),
    }


def assert_by_the_rule(p: Problem, tested: dict[str, Tensor], grad_out: Tensor) -> None:
    """max|t − g| ≤ c·max|low − g| + (2·eps + 4·2⁻²³·max|S|)·G, for out, dq, dk and dv."""
    g = results(dense.run, gold(p), grad_out.double())
    rough = low(p, grad_out)
    eps = torch.finfo(p.query.dtype).eps
    scores = dense.steps(gold(p)).scaled.abs().max().item()
    slack = 2 * eps + 4 * torch.finfo(exact(p.query.dtype)).eps * scores
    value = p.value.double().repeat_interleave(p.group, 1)
    back = (grad_out.double() @ value.mT).abs().max().item()
    size = {
        "out": p.value.abs().max().item(),
        "dq": p.scale * p.key.abs().max().item() * back,
        "dk": p.scale * p.query.abs().max().item() * back,
        "dv": grad_out.abs().max().item(),
    }
    for name, t in tested.items():
        assert torch.isfinite(t[torch.isfinite(g[name])]).all(), name
        error = (t.double() - g[name]).abs().max().item()
        allowed = (2 if name == "out" else 3) * (rough[name] - g[name]).abs().max().item()
        allowed += slack * max(g[name].abs().max().item(), size[name])
        assert error <= allowed, f"{name}: error {error:.3g} over {allowed:.3g}"
