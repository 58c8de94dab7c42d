"""What each head of a small model of characters has learnt, measured on what it has not seen.

A score is the mean weight inside a pattern's mask, over the rows with an opportunity; chance is the
same for a head that looks at all keys alike. Names are short, so chance is high: a habit is told
by its excess over chance, (score − chance) / (1 − chance).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..masks import Mask, after_same_token, dense, offset, prefix, same_token
from ..observation import mass
from ..patterns.table import Pattern, Text, opportunities
from ..recording import cut, record
from ..training import GPT

HABIT = 0.25  # the excess over chance from which a head is said to have a habit


def _first(text: Text) -> Mask:
    return dense(text.special[..., None, None, :]) if bool(text.special.any()) else prefix(1)


PATTERNS = tuple(
    Pattern(name, says, mask, "")
    for name, says, mask in (
        ("previous", "the character before", lambda text: offset(-1)),
        ("two before", "the character two before", lambda text: offset(-2)),
        ("first", "the beginning", _first),
        ("self", "itself", lambda text: offset(0)),
        ("repeated", "earlier copies of the same letter", lambda text: same_token(text.ids)),
        ("after a copy", "what followed the same letter", lambda t: after_same_token(t.ids)),
    )
)


@dataclasses.dataclass(frozen=True)
class Habit:
    """How much of a head's weight lies in one pattern, where there is an opportunity."""

    pattern: str
    says: str
    score: float
    low: float  # the lower end of its 95 % interval, over texts
    chance: float
    rows: int

    @property
    def excess(self) -> float:
        return (self.score - self.chance) / (1 - self.chance) if self.chance < 1 else 0.0

    @property
    def told(self) -> bool:
        return self.excess >= HABIT and self.low > self.chance


@dataclasses.dataclass(frozen=True)
class Learnt:
    """One head: its habits, the strongest first."""

    layer: int
    head: int
    habits: tuple[Habit, ...]

    def __str__(self) -> str:
        own = [habit for habit in self.habits if habit.told]
        if not self.habits:  # a text of one letter has no row where a choice could be told
            return "nothing that could be told: the text gives no opportunity"
        if not own:
            best = self.habits[0]
            return f"no one habit; most of {best.says}, {_numbers(best)}"
        return "; ".join(f"{habit.says}, {_numbers(habit)}" for habit in own)


def _numbers(habit: Habit) -> str:
    return f"{habit.score:.2f} (chance {habit.chance:.2f})"


@torch.no_grad()
def learnt(model: GPT, ids: Int[Tensor, "rows tokens"]) -> list[Learnt]:
    """Every head of a model on rows of tokens, as they were packed to train on."""
    texts = [Text(row, row == _separator(model), torch.zeros_like(row).bool()) for row in ids]
    every = Text(ids, ids == _separator(model), torch.zeros_like(ids).bool())
    stats = tuple(mass(p.mask(every), name=p.name) for p in PATTERNS)
    with record(model, stats=stats) as rec:
        model(ids.to(next(model.parameters()).device))
    sights = [rec.layers[0].allowed(batch=n) for n in range(len(texts))]  # all layers see alike
    rows = [_rows(pattern, texts, sights) for pattern in PATTERNS]
    found = []
    for layer in rec.layers:
        for head in range(layer.heads):
            habits = [
                _habit(pattern, layer[pattern.name][:, head], *counted)
                for pattern, counted in zip(PATTERNS, rows, strict=True)
            ]
            told = sorted((h for h in habits if h.rows), key=lambda h: -h.excess)
            found.append(Learnt(layer.index, head, tuple(told)))
    return found


def _separator(model: GPT) -> int:
    return -1 if model.config.separator is None else model.config.separator


def _rows(pattern: Pattern, texts: list[Text], sights: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The rows with an opportunity and their chance, (text, row)."""
    each = [opportunities(pattern, *both) for both in zip(texts, sights, strict=True)]
    return torch.stack([counts for counts, _ in each]), torch.stack([chance for _, chance in each])


def _habit(pattern: Pattern, inside: Tensor, counts: Tensor, chance: Tensor) -> Habit:
    some = counts.any(1)
    if not bool(some.any()):
        return Habit(pattern.name, pattern.says, 0.0, 0.0, 0.0, 0)
    each = (inside.cpu() * counts).sum(1)[some] / counts.sum(1)[some]  # (text,)
    score = float(inside.cpu()[counts].mean())
    spread = float(each.std()) / math.sqrt(len(each)) if len(each) > 1 else math.inf
    return Habit(
        pattern.name, pattern.says, score, score - 1.96 * spread, float(chance[counts].mean()),
        int(counts.sum()),
    )  # fmt: skip


# ── and does the model need it?


@torch.no_grad()
def loss_without(
    model: GPT,
    batch: tuple[Int[Tensor, "rows tokens"], Int[Tensor, "rows tokens"]],
    heads: Iterable[tuple[int, int]] = (),
    pattern: str | None = None,
    *,
    others: bool = False,
) -> Tensor:
    """The loss of each text without the links of a pattern in some heads, (rows,).

    With `others`, without all links but those of the pattern: what they are worth alone.
    """
    ids, targets = batch
    chosen, surgery = [*heads], contextlib.nullcontext()
    if chosen and pattern is not None:
        every = Text(ids, ids == _separator(model), torch.zeros_like(ids).bool())
        links = next(p for p in PATTERNS if p.name == pattern).mask(every)
        surgery = cut(model, chosen, links=~links if others else links)
    with surgery:
        logits = model(ids.to(next(model.parameters()).device)).float().cpu()
    each = cross_entropy(logits.transpose(1, 2), targets, ignore_index=-1, reduction="none")
    return each.sum(1) / (targets >= 0).sum(1)  # (rows,)
