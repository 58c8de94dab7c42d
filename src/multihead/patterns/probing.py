"""Names for heads that can be trusted: random tokens repeated, a text, and two controls.

On cue: [BOS] + r + gap + r with random tokens, over many seeds; lengths and gaps vary, so that a
head that always looks so far back cannot pass. At rest: a text. Controls: the same model with its
weights shuffled, and texts in which what the pattern points at means nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..observation import mass
from ..recording import record
from .default_text import DEFAULT_TEXT
from .table import PATTERNS, Pattern, Text, describe, opportunities

LEAST, TIMES, PERCENTILE = 0.4, 5.0, 0.99  # what a name needs
_BLOCKS = 20  # a text's rows in so many parts, for an interval
_LONGEST = 112  # tokens of a cue: BOS, 47, a gap of 15, and 47 again
Progress = Callable[[str, float], None]


@dataclasses.dataclass(frozen=True)
class Name:
    """What a head is called, and the evidence for it."""

    layer: int
    head: int
    pattern: str
    where: str  # "on cue" for repeated random tokens, "at rest" for a text
    score: float  # mean weight inside the pattern, over rows with an opportunity
    low: float  # the lower end of its 95 % interval
    chance: float  # of a head that looks at all keys alike
    control: float  # the 99th percentile of the controls
    spread: float  # standard deviation over seeds, or over parts of the text
    rows: int  # rows with an opportunity

    def __str__(self) -> str:
        return (
            f"{self.layer}.{self.head} {self.pattern} ({self.where}): {self.score:.2f} "
            f"± {self.score - self.low:.2f}, chance {self.chance:.3f}, control {self.control:.2f}, "
            f"{self.rows} rows"
        )


@dataclasses.dataclass
class Score:
    """One pattern under one condition, for all heads."""

    pattern: Pattern
    where: str
    values: Tensor  # (seed or part, head of all layers)
    chance: float
    rows: int
    control: float = math.nan

    @property
    def mean(self) -> Tensor:
        return self.values.mean(0)

    @property
    def low(self) -> Tensor:
        error = self.values.std(0) / math.sqrt(len(self.values))
        return self.mean - 1.96 * error

    def named(self) -> Tensor:
        """Which heads earn the name, (head of all layers,)."""
        enough = (self.mean >= LEAST) & (self.low > TIMES * self.chance)
        return enough & (self.mean > self.control) if not math.isnan(self.control) else enough


@dataclasses.dataclass
class Probe:
    """What every head of a model scored, and the names that follow."""

    model: nn.Module
    heads: list[tuple[int, int]]  # layer and head, in the order of all values
    scores: list[Score]
    cues: list[tuple[Text, int, int]]  # each text, where its first copy and its second begin
    text: Text
    has_bos: bool
    controlled: bool

    def names(self) -> list[Name]:
        """Every name that a head earned: strongest first; a head may have several."""
        found = []
        for score in self.scores:
            for i in score.named().nonzero()[:, 0].tolist():
                layer, head = self.heads[i]
                numbers = (float(score.mean[i]), float(score.low[i]), score.chance, score.control)
                spread = float(score.values[:, i].std())
                what = (score.pattern.name, score.where)
                found.append(Name(layer, head, *what, *numbers, spread, score.rows))
        return sorted(found, key=lambda name: -name.score)

    def table(self) -> list[dict[str, Any]]:
        """One dict a head, with its score in every pattern and condition."""
        rows = []
        for i, (layer, head) in enumerate(self.heads):
            row: dict[str, Any] = {"layer": layer, "head": head}
            row |= {f"{s.pattern.name}, {s.where}": float(s.mean[i]) for s in self.scores}
            rows.append(row)
        return rows

    def __repr__(self) -> str:
        named = self.names()
        heads = {(name.layer, name.head) for name in named}
        return f"Probe of {len(self.heads)} heads: {len(heads)} of them have {len(named)} names"


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
    heads score under the controls. `vocab` is how many tokens to draw from, where the model's
    configuration does not say.
    """
    if seeds < 20:
        raise ValueError(
            f"a name needs at least 20 seeds, but seeds={seeds} came; give 20 or more."
        )
    tell = progress or (lambda what, share: None)
    cues = make_cues(model, tokenizer, seeds, vocab)
    plain = describe(_ids(text, tokenizer), tokenizer)
    has_bos = bool(cues[0][0].special[0])
    steps = 1 + 2 * controls
    heads, scores = _measure(model, cues, plain, lambda s: tell("heads on cue", s / steps))
    if controls:
        shuffled = [
            (_scrambled(one, i), first, second) for i, (one, first, second) in enumerate(cues)
        ]
        _, other = _measure(
            model, shuffled, _scrambled(plain, 0), lambda s: tell("other texts", (1 + s) / steps),
            links=(cues, plain),
        )  # fmt: skip
        random = shuffle_weights(model)
        _, chance = _measure(random, cues, plain, lambda s: tell("random weights", (2 + s) / steps))
        for score, a, b in zip(scores, other, chance, strict=True):
            pool = [b.values] + ([a.values] if score.pattern.by_content else [])
            score.control = max(float(v.mean(0).quantile(PERCENTILE)) for v in pool)
    return Probe(model, heads, scores, cues, plain, has_bos, controls)


