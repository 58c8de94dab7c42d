"""What was found, in plain sentences with their evidence; what was not tested says so."""

from __future__ import annotations

import math
from collections import Counter

from ..patterns import PATTERNS, Name, Verdict
from .counts import many
from .report import ORDER, TRIED, Report
from .tokens import visible

FEW = 4  # heads named after the strongest
ENOUGH = 32  # tokens: in a shorter text every head has habits
WHERE = ("on cue", "at rest")


def findings(report: Report) -> list[str]:
    """A few sentences a line: counts first, then the patterns, then habits."""
    found = [*_damage(report), *_counts(report)]
    if report.names is not None:
        found += [_pattern(report, p) for p in TRIED]
        others = [p for p in ORDER if p not in TRIED and p != "first token"]
        found += [_pattern(report, p) for p in others if report.strongest(p)]
    if not report.habits:  # what they need was not recorded
        return found
    if report.places < ENOUGH:
        of = "a text" if report.unit == "token" else "a recording"
        return [*found, f"In {of} of fewer than {ENOUGH} {report.unit}s habits say nothing."]
    return [*found, *_resting(report), *_sinks(report), *_positional(report)]


def label(layer: int, head: int) -> str:
    return f"{layer}.{head}"


def signed(change: float) -> str:
    """
    >>> signed(1.944), signed(-0.127), signed(-0.001)
    ('+1.94', '−0.13', '+0.00')
    """
    return f"{change:+z.2f}".replace("-", "−")


def _damage(report: Report) -> list[str]:
    damaged = report.rec.damaged()
    if not damaged:
        return []
    return [f"In {many(len(damaged), 'layer')} a weight is not a number, first in {damaged[0]}."]


def _counts(report: Report) -> list[str]:
    every = sum(layer.heads for layer in report.rec.layers)
    if report.names is None:
        was = "was" if every == 1 else "were"
        return [
            f"{many(every, 'head')} {was} recorded; no names were looked for ({report.unnamed})."
        ]
    by = {w: {(n.layer, n.head) for n in report.names if n.where == w} for w in WHERE}
    named = by["on cue"] | by["at rest"]
    beside = "" if report.controlled else " No controls were run (--quick): take names as guesses."
    return [
        f"{len(named)} of {many(every, 'head')} {'has' if len(named) == 1 else 'have'} a name: "
        f"{len(by['on cue'])} on cue (random tokens that come twice{_after(report)}), "
        f"{len(by['at rest'])} at rest ({report.rest}).{beside}"
    ]


def _after(report: Report) -> str:
    return "" if report.about.bos is None else f", after {visible(report.about.bos)}"


def _pattern(report: Report, pattern: str) -> str:
    name = report.strongest(pattern)
    if name is None:
        return f"No head earned the name {pattern}."
    verdict = report.verdict(name)
    parts = [_measured(name), "Not tested." if verdict is None else _cut(verdict)]
    return " ".join([*parts, *_others(report, name)])


def _measured(name: Name) -> str:
    chance = f", chance {name.chance:.{2 if name.chance >= 0.01 else 3}f}"
    beyond = ""
    if PATTERNS[name.pattern].excess:  # which is held against chance already
        chance, beyond = "", " beyond chance"
    control = "" if math.isnan(name.control) else f", controls {name.control:.2f}"
    return (
        f"Head {label(name.layer, name.head)} {PATTERNS[name.pattern].says} ({name.pattern}, "
        f"{name.where}): {name.score:.2f} ± {name.score - name.low:.2f} of its weight{beyond} "
        f"where there is an opportunity{chance}{control}, {name.rows:,} rows."
    )


def _cut(verdict: Verdict) -> str:
    """What the cut did, and the same for the head's other links and for all heads of the name."""
    if verdict.measured == "loss":
        shown, what = signed, "{} nats a token on the second copy"
        begin = "Cutting just those links costs"
    else:
        shown, what = (
            taken,
            "{} from the weight that the induction heads behind it put on their links",
        )
        begin = "Cutting just those links takes"
    own, elsewhere, together = (
        shown(change) for change in (verdict.effect, verdict.elsewhere, verdict.together)
    )
    said = (
        f"{begin} {what.format(own)}; its strongest other links, which hold "
        f"{verdict.elsewhere_mass:.2f} of a row, {elsewhere}; those links in all heads of this "
        f"name, {together}."
    )
    if verdict.holds:
        return f"{said} So the name holds."
    return f"{said} So it looks there, but that the model needs it to does not show."


def taken(change: float) -> str:
    """
    >>> taken(0.484), taken(-0.001), taken(-0.02)
    ('0.48', '0.00', '−0.02')
    """
    return f"{change:z.2f}".replace("-", "−")


def _others(report: Report, name: Name) -> list[str]:
    """The other heads of the same name, each once."""
    alike = [n for n in report.names or () if n.pattern == name.pattern]
    others = list(dict.fromkeys((n.layer, n.head) for n in alike))
    others.remove((name.layer, name.head))
    if not others:
        return ["It is the only head of this name."]
    some = ", ".join(label(*pair) for pair in others[:FEW])
    more = f" and {len(others) - FEW} more" if len(others) > FEW else ""
    return [f"Also: {some}{more}."]


def _resting(report: Report) -> list[str]:
    """How many heads rest on the first token, and whether it says anything."""
    own = [s for habit in report.habits for s in habit.sinks if s.key == 0]
    every = sum(layer.heads for layer in report.rec.layers)
    first = f" ({visible(report.words[0])})" if report.words else ""
    leave = "leaves" if 1 in (len(own), every) else "leave"
    said = (
        f"{len(own)} of {many(every, 'head')} {leave} over 0.3 of a row on the first "
        f"{report.unit}{first}"
    )
    quiet = sum(s.resting is True for s in own)
    if own and all(s.resting is not None for s in own):
        rest = "it rests" if quiet == 1 else "they rest"
        return [f"{said}. In {quiet} of them it has little to say (‖v W_O‖): {rest} there."]
    return [f"{said}."]


def _sinks(report: Report) -> list[str]:
    """Other tokens that many rows leave their weight on."""
    keys = Counter(s.key for habit in report.habits for s in habit.sinks if s.key > 0)
    if not keys:
        return []
    some = ", ".join(
        f"{report.unit} {key}{f' ({visible(report.words[key])})' if report.words else ''} in "
        f"{many(count, 'head')}"
        for key, count in keys.most_common(FEW)
    )
    return [f"Other such sinks: {some}."]


def _positional(report: Report) -> list[str]:
    own = [habit for habit in report.habits if habit.positional]
    if not own:
        return []
    some = ", ".join(
        f"{label(h.layer, h.head)} at {signed_place(h.distance)}" for h in own[: 2 * FEW]
    )
    more = f" and {len(own) - 2 * FEW} more" if len(own) > 2 * FEW else ""
    return [
        f"{many(len(own), 'head')} {'looks' if len(own) == 1 else 'look'} hardest at one and the "
        f"same distance in 9 rows of 10: {some}{more}."
    ]


def signed_place(distance: int) -> str:
    """
    >>> signed_place(-1), signed_place(0), signed_place(2)
    ('−1', '0', '+2')
    """
    return f"{distance:+d}".replace("-", "−") if distance else "0"
