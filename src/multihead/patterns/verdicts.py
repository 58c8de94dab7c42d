"""Does the name hold? Cut exactly the links that earned it, and see what should suffer.

Whole-head ablation is not enough: without a previous-token head there is no induction either. So
each name is tried by cutting the links inside its mask alone, beside three others: the strongest
other links of the same head, up to the same weight; the same links in the layer's other heads; and
the same links in all heads of that name at once, because heads stand in for one another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..masks import Mask, dense
from ..recording import Recording, ablate, cut, record
from ..recording.corpus import student
from .cues import at_rest
from .probing import Name, Probe
from .scoring import look
from .table import PATTERNS, Text, opportunities

_NOTHING = 0.02  # nats: what a cut of a resting head may cost


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a cut did: how much worse what should suffer became, with what was cut beside it."""

    name: Name
    measured: str  # what should suffer
    effect: float  # mean change over texts; above 0 is worse
    low: float  # the lower end of its 95 % interval
    untouched: float  # change of what should stay (NaN where nothing is named)
    elsewhere: float  # cutting the head's strongest other links, at most as heavy
    mass: float  # how much of a row with an opportunity was cut,
    elsewhere_mass: float  # and how much of it elsewhere
    others: float  # cutting the same links in the layer's other heads
    together: float  # cutting them in every head of this name
    holds: bool

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "does not show"
        return (
            f"{self.name.layer}.{self.name.head} {self.name.pattern}: {verdict}. {self.measured} "
            f"{self.effect:+.3f}; elsewhere {self.elsewhere:+.3f}, other heads {self.others:+.3f}, "
            f"together {self.together:+.3f}"
        )


@torch.no_grad()
def verify(
    probe: Probe,
    names: Iterable[Name] | None = None,
    *,
    most: int = 3,
    texts: int = 8,
    progress: Callable[[str, float], None] | None = None,
) -> list[Verdict]:
    """Try names by cutting; the `most` strongest of each pattern unless `names` are given.

    What was measured on cue is tried on so many `texts` of the probe.

    Induction: loss on the second copy, the first unchanged. Previous token: what the induction
    heads behind it score. Duplicate token: loss on rows that repeat. First token: nothing, when the
    head says nothing at all (a cut link's weight would go to the others, and they would speak).
    Others: the loss of the rows that had the opportunity.
    """
    _check(probe, names, most, texts)
    chosen = _of(probe, names) if names is not None else _strongest(probe.names(), most)
    found = []
    for n, name in enumerate(chosen):

        def tell(share: float, n: int = n, name: Name = name) -> None:
            if progress is not None:
                progress(f"{name.layer}.{name.head} {name.pattern}", (n + share) / len(chosen))

        with at_rest(probe.model):
            found.append(_try(probe, name, texts, tell))
    return found