def make_cues(
    model: nn.Module, tokenizer: Any, seeds: int, vocab: int | None
) -> list[tuple[Text, int, int]]:
    """[BOS] + r + gap + r for each seed, and where the two copies begin."""
    count = vocab or getattr(getattr(model, "config", None), "vocab_size", None)
    if count is None:
        raise ValueError("how many tokens the model knows is not told; give vocab=.")
    special = {*getattr(tokenizer, "all_special_ids", ())}
    plain = torch.tensor([i for i in range(count) if i not in special])
    longest = getattr(getattr(model, "config", None), "max_position_embeddings", None) or _LONGEST
    if len(plain) < _LONGEST // 2 or longest < _LONGEST:
        raise ValueError(
            f"a probe draws texts of up to {_LONGEST} tokens, half of them different, but this "
            f"model has {len(plain)} tokens and room for {longest}; it is too small to be named."
        )
    bos = getattr(tokenizer, "bos_token_id", None)
    found = []
    for seed in range(seeds):
        random = torch.Generator().manual_seed(seed)
        length = int(torch.randint(16, 48, (), generator=random))
        gap = int(torch.randint(0, 16, (), generator=random))
        drawn = plain[torch.randperm(len(plain), generator=random)[: length + gap]]
        front = [] if bos is None else [torch.tensor([bos])]
        ids = torch.cat([*front, drawn, drawn[:length]])
        first = len(front)
        found.append((describe(ids, tokenizer), first, first + length + gap))
    return found


def _measure(
    model: nn.Module,
    cues: list[tuple[Text, int, int]],
    plain: Text,
    tell: Callable[[float], None],
    links: tuple[list[tuple[Text, int, int]], Text] | None = None,
) -> tuple[list[tuple[int, int]], list[Score]]:
    """Every pattern on every cue and on the text; `links` are of other texts, for the control."""
    meant, meant_plain = links or (cues, plain)
    heads: list[tuple[int, int]] = []
    on_cue: dict[str, list[Tensor]] = {}
    told: dict[str, list[tuple[float, int]]] = {}
    for n, ((text, _, second), (other, _, _)) in enumerate(zip(cues, meant, strict=True)):
        heads, masses, allowed = masses_of(model, text, other)
        for name, values in masses.items():
            counts, chance = opportunities(PATTERNS[name], other, allowed)
            counts[: second if PATTERNS[name].by_content else 0] = False
            if counts.any():
                on_cue.setdefault(name, []).append(values[:, counts].mean(1))
                told.setdefault(name, []).append((float(chance[counts].mean()), int(counts.sum())))
        tell((n + 1) / (len(cues) + 1))
    scores = []
    for name, values in on_cue.items():
        if name != "separator":  # random tokens have no meaning
            chances, rows = zip(*told[name], strict=True)
            mean = sum(chances) / len(chances)
            scores.append(Score(PATTERNS[name], "on cue", torch.stack(values), mean, sum(rows)))
    _, masses, allowed = masses_of(model, plain, meant_plain)
    for name, values in masses.items():
        counts, chance = opportunities(PATTERNS[name], meant_plain, allowed)
        if int(counts.sum()) >= _BLOCKS:
            parts = values[:, counts].tensor_split(_BLOCKS, dim=1)
            means = torch.stack([part.mean(1) for part in parts])
            where, share = "at rest", float(chance[counts].mean())
            scores.append(Score(PATTERNS[name], where, means, share, int(counts.sum())))
    tell(1.0)
    return heads, scores


def masses_of(
    model: nn.Module, text: Text, meant: Text
) -> tuple[list[tuple[int, int]], dict[str, Tensor], Tensor]:
    """The weight inside each pattern of `meant`, (head, row), and who may see whom."""
    stats = [mass(p.mask(meant), name=p.name) for p in PATTERNS.values()]
    device = next(model.parameters()).device
    with record(model, stats=[_moved(s, device) for s in stats], keep_qk=False) as rec:
        model(text.ids[None].to(device))
    n = len(text.ids)
    layers = [one for one in rec.layers if one.queries == one.keys == n and not one.crosses]
    if not layers:
        raise ValueError("the model has no self-attention over the whole text; nothing to name.")
    allowed = layers[-1].allowed()
    sees_ahead = bool(allowed.triu(1).any())
    masses = {
        p.name: torch.cat([one[p.name][0] for one in layers])
        for p in PATTERNS.values()
        if sees_ahead or not p.ahead
    }
    return [(one.index, h) for one in layers for h in range(one.heads)], masses, allowed


def _moved(statistic: Any, device: torch.device) -> Any:
    return mass(statistic.mask.to(device), name=statistic.name)


def _scrambled(text: Text, seed: int) -> Text:
    """The same tokens in another order, special ones in their places."""
    random = torch.Generator().manual_seed(10_000 + seed)
    places = (~text.special).nonzero()[:, 0]
    order = places[torch.randperm(len(places), generator=random)]
    ids, marks = text.ids.clone(), text.marks.clone()
    ids[places], marks[places] = text.ids[order], text.marks[order]
    return Text(ids, text.special, marks)


def shuffle_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    """A copy of a model in which each matrix holds the same numbers in another order."""
    copied = copy.deepcopy(model)
    random = torch.Generator().manual_seed(seed)
    done: set[int] = set()
    for weight in copied.parameters():
        if weight.ndim > 1 and id(weight) not in done:
            done.add(id(weight))
            order = torch.randperm(weight.numel(), generator=random).to(weight.device)
            weight.data = weight.data.flatten()[order].view_as(weight)
    return copied


def _ids(text: str | Tensor | None, tokenizer: Any) -> Tensor:
    if isinstance(text, Tensor):
        return text.flatten()
    if tokenizer is None:
        raise ValueError("a text needs a tokenizer; give tokenizer=, or token ids as text=.")
    return torch.tensor(tokenizer(text or DEFAULT_TEXT)["input_ids"])
