"""On a GPU: which statistics our kernels tell, on the way through attention or in their own sweep.

What they do not know (top, expect, masks that are no band, some rows alone) is left to the sweep
over tiles, which any device has.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...attention import answer, choose, fused
from ...attention.band import Band, band_of
from ...attention.fused.question import Asked, Told, question_of
from ...attention.problem import Problem, in_a_graph, without_autocast
from ..statistics import Statistic
from ..statistics.distance import Distance
from ..statistics.entropy import Effective, Entropy
from ..statistics.heatmap import Heat, HeatMap, cell_edges
from ..statistics.mass import Mass
from ..statistics.peak import MaxScore, Peak, PeakKey
from ..statistics.received import Received, ReceivedMean
from ..view import View

_ON_THE_WAY = (Entropy, Distance, Peak, PeakKey, MaxScore, Mass)  # Effective is an Entropy


class Looked(NamedTuple):
    """What attention gave, by which backend, and the statistics that came with it."""

    backend: str
    out: Tensor
    lse: Tensor
    found: dict[str, Tensor]


class Plan(NamedTuple):
    """What to ask of the kernels on the way, of the statistics that are wanted."""

    wanted: bool  # whether there are any
    told_of: tuple[Statistic, ...]
    masses: list[Mass]
    asked: Asked


def plan_of(statistics: tuple[Statistic, ...]) -> Plan:
    told_of = tuple(s for s in statistics if isinstance(s, _ON_THE_WAY) and _known(s))
    kinds = {type(s) for s in told_of}
    masses = [s for s in told_of if isinstance(s, Mass)]
    asked = Asked(
        entropy=not kinds.isdisjoint({Entropy, Effective}), distance=Distance in kinds,
        peak=not kinds.isdisjoint({Peak, MaxScore}), peak_key=PeakKey in kinds,
        masses=tuple(_band(s) for s in masses),
    )  # fmt: skip
    return Plan(len(statistics) > 0, told_of, masses, asked)


def look(problem: Problem, asked: tuple[Statistic, ...] | Plan, backend: str = "auto") -> Looked:
    """Attention, and those of the statistics that our kernels tell on the way, for all rows.

    Who asks the same again and again plans once.
    """
    plan = asked if isinstance(asked, Plan) else plan_of(asked)
    # A graph may pull at lse, and cuDNN's has no gradient.
    tells = plan.wanted or in_a_graph() is not None
    if backend == "auto" and tells and fused.hesitates(problem) is None:
        used = "fused"  # where there is something to tell it costs least
    else:
        used = choose(problem, backend).backend
    if used != "fused" or not plan.told_of:
        out, lse = answer(problem, used)
        return Looked(used, out, lse, {})
    batch, heads, queries, _ = problem.query.shape
    for mass in plan.masses:
        mass.mask.check(batch, heads, queries, problem.key.shape[2])
    with without_autocast(problem.query.device.type):
        told = sinkless = fused.look(problem, plan.asked)
        if problem.sinks is not None and any(isinstance(s, MaxScore) for s in plan.told_of):
            # A sink may stand so far above all scores that their weights, by which they are known,
            # are 0: they are asked once more without it.
            alone = dataclasses.replace(problem, sinks=None)
            with torch.no_grad():
                sinkless = fused.look(alone, Asked(peak=True))
    places = {mass.key: place for place, mass in enumerate(plan.masses)}
    found = {s.key: _one(s, told, sinkless, places) for s in plan.told_of}
    return Looked(used, told.out, told.lse, found)


def _one(statistic: Statistic, told: Told, sinkless: Told, places: dict[str, int]) -> Tensor:
    match statistic:
        case Effective():
            assert told.entropy is not None
            return told.entropy.exp().masked_fill(told.lse.detach() == -math.inf, 0.0)
        case Mass():
            assert told.masses is not None
            return told.masses[places[statistic.key]]
        case MaxScore():  # lse + ln peak; a row that sees nothing has none
            assert sinkless.peak is not None
            lse = sinkless.lse.detach()
            return torch.where(lse == -torch.inf, 0.0, lse + sinkless.peak.log())
    return getattr(told, statistic.key)


def _known(statistic: Statistic) -> bool:
    if not isinstance(statistic, Mass):
        return True
    band = band_of(statistic.mask)
    return band is not None and band.lengths is None and not band.is_far


def _band(mass: Mass) -> Band:
    band = band_of(mass.mask)
    assert band is not None
    return band


def sweep_by_kernels(view: View, statistics: list[Statistic]) -> dict[str, object]:
    """Those of the statistics that kernels find from query, key and lse, by name."""
    whole = len(view.queries) == view.total
    if not whole or in_a_graph() is not None or fused.hesitates(view.problem) is not None:
        return {}
    return swept(view, statistics)


def swept(view: View, statistics: list[Statistic]) -> dict[str, object]:
    """The same, of a view that the kernels are known to take."""
    known = [s for s in statistics if isinstance(s, Received | ReceivedMean | Heat)]
    masses = [s for s in statistics if isinstance(s, Mass) and _known(s)]
    if not known and not masses:
        return {}
    from .columns import received, seen_by

    question, lse, found = question_of(view.problem), view.lse, {}
    columns = any(not isinstance(s, Heat) for s in known)
    total = received(question, lse) if columns else lse
    for statistic in known:
        if isinstance(statistic, Heat):
            from .cells import cells_of, pairs_of

            lengths = (view.total, view.problem.key.shape[2])
            edges = [cell_edges(length, statistic.cells) for length in lengths]
            sums, largest = cells_of(question, lse, edges)
            pairs = pairs_of(question, edges).expand(sums.shape)
            found[statistic.key] = HeatMap(sums, largest, pairs)
        elif isinstance(statistic, ReceivedMean):
            found[statistic.key] = total / seen_by(question).clamp(min=1)
        else:
            factor = statistic.factor(view)
            found[statistic.key] = total if factor is None else total * factor[..., 0]
    if masses:
        from ...attention.fused.launch import masses as masses_of

        inside = masses_of(question, lse, tuple(_band(s) for s in masses))
        found |= {s.key: inside[i] for i, s in enumerate(masses)}
    return found
