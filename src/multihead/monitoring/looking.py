"""The hand that looks on: each attention call of one forward, measured beside the model's own.

The model's own function answers the call, so that outputs, gradients and random numbers are what
they are without. What is measured of a layer stays on its device until the step is over.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import answer
from ..attention.problem import Problem, pose
from ..masks import prefix
from ..observation import gather, look
from ..observation.statistics import Statistic
from ..observation.statistics.entropy import Entropy
from ..observation.statistics.heatmap import Heat
from ..observation.statistics.mass import Mass
from ..observation.statistics.peak import MaxScore
from ..observation.view import View, steady
from ..recording.call import Call
from ..recording.padding import real_of_call
from ..recording.recorder import alone, calmed, exactly
from ..recording.rules import Rules
from ..recording.watch import Hand, Place
from .allowed import document_starts, own_first, relative

CELLS = 32  # of a pooled map, at most


class Seen(NamedTuple):
    """What was measured of a layer: a number for each statistic and head, and perhaps its map."""

    name: str
    values: Float[Tensor, "statistics heads"]  # NaN where no row has one, or one has NaN
    rows: Int[Tensor, "statistics heads"]  # that each is of: of 0 rows there is no such number
    maps: dict[str, Float[Tensor, "heads cells cells"]]  # of the first text: largest, mean


def sample_rows(total: int, count: int | None, seed: int) -> Int[Tensor, "row"]:
    """As many rows, one from each of equal stretches of the text, the same for the same seed.

    Drawn by a generator of their own: the model's random numbers are left alone. Drawn at all, so
    that no rhythm of the text falls in step with them.

    >>> sample_rows(8, None, 0), len(sample_rows(1000, 64, 0))
    (tensor([0, 1, 2, 3, 4, 5, 6, 7]), 64)
    """
    if count is None or count >= total:
        return torch.arange(total)
    draw = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    edges = torch.arange(count + 1) * total // count
    return edges[:-1] + (draw * edges.diff()).long()


class Looker(Hand):
    """Measures every layer of one forward pass."""

    beside = True

    def __init__(
        self, statistics: tuple[Statistic, ...], rows: int | None, seed: int, maps: bool
    ) -> None:
        self.statistics, self.rows, self.seed, self.maps = statistics, rows, seed, maps
        self.layers: dict[int, Seen] = {}
        self._rules = Rules()

    def answer(self, place: Place, call: Call) -> None:
        with exactly(call.query):
            call = self._rules.simplify(call)
        problem = pose(call.query, call.key, call.value, dropout=0.0, **call.asked)
        asked = self._of_documents(problem)
        _, _, lse, told = look(problem, asked)
        with exactly(lse):
            firm, moved = steady(problem), None
            if firm is not problem:  # a score is what it was before its row was moved
                moved, told = alone(lse), {}
                lse = answer(firm).lse
                moved = moved - alone(lse)
            told = {key: alone(value) for key, value in told.items()}
            layer = _Layer(calmed(firm), alone(lse), real_of_call(call), moved)
            rows = sample_rows(layer.every.numel(), self.rows, self.seed).to(lse.device)
            self.layers[place.index] = Seen(
                place.name, *layer.measure(asked, rows, told), layer.pooled() if self.maps else {}
            )

    def _of_documents(self, problem: Problem) -> tuple[Statistic, ...]:
        """The statistics, where the first tokens are those of each row's own document."""
        if not any(_is_first(s) for s in self.statistics):
            return self.statistics
        starts = document_starts(problem)
        if starts is None:
            return self.statistics
        return tuple(
            Mass(own_first(starts, s.mask.size), name=s.key) if _is_first(s) else s  # type: ignore[attr-defined]
            for s in self.statistics
        )


def _entropy_of(asked: tuple[Statistic, ...]) -> Statistic | None:
    return next((s for s in asked if type(s) is Entropy), None)


def _is_first(statistic: Statistic) -> bool:
    return isinstance(statistic, Mass) and isinstance(statistic.mask, prefix)