def _check(probe: object, names: object, most: object, texts: object) -> None:
    if not isinstance(probe, Probe):
        raise ValueError(
            f"verify takes what mh.probe gives, but a {type(probe).__name__} came; give "
            "mh.verify(mh.probe(model, tokenizer))."
        )
    for what, count in (("most", most), ("texts", texts)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{what} must be 1 or more, but {count!r} came; give 3, say.")
    if names is not None and not isinstance(names, Iterable):
        raise ValueError(f"names are of probe.names(), but {names!r} came; give a list of some.")


def _of(probe: Probe, names: Iterable[Name]) -> list[Name]:
    """The names that were asked for, each of a head that the probe has."""
    chosen = list(names)
    for name in chosen:
        if not isinstance(name, Name):
            raise ValueError(f"names are of probe.names(), but {name!r} came; give some of those.")
        if name.pattern not in PATTERNS:
            raise ValueError(
                f"there is no pattern {name.pattern!r}; give names of probe.names(), which know "
                f"{', '.join(PATTERNS)}."
            )
        if (name.layer, name.head) not in probe.heads:
            raise ValueError(
                f"the probe has no head {name.layer}.{name.head}; give names of probe.names()."
            )
    return chosen


def _strongest(names: list[Name], most: int) -> list[Name]:
    """The strongest of each pattern, a head once: on cue where it was measured so."""
    best: dict[tuple[str, int, int], Name] = {}
    for name in sorted(names, key=lambda name: (name.where != "on cue", -name.score)):
        best.setdefault((name.pattern, name.layer, name.head), name)
    taken: dict[str, list[Name]] = {}
    for name in best.values():
        if len(taken.setdefault(name.pattern, [])) < most:
            taken[name.pattern].append(name)
    return [name for some in taken.values() for name in some]


def _try(probe: Probe, name: Name, count: int, tell: Callable[[float], None]) -> Verdict:
    own = [(name.layer, name.head)]
    alike = [(n.layer, n.head) for n in probe.names() if n.pattern == name.pattern]
    beside = [(layer, h) for layer, h in probe.heads if layer == name.layer and h != name.head]
    # Where tokens decide, random ones that come twice tell more than a text, if they can tell.
    tells = probe.rows(name.pattern, "on cue", name.layer, name.head) > 0
    cued = name.where == "on cue" or (PATTERNS[name.pattern].by_content and tells)
    texts = [(t, s) for t, _, s in probe.cues[:count]] if cued else [(probe.text, 0)]
    trial = _Trial(probe, name)
    changes: dict[str, list[Tensor]] = {}
    masses = []
    for n, (text, second) in enumerate(texts):
        tell(n / len(texts))
        links = PATTERNS[name.pattern].mask(text)
        rec = trial.record(text)
        rows = trial.rows(rec, text, second)
        bits, *both = trial.elsewhere(rec, text, rows)
        masses.append(both)
        base = trial.look(text, second, rows)
        tries: dict[str, tuple[list, Mask]] = {
            "own": (own, links), "elsewhere": (own, bits), "others": (beside, links),
            "together": ([*{*alike, *own}], links),
        }  # fmt: skip
        for what, (heads, mask) in tries.items():
            with trial.surgery(what, heads, mask):
                seen = trial.look(text, second, rows)
            changes.setdefault(what, []).append(seen.suffers - base.suffers)
            if what == "own":
                changes.setdefault("stays", []).append(seen.stays - base.stays)
    effect, low = _interval(changes["own"])
    mean = {what: _interval(values)[0] for what, values in changes.items()}
    inside, outside = torch.tensor(masses).nanmean(0).tolist()
    if math.isnan(inside):
        raise ValueError(
            f"no row of these texts gives {name.layer}.{name.head} an opportunity for "
            f"{name.pattern!r}; give names of probe.names()."
        )
    # A head with nearly all its weight in the pattern has little elsewhere: per weight, then.
    fair = max(0.0, mean["elsewhere"]) * inside / max(outside, 1e-6)
    holds = abs(effect) < _NOTHING if trial.rests else low > 0 and effect > 2 * fair
    return Verdict(
        name, trial.measured, effect, low, mean["stays"], mean["elsewhere"], inside, outside,
        mean["others"], mean["together"], holds,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Seen:
    suffers: Tensor  # one value a row, above is worse
    stays: Tensor


class _Trial:
    """What a name says should suffer, and how it is measured on a text."""

    def __init__(self, probe: Probe, name: Name) -> None:
        self.probe, self.name = probe, name
        self.followers = [
            (n.layer, n.head)
            for n in probe.names()
            if n.pattern == "induction" and n.where == "on cue" and n.layer > name.layer
        ]
        feeds = name.pattern == "previous token" and name.where == "on cue" and self.followers
        self.feeds, self.rests = bool(feeds), name.pattern == "first token"
        self.measured = "what induction heads behind it miss" if feeds else "loss"

    def surgery(self, what: str, heads: list, links: Mask) -> contextlib.AbstractContextManager:
        if not heads:
            return contextlib.nullcontext()
        if self.rests and what != "elsewhere":  # cut links would be made up for by the others
            return ablate(self.probe.model, heads)
        return cut(self.probe.model, heads, links=links)

    def record(self, text: Text) -> Recording:
        with record(self.probe.model, stats=()) as rec:
            self.probe.model(text.ids[None].to(next(self.probe.model.parameters()).device))
        if not self.feeds:
            _refuse_foresight(rec)
        return rec

    def rows(self, rec: Recording, text: Text, second: int) -> Tensor:
        """The rows of the head that have an opportunity, as it may see, (token,)."""
        allowed = rec[self.name.layer].allowed(head=self.name.head)
        counts, _ = opportunities(PATTERNS[self.name.pattern], text, allowed)
        counts[:second] = False
        return counts

    def look(self, text: Text, second: int, rows: Tensor) -> _Seen:
        if self.feeds:
            return self._followers_miss(text, second)
        loss = losses(self.probe, text)
        if second:  # the last row of the first copy knows nothing of the second
            rows = torch.arange(len(text.ids)) >= second
        counts = rows[: len(loss)]
        return _Seen(loss[counts], loss[~counts])

    def _followers_miss(self, text: Text, second: int) -> _Seen:
        looks = look(self.probe.model, text, text)
        places = [looks.heads.index(pair) for pair in self.followers]
        read = torch.full((len(looks.heads), len(text.ids)), math.nan)
        for allowed, mine in looks.sights:
            counts, _ = opportunities(PATTERNS["induction"], text, allowed)
            counts[:second] = False
            every = mine[:, None], counts.nonzero()[:, 0]
            read[every] = looks.masses["induction"][every]
        missed = 1 - read[places].nanmean(0)
        return _Seen(missed[~missed.isnan()], torch.tensor([math.nan]))  # nothing is to stay

    def elsewhere(self, rec: Recording, text: Text, rows: Tensor) -> tuple[Mask, float, float]:
        """The head's strongest links outside of the pattern, up to its weight; and both weights."""
        n, every = len(text.ids), torch.arange(len(text.ids))
        weights = rec.weights(self.name.layer, self.name.head)
        inside = PATTERNS[self.name.pattern].mask(text).allows(every, every, 0)[0, 0].expand(n, n)
        wanted = (weights * inside).sum(-1, keepdim=True)
        left, order = (weights * ~inside).sort(dim=-1, descending=True)
        taken = (left.cumsum(-1) - left < wanted) & (left > 0)
        # A row must keep something.
        taken[:, -1] = False
        bits = torch.zeros(n, n, dtype=torch.bool).scatter(1, order, taken)
        bits &= ~torch.eye(n, dtype=torch.bool) | (bits.sum(-1, keepdim=True) < every[:, None])
        own, other = (float((weights * part).sum(-1)[rows].mean()) for part in (inside, bits))
        return dense(bits[None, None]), own, other


def _refuse_foresight(rec: Recording) -> None:
    """Raise where a row may see the token that its loss is of."""
    for layer in rec.layers:
        allowed = layer.allowed(head=0)
        if bool(allowed.triu(1).any()):
            raise ValueError(
                "verify measures the loss of each next token, but this model sees it: tokens of "
                f"{layer.name} look at those behind them; give a causal language model."
            )


def losses(probe: Probe, text: Text) -> Tensor:
    """−ln p of the next token, at each row but the last."""
    ids = text.ids[None].to(next(probe.model.parameters()).device)
    output = probe.model(ids)
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.shape[:2] != ids.shape:
        raise ValueError(
            "verify needs the loss of each next token, but the model gives no logits of that "
            "shape; give a causal language model."
        )
    rows = logits[0, :-1].float()
    return torch.nn.functional.cross_entropy(rows, ids[0, 1:], reduction="none").cpu()


def _interval(changes: list[Tensor]) -> tuple[float, float]:
    """The mean change and the lower end of its 95 % interval, over texts, or rows of one."""
    some = [c for c in changes if len(c)]  # a text may have no row to tell by
    values = torch.stack([c.mean() for c in some]) if len(changes) > 1 and some else changes[0]
    if len(values) < 2:
        return float(values.mean()), -math.inf
    mean = float(values.mean())
    reach = student(len(values) - 1)
    return mean, mean - reach * float(values.std()) / math.sqrt(len(values))
