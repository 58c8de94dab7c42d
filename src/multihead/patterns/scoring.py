"""Scores: the weight inside each pattern, over the rows of each head that have an opportunity.

Who may see whom is a matter of the layer, and now and then of the head: one model may have layers
that see everything and layers with a window. Heads that see alike share the work.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..observation import mass
from ..recording import Layer, record
from ..recording.corpus import student
from .table import PATTERNS, Pattern, Text, opportunities

LEAST, TIMES = 0.4, 5.0  # what a name needs: a score, and so many times chance
BLOCKS = 20  # a text's rows in so many parts, for an interval
_ENOUGH = 10  # seeds or parts with an opportunity, below which an interval says nothing
Cue = tuple[Text, int, int]  # a text, where its first copy and its second begin


@dataclasses.dataclass
class Score:
    """One pattern under one condition, for all heads; NaN where a head had no opportunity."""

    pattern: Pattern
    where: str
    values: Tensor  # (seed or part, head of all layers)
    chance: Tensor  # (head of all layers,): 0 where the score is the excess over it
    rows: Tensor  # (head of all layers,): how many had an opportunity
    control: float = math.nan

    @property
    def mean(self) -> Tensor:
        return self.values.nanmean(0)

    @property
    def spread(self) -> Tensor:
        """The standard deviation over seeds or parts; NaN of fewer than two."""
        apart = (self.values - self.mean).square().nansum(0)
        count = self.count
        return (apart / (count - 1)).sqrt().masked_fill(count < 2, math.nan)

    @property
    def count(self) -> Tensor:
        return (~self.values.isnan()).sum(0)

    @property
    def low(self) -> Tensor:
        """The lower end of a 95 % interval."""
        reach = [student(max(1, n - 1)) for n in self.count.tolist()]
        return self.mean - torch.tensor(reach) * self.spread / self.count.sqrt()

    def named(self) -> Tensor:
        """Which heads earn the name, (head of all layers,)."""
        enough = (self.mean >= LEAST) & (self.low > TIMES * self.chance) & (self.count >= _ENOUGH)
        return enough & (self.mean > self.control) if not math.isnan(self.control) else enough


@dataclasses.dataclass(frozen=True)
class Looks:
    """What every head did with one text."""

    heads: list[tuple[int, int]]  # layer and head
    masses: dict[str, Tensor]  # the weight inside each pattern, (head, row)
    sights: list[tuple[Tensor, Tensor]]  # who may see whom, and which heads see so


def measure(
    model: nn.Module,
    cues: Sequence[Cue],
    plain: Text,
    tell: Callable[[float], None],
    links: tuple[Sequence[Cue], Text] | None = None,
) -> tuple[list[tuple[int, int]], list[Score]]:
    """Every pattern on every cue and on the text; `links` are of other texts, for the control."""
    meant, meant_plain = links or (cues, plain)
    on_cue: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for n, ((text, _, second), (other, _, _)) in enumerate(zip(cues, meant, strict=True)):
        looks = look(model, text, other)
        for pattern in PATTERNS.values():
            if pattern.name != "separator":  # random tokens have no meaning
                first = second if pattern.by_content else 0
                found = _scored(pattern, looks, other, parts=1, first=first)
                on_cue.setdefault(pattern.name, []).append(found)
        tell((n + 1) / (len(cues) + 1))
    scores = []
    for name, several in on_cue.items():
        values, chance, rows = zip(*several, strict=True)
        means = (torch.cat(values), torch.stack(chance).nanmean(0), torch.stack(rows).sum(0))
        scores.append(Score(PATTERNS[name], "on cue", *means))
    looks = look(model, plain, meant_plain)
    for pattern in PATTERNS.values():
        found = _scored(pattern, looks, meant_plain, parts=BLOCKS)
        scores.append(Score(pattern, "at rest", *found))
    tell(1.0)
    return looks.heads, [score for score in scores if bool(score.rows.any())]


def _scored(
    pattern: Pattern, looks: Looks, meant: Text, parts: int, first: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Values (part, head), chance and rows of one text from row `first` on; NaN with too few."""
    heads = len(looks.heads)
    values, chance = torch.full((parts, heads), math.nan), torch.full((heads,), math.nan)
    rows = torch.zeros(heads, dtype=torch.long)
    for allowed, mine in looks.sights:
        counts, shares = opportunities(pattern, meant, allowed)
        counts[:first] = False
        rows_here = int(counts.sum())
        if rows_here < parts:
            continue
        inside = looks.masses[pattern.name][mine][:, counts].tensor_split(parts, dim=1)
        uniform = shares[counts].tensor_split(parts)
        found = torch.stack([one.mean(1) for one in inside])  # (part, head)
        by_chance = torch.stack([one.mean() for one in uniform])[:, None]
        values[:, mine] = (found - by_chance) / (1 - by_chance) if pattern.excess else found
        chance[mine] = 0.0 if pattern.excess else by_chance.mean()
        rows[mine] = rows_here
    return values, chance, rows


def look(model: nn.Module, text: Text, meant: Text) -> Looks:
    """Run a text, and see how much weight every head puts inside each pattern of `meant`."""
    stats = [mass(p.mask(meant), name=p.name) for p in PATTERNS.values()]
    device = next(model.parameters()).device
    with record(model, stats=[_moved(s, device) for s in stats], keep_qk=False) as rec:
        model(text.ids[None].to(device))
    n = len(text.ids)
    layers = [one for one in rec.layers if one.queries == one.keys == n and not one.crosses]
    if not layers:
        raise ValueError("the model has no self-attention over the whole text; nothing to name.")
    masses = {name: torch.cat([one[name][0] for one in layers]) for name in PATTERNS}
    heads = [(one.index, h) for one in layers for h in range(one.heads)]
    return Looks(heads, masses, _sights(layers))


def _sights(layers: Sequence[Layer]) -> list[tuple[Tensor, Tensor]]:
    """Each different way to see, once, with the heads of all layers that have it."""
    by_rule: dict[Any, Tensor] = {}
    found: dict[bytes, tuple[Tensor, list[int]]] = {}
    place = 0
    for layer in layers:
        of_rule, of_each = _differs(layer)
        for head in range(layer.heads):
            key = of_rule if of_rule is not None else (place, head if of_each else 0)
            if key not in by_rule:
                by_rule[key] = layer.allowed(head=head)
            allowed = by_rule[key]
            found.setdefault(allowed.numpy().tobytes(), (allowed, []))[1].append(place + head)
        place += layer.heads
    return [(allowed, torch.tensor(heads)) for allowed, heads in found.values()]


def _differs(layer: Layer) -> tuple[tuple | None, bool]:
    """The rule of a layer's mask, where that is all of it; and whether each head has its own."""
    own = [t for n, t in layer.tensors.items() if n.startswith(("0.mask.", "0.bias", "0.offset"))]
    if len(layer.chunks) == 1 and not own:
        return (layer.chunks[0].mask, layer.chunks[0].offset), False
    return None, len(layer.chunks) > 1 or any(t.ndim > 2 and t.shape[-3] > 1 for t in own)


def _moved(statistic: Any, device: torch.device) -> Any:
    return mass(statistic.mask.to(device), name=statistic.name)