class _Layer:
    """One layer's question, and which of its rows count: those of the text that saw something."""

    def __init__(
        self, problem: Problem, lse: Tensor, real: Tensor | None, moved: Tensor | None
    ) -> None:
        self.problem, self.lse, self.moved = problem, lse, moved
        self.every = torch.arange(problem.query.shape[2], device=lse.device)
        self.counted = lse != -torch.inf  # (batch, heads, row)
        if real is not None:
            self.counted = self.counted & real.to(lse.device)[:, None]

    def measure(
        self, asked: tuple[Statistic, ...], rows: Tensor, told: dict[str, Tensor]
    ) -> tuple[Float[Tensor, "statistics heads"], Int[Tensor, "statistics heads"]]:
        """The largest `max_score` of all rows, and the mean of all else over the rows chosen;
        and of how many rows each is."""
        found, values, counts = self._gather(asked, rows, told), [], []
        for statistic in asked:
            value = found[statistic.key]
            assert isinstance(value, Tensor)
            top = isinstance(statistic, MaxScore)
            value, count = self._largest(value) if top else self._mean(statistic, value, rows)
            values.append(value)
            counts.append(count)
        return torch.stack(values), torch.stack(counts)

    def _gather(
        self, asked: tuple[Statistic, ...], rows: Tensor, told: dict[str, Tensor]
    ) -> dict[str, object]:
        if self.problem.sinks is not None and (entropy := _entropy_of(asked)):
            others = tuple(s for s in asked if s is not entropy)
            return self._gather(others, rows, told) | {entropy.key: self._among_keys(rows)}
        tops = tuple(s for s in asked if isinstance(s, MaxScore))
        rest = tuple(s for s in asked if not isinstance(s, MaxScore))
        if len(rows) == len(self.every):  # then all in one sweep
            tops, rest = (), asked
        found: dict[str, object] = {s.key: told[s.key] for s in tops if s.key in told}
        found |= {s.key: told[s.key][:, :, rows] for s in rest if s.key in told}
        for statistics, here in ((tops, self.every), (rest, rows)):
            found |= gather(self._view(here), tuple(s for s in statistics if s.key not in found))
        return found

    def _among_keys(self, rows: Tensor) -> Float[Tensor, "batch heads row"]:
        """Entropy among the keys alone: what a sink takes of a row says nothing of its breadth.

        −Σ p′ ln p′ with p′ = p / Σ p: the weights as they are without the sink. So they are worked
        out, for of a row that rests on its sink hardly a digit of 1 − sink is left.
        """
        plain = steady(dataclasses.replace(self.problem, sinks=None))
        layer = _Layer(plain, answer(plain).lse, None, None)
        found = gather(layer._view(rows), (Entropy(),))["entropy"]
        assert isinstance(found, Tensor)
        return found

    def _view(self, rows: Tensor) -> View:
        if len(rows) == len(self.every):
            return View(self.problem, self.lse, rows, len(rows))
        part = dataclasses.replace(self.problem, query=self.problem.query[:, :, rows])
        return View(part, self.lse[:, :, rows], rows, len(self.every))

    def _largest(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        scores = scores if self.moved is None else scores + self.moved
        top = scores.masked_fill(~self.counted, -torch.inf).amax((0, 2))  # (heads,)
        return top.masked_fill(top == -torch.inf, torch.nan), self.counted.sum((0, 2))

    def _mean(self, statistic: Statistic, found: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        counted = self.counted[:, :, rows]
        if type(statistic) is Entropy:
            total, count = relative(found, self.problem, rows, counted)
        else:
            total, count = found.masked_fill(~counted, 0.0).sum((0, 2)), counted.sum((0, 2))
        return total / count, count  # (heads,); NaN where no row counts

    def pooled(self) -> dict[str, Tensor]:
        """The whole map of the first text in few cells, at most one for each token."""
        first = self.problem.row(slice(0, 1))
        cells = min(CELLS, first.query.shape[2], first.key.shape[2])
        view = View(first, self.lse[:1], self.every, len(self.every))
        heat = gather(view, (Heat(cells),))[f"heatmap({cells})"]
        return {name: getattr(heat, name)[0].half() for name in ("largest", "mean")}
