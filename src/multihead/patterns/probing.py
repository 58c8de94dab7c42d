"""Names for heads that can be trusted: random tokens repeated, a text, and two controls.

On cue: random tokens that come twice (cues.py). At rest: a text. Controls: the same model with its
weights shuffled, and texts in which what the pattern points at means nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..recording import record
from .cues import at_rest, ids_of, make_cues, room_of, scrambled, shuffle_weights
from .habits import STATS, Habit, habits
from .scoring import BLOCKS, Cue, Score, measure
from .table import PATTERNS, Text, describe

PERCENTILE = 0.99  # of the controls, which a name must beat
Progress = Callable[[str, float], None]


@dataclasses.dataclass(frozen=True)
class Name:
    """What a head is called, and the evidence for it."""

    layer: int
    head: int
    pattern: str
    where: str  # "on cue" for repeated random tokens, "at rest" for a text
    score: float  # mean weight inside the pattern, over rows with an opportunity; see table.py
    low: float  # the lower end of its 95 % interval
    chance: float  # of a head that looks at all keys alike; 0 for an excess over it
    control: float  # the 99th percentile of the controls
    spread: float  # standard deviation over seeds, or over parts of the text
    rows: int  # rows with an opportunity

    def __str__(self) -> str:
        excess = PATTERNS[self.pattern].excess
        chance = "beyond chance" if excess else f"chance {self.chance:.3f}"
        return (
            f"{self.layer}.{self.head} {self.pattern} ({self.where}): {self.score:.2f} "
            f"± {self.score - self.low:.2f}, {chance}, control {self.control:.2f}, "
            f"{self.rows} rows"
        )


@dataclasses.dataclass
class Probe:
    """What every head of a model scored, and the names that follow.

    `probe.names()` are the names with their evidence, `probe.table()` all scores, `probe.habits()`
    what is told of each head apart from patterns; `probe.unmeasured` says what could not be scored.
    """

    model: nn.Module
    heads: list[tuple[int, int]]  # layer and head, in the order of all values
    scores: list[Score]
    cues: list[Cue]  # each text, where its first copy and its second begin
    text: Text
    has_bos: bool  # whether each cue begins with a BOS
    controlled: bool
    text_has_bos: bool = False
    cut_from: int | None = None  # how many tokens the text had, where the model has room for fewer

    def names(self) -> list[Name]:
        """Every name that a head earned: strongest first; a head may have several."""
        found = []
        for score in self.scores:
            mean, low, spread = score.mean, score.low, score.spread
            for i in score.named().nonzero()[:, 0].tolist():
                layer, head = self.heads[i]
                numbers = (float(mean[i]), float(low[i]), float(score.chance[i]), score.control)
                what = (score.pattern.name, score.where)
                rows = int(score.rows[i])
                found.append(Name(layer, head, *what, *numbers, float(spread[i]), rows))
        return sorted(found, key=lambda name: -name.score)

    def table(self) -> list[dict[str, Any]]:
        """One dict a head, with its score in every pattern and condition.

        A head that had no opportunity has NaN there: a window may not reach the first copy.
        """
        means = {f"{s.pattern.name}, {s.where}": s.mean.tolist() for s in self.scores}
        return [
            {"layer": layer, "head": head} | {what: mean[i] for what, mean in means.items()}
            for i, (layer, head) in enumerate(self.heads)
        ]

    @torch.no_grad()
    def habits(self) -> list[Habit]:
        """Positional, broad, sinks: the habits of every head on the probe's text, run once more."""
        ids = self.text.ids[None].to(next(self.model.parameters()).device)
        with at_rest(self.model), record(self.model, stats=STATS) as rec:
            self.model(ids)
        return habits(rec)

    def rows(self, pattern: str, where: str, layer: int, head: int) -> int:
        """How many rows of a head had an opportunity for a pattern."""
        place = self.heads.index((layer, head))
        own = (s for s in self.scores if (s.pattern.name, s.where) == (pattern, where))
        return next((int(score.rows[place]) for score in own), 0)

    @property
    def unmeasured(self) -> list[str]:
        """The patterns that no head could be scored in at rest: the text has too few rows."""
        scored = {(s.pattern.name, s.where) for s in self.scores}
        looked = [p for p in PATTERNS.values() if not p.ahead or (p.name, "on cue") in scored]
        return [p.name for p in looked if (p.name, "at rest") not in scored]

    def __repr__(self) -> str:
        named = self.names()
        heads = {(name.layer, name.head) for name in named}
        said = ["no BOS before it", "a BOS before it"]
        lines = [
            f"Probe of {len(self.heads)} heads: {len(heads)} of them have {len(named)} names",
            f"  on cue: {len(self.cues)} texts, each with {said[self.has_bos]}",
            f"  at rest: {len(self.text.ids)} tokens, with {said[self.text_has_bos]}",
        ]
        if self.cut_from is not None:
            lines[-1] += f"; the text has {self.cut_from}, and the model room for no more of them"
        if missing := self.unmeasured:
            every = not any(score.where == "at rest" for score in self.scores)
            lines.append(
                f"  not measured at rest, the text has fewer than {BLOCKS} rows to tell by: "
                f"{'anything at all' if every else ', '.join(missing)}"
            )
        return "\n".join(lines)


