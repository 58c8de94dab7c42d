"""Parts of the map itself: one exact tile, the whole map pooled, how alike heads are.

Identity 4: a tile is exp(s − lse). Keep query, key and lse, never the weights.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import answer
from ..attention.merge import awake
from ..attention.problem import Problem, exact, pose, without_autocast
from ..attention.stream import added
from ..attention.tile import product
from .statistics import HeatMap, heatmap
from .sweep import LN2, sweep, tiles
from .view import Rows, View, choose_rows, known_lse, steady


@torch.no_grad()
def weights(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    *,
    rows: Rows = None,
    keys: Rows = None,
    lse: Float[Tensor, "batch heads query"] | None = None,
    **asked,
) -> Float[Tensor, "batch heads row tile_keys"]:
    """One exact tile of the weights: these query rows over these keys.

    Takes `mask`, `bias`, `scale`, `softcap`, `sinks` and `offset` as `attend` does. `lse` may be
    that of an observation, of all queries; else it is worked out for these rows. For looking: no
    gradient flows through it.

    >>> import multihead as mh
    >>> q = k = torch.zeros(1, 1, 4, 8)
    >>> mh.weights(q, k, rows=slice(2, 4), mask=mh.causal())
    tensor([[[[0.3333, 0.3333, 0.3333, 0.0000],
              [0.2500, 0.2500, 0.2500, 0.2500]]]])
    """
    problem = posed(query, key, asked)
    chosen = choose_rows(rows, query.shape[2], query.device)
    columns = choose_rows(keys, key.shape[2], query.device, "keys")
    if not len(chosen) or not len(columns):
        shape = (*query.shape[:2], len(chosen), len(columns))
        return query.new_zeros(shape, dtype=exact(query.dtype))
    if lse is None:
        problem = steady(problem)
        row_lse = rows_lse(problem, chosen)
    else:
        row_lse = known_lse(lse, query.shape[:3], query, chosen)
    dtype = exact(problem.query.dtype)
    part = problem.query[:, :, chosen].to(dtype)
    with without_autocast(query.device.type):
        scores = product(part, problem.key[:, :, columns].to(dtype).mT).mul_(problem.scale)
    if problem.softcap is not None:
        scores.div_(problem.softcap).tanh_().mul_(problem.softcap)
    extra = added(problem, chosen, columns, full=False)
    scores = scores if extra is None else scores.add_(extra)
    return scores.sub_(awake(row_lse)[..., None]).exp_()


def pooled_weights(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    *,
    cells: int = 512,
    lse: Float[Tensor, "batch heads query"] | None = None,
    **asked,
) -> list[HeatMap]:
    """The whole map in cells × cells, then halved again and again down to one cell.

    Each level keeps the sum, the largest and the visible pairs of its cells; `.mean` is over those
    pairs. Takes what `weights` takes.

    >>> import multihead as mh
    >>> q = k = torch.zeros(1, 1, 16, 8)
    >>> [level.sum.shape[-1] for level in mh.pooled_weights(q, k, cells=8, mask=mh.causal())]
    [8, 4, 2, 1]
    """
    problem = posed(query, key, asked)
    every = torch.arange(query.shape[2], device=query.device)
    with torch.no_grad():
        problem = steady(problem) if lse is None else problem
        known = (
            answer(problem).lse if lse is None else known_lse(lse, query.shape[:3], query, every)
        )
        view = View(problem, known, every, query.shape[2])
        gatherer = heatmap(cells).begin(view)
        with without_autocast(query.device.type):
            sweep(view, [gatherer])
    levels = [gatherer.result()]
    while levels[-1].sum.shape[-1] > 1:
        levels.append(levels[-1].halve())
    return levels


@torch.no_grad()
def similarity(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    *,
    rows: Rows = None,
    **asked,
) -> Float[Tensor, "batch heads heads"]:
    """How unlike the heads of a layer are: the mean Jensen–Shannon divergence of their rows.

        JS(p, r) = H((p + r)/2) − (H(p) + H(r))/2      0 for the same row, ln 2 for disjoint ones

    On the rows chosen, 64 spread over the text unless given; rows that saw nothing are left out.

    >>> import multihead as mh
    >>> q = torch.randn(1, 2, 6, 4)
    >>> same = mh.similarity(torch.cat([q, q[:, :1]], dim=1), q[:, :1], mask=mh.causal())
    >>> round(same[0, 0, 2].item(), 6)
    0.0
    """
    problem = steady(posed(query, key, asked))
    total = query.shape[2]
    if rows is None:
        rows = torch.linspace(0, total - 1, min(64, total)).round().long().unique()
    chosen = choose_rows(rows, total, query.device)
    asked = {**asked, "bias": problem.bias}
    batch, heads = query.shape[:2]
    lse = rows_lse(problem, chosen)
    divergence = lse.new_zeros(batch, heads, heads)
    counted = lse.new_zeros(batch, heads, heads)
    seen = lse > -torch.inf
    whole = lse.new_full(query.shape[:3], -torch.inf)
    whole[:, :, chosen] = lse
    for place, row in enumerate(chosen.tolist()):
        part = weights(problem.query, key, rows=slice(row, row + 1), lse=whole, **asked)[:, :, 0]
        alone = -torch.special.xlogy(part, part).sum(-1)  # (batch, heads)
        both = seen[:, :, None, place] & seen[:, None, :, place]
        for head in range(heads):
            middle = (part + part[:, head : head + 1]) / 2
            mixed = -torch.special.xlogy(middle, middle).sum(-1)
            found = mixed - (alone + alone[:, head : head + 1]) / 2
            divergence[:, head] += found.masked_fill(~both[:, head], 0.0)
        counted += both
    return (divergence / counted.clamp(min=1)).clamp(min=0, max=math.log(2))


def rows_lse(problem: Problem, chosen: Tensor) -> Tensor:
    """The lse of some query rows alone, streamed over the keys, (batch, heads, row)."""
    part = dataclasses.replace(problem, query=problem.query[:, :, chosen].detach())
    lse = part.query.new_full(part.query.shape[:3], -torch.inf, dtype=exact(part.query.dtype))
    nothing = torch.zeros_like(lse)  # against it, a tile's logarithms are the scores themselves
    with torch.no_grad(), without_autocast(part.query.device.type):
        for tile in tiles(View(part, nothing, chosen, problem.query.shape[2])):
            scores = tile.log2_weights * LN2
            if tile.allowed is not None:
                scores = scores.masked_fill(~tile.allowed, -torch.inf)
            here = lse[tile.here]
            lse[tile.here] = torch.logaddexp(here, scores.logsumexp(-1))
    lse = lse.masked_fill(lse < -1e29, -torch.inf)
    return lse if problem.sinks is None else torch.logaddexp(lse, problem.sinks.to(lse)[:, None])


def posed(query: Tensor, key: Tensor, asked: dict) -> Problem:
    known = ("mask", "bias", "scale", "softcap", "sinks", "offset")
    for name in asked:
        if name not in known:
            raise TypeError(f"there is no argument {name!r} here; there are {', '.join(known)}.")
    return pose(query, key, key, **{**dict.fromkeys(known), **asked}, dropout=0.0)
