"""What a head did: query, key and lse in; exact statistics out, and never a matrix of weights.

`observe` calls attention once for out and lse, then sweeps the tiles once for everything asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from ..attention import answer
from ..attention.merge import sinks_weight
from ..attention.problem import pose, without_autocast
from ..masks import Mask
from ..positions import Alibi
from .fused import look, sweep_by_kernels
from .gradient import RowStatistics, differentiable
from .merging import merge
from .result import RESERVED, Observation
from .statistics import Statistic, Stats, expect, find, heatmap, mass, received, top
from .statistics.peak import MaxScore
from .sweep import sweep
from .tiles import pooled_weights, similarity, weights
from .view import Rows, View, choose_rows, known_lse, steady

__all__ = [
    "Observation", "asked_statistics", "expect", "heatmap", "mass", "merge", "observe",
    "pooled_weights", "received", "similarity", "top", "weights",
]  # fmt: skip


def observe(
    query: Float[Tensor, "batch heads query dim"],
    key: Float[Tensor, "batch kv_heads key dim"],
    value: Float[Tensor, "batch kv_heads key value_dim"],
    *,
    stats: Stats = ("entropy", "distance", "peak", "received"),
    rows: Rows = None,
    lse: Float[Tensor, "batch heads query"] | None = None,
    mask: Mask | Tensor | None = None,
    bias: Float[Tensor, "..."] | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "heads"] | None = None,
    dropout: float = 0.0,
    offset: int | Int[Tensor, "batch"] | None = None,
    backend: str = "auto",
) -> Observation:
    """Attention, and what every head did on the way, exactly, in O(n) memory.

    Takes what `attend` takes, and gives the same output. `stats` says what to know; `rows` for
    which query rows (a slice, a stride, or ascending indices), at that fraction of the cost; `lse`
    reuses a known one, of all keys, where these are only some of them (then statistics carry no
    gradient). Statistics are of the weights before dropout. Gradients flow from entropy, effective,
    distance, mass and expect to query, key and sinks (not into features or a bias), and from out
    and lse as from `attend`.

    >>> import multihead as mh
    >>> q = k = v = torch.zeros(1, 1, 4, 8)                       # uniform attention
    >>> seen = mh.observe(q, k, v, mask=mh.causal(), stats=("entropy", "peak"))
    >>> seen.entropy.exp().round().tolist(), seen.backend
    ([[[1.0, 2.0, 3.0, 4.0]]], 'sdpa')
    """
    if has_torch_function((query, key, value)):  # as `attend`: who cuts or records sees it too
        return handle_torch_function(
            observe, (query, key, value), query, key, value, stats=stats, rows=rows, lse=lse,
            mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout,
            offset=offset, backend=backend,
        )  # fmt: skip
    problem = pose(
        query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        dropout=dropout, offset=offset,
    )  # fmt: skip
    asked = asked_statistics(stats)
    chosen = choose_rows(rows, query.shape[2], query.device)
    used, out, whole, told = look(problem, asked if lse is None else (), backend)
    # A slice is a view, indices are a copy.
    here = slice(None) if rows is None else rows if isinstance(rows, slice) else chosen
    row_lse = whole[:, :, here] if lse is None else known_lse(lse, whole.shape, whole, chosen)
    firm = steady(problem) if lse is None else problem
    firm_lse = row_lse if firm is problem else answer(firm, used).lse[:, :, here]
    view = View(
        problem=dataclasses.replace(firm, query=firm.query[:, :, here]),
        lse=firm_lse.detach(), queries=chosen, total=query.shape[2],
    )  # fmt: skip
    rest = tuple(statistic for statistic in asked if statistic.key not in told)
    with torch.set_grad_enabled(torch.is_grad_enabled() and lse is None):
        found = {key: value[:, :, here] for key, value in told.items()}
        found |= gather(view, rest) if rest else {}
    found = {statistic.key: found[statistic.key] for statistic in asked}
    if firm is not problem:  # a score is what it was before its row was moved
        moved = (row_lse - firm_lse).detach()
        for statistic in asked:
            score = found.get(statistic.key)
            if isinstance(statistic, MaxScore) and isinstance(score, Tensor):
                found[statistic.key] = score + moved
    real = None  # 1 wherever something was seen, but for what a sink took
    if problem.sinks is not None:
        real = (row_lse != -torch.inf).to(row_lse.dtype) - sinks_weight(problem.sinks, row_lse)
    return Observation(
        out, row_lse, found, backend=used, queries=chosen, asked=asked, whole_lse=whole,
        of_all_keys=lse is None, has_sinks=sinks is not None, real=real,
    )  # fmt: skip


def gather(view: View, asked: tuple[Statistic, ...]) -> dict[str, object]:
    """Every statistic asked, by name: those without a sweep, those with gradients, the rest."""
    if torch.compiler.is_dynamo_compiling():
        from .ungraphed import gather_as_written

        return gather_as_written(view, asked)
    with without_autocast(view.problem.query.device.type):
        return _gather(view, asked)


def _gather(view: View, asked: tuple[Statistic, ...]) -> dict[str, object]:
    p = view.problem
    by = (p.query, p.key, p.sinks)
    wants = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in by)
    found: dict[str, object] = {}
    rest = [s for s in asked if s.key != "lse"]
    if wants and (through := [s for s in rest if differentiable(s)]):
        results = RowStatistics.apply(*by, view, through)
        found.update({s.key: result for s, result in zip(through, results, strict=True)})
        rest = [s for s in rest if s.key not in found]
    with torch.no_grad():
        known = {statistic.key: statistic.at_once(view) for statistic in rest}
        found.update({key: value for key, value in known.items() if value is not None})
        rest = [s for s in rest if s.key not in found]
        found.update(sweep_by_kernels(view, rest))
        rest = [s for s in rest if s.key not in found]
        gatherers = {statistic.key: statistic.begin(view) for statistic in rest}
        if gatherers:
            sweep(_narrowed(view, [statistic.needs() for statistic in rest]), gatherers.values())
        found.update({key: gatherer.result() for key, gatherer in gatherers.items()})
    return {s.key: found[s.key] for s in asked if s.key != "lse"}


def asked_statistics(stats: Stats) -> tuple[Statistic, ...]:
    """What was asked for, by name or as it is, each once."""
    stats = (stats,) if isinstance(stats, str | Statistic) else stats
    if not isinstance(stats, Iterable):
        raise ValueError(
            f"stats must be names and statistics, but {stats!r} came; give ('entropy', 'peak')."
        )
    asked = tuple(find(s) for s in stats if s != "lse")  # which is there anyway
    keys = [s.key for s in asked]
    for key in keys:
        if not isinstance(key, str) or hasattr(Observation, key) or key in RESERVED:
            raise ValueError(f"a statistic cannot be called {key!r} here; give it another name=.")
    if len({*keys}) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"two statistics are called {twice!r}; give one of them a name=.")
    return asked


def _narrowed(view: View, needed: list[Mask | None]) -> View:
    """The same view with a mask that leaves out what no statistic looks at."""
    if any(mask is None for mask in needed):
        return view
    region = needed[0]
    for mask in needed[1:]:
        region = region | mask  # type: ignore[operator]
    own = view.problem.mask
    joint = region if own is None else own & region  # type: ignore[operator]
    return dataclasses.replace(view, problem=dataclasses.replace(view.problem, mask=joint))