@torch.no_grad()
def probe(
    model: nn.Module,
    tokenizer: Any = None,
    *,
    text: str | Tensor | None = None,
    seeds: int = 20,
    vocab: int | None = None,
    controls: bool = True,
    progress: Progress | None = None,
) -> Probe:
    """Measure what every head does, on cue and at rest, beside controls.

    A name needs a score of 0.4, a lower 95 % bound above 5 times chance, and more than 99 % of all
    heads score under the controls. Rows with an opportunity, and chance, are those of the head's
    own layer. `vocab` is how many tokens to draw from, where the model's configuration does not
    say. A text of a few words says nothing at rest: `probe.unmeasured` tells. One that is longer
    than the model has room for is cut: `probe.cut_from` tells. Dropout is off meanwhile.
    """
    _check(model, tokenizer, seeds)
    tell = progress or (lambda what, share: None)
    ids = ids_of(text, tokenizer, model)
    plain = describe(ids[: room_of(model)], tokenizer)
    cut_from = len(ids) if len(ids) > len(plain.ids) else None
    cues = make_cues(model, tokenizer, seeds, vocab)
    with at_rest(model):
        heads, scores = _scored(model, cues, plain, controls, tell)
    bos = getattr(tokenizer, "bos_token_id", None)
    begins = bos is not None and int(plain.ids[0]) == bos
    return Probe(model, heads, scores, cues, plain, bos is not None, controls, begins, cut_from)


def _scored(
    model: nn.Module, cues: list[Cue], plain: Text, controls: bool, tell: Progress
) -> tuple[list[tuple[int, int]], list[Score]]:
    """Every head's scores, each with what the controls scored."""
    steps = 1 + 2 * controls
    heads, scores = measure(model, cues, plain, lambda s: tell("heads on cue", s / steps))
    if controls:
        shuffled = [
            (scrambled(one, i), first, second) for i, (one, first, second) in enumerate(cues)
        ]
        _, other = measure(
            model, shuffled, scrambled(plain, 0), lambda s: tell("other texts", (1 + s) / steps),
            links=(cues, plain),
        )  # fmt: skip
        random = shuffle_weights(model)
        _, chance = measure(random, cues, plain, lambda s: tell("random weights", (2 + s) / steps))
        for score, a, b in zip(scores, other, chance, strict=True):
            pool = [b] + ([a] if score.pattern.by_content else [])
            score.control = max(float(one.mean.nanquantile(PERCENTILE)) for one in pool)
    return heads, scores


def _check(model: object, tokenizer: object, seeds: object) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"a model is an nn.Module, but a {type(model).__name__} came; give the model itself."
        )
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ValueError(
            f"{type(model).__name__} reads one text and writes another, and a probe has one text; "
            "give a model of one text, or record it with mh.record."
        )
    if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
        raise ValueError(
            f"a tokenizer has decode(), but a {type(tokenizer).__name__} came; give the one that "
            "mh.load_model gives with the model, say."
        )
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 20:
        raise ValueError(
            f"a name needs at least 20 seeds, but seeds={seeds!r} came; give 20 or more."
        )
