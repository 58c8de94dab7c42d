"""A report in the terminal: which model, the heads worth a look, what was found."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from rich.console import Console
from rich.text import Text

from ..patterns import PATTERNS, Name
from .counts import many
from .findings import findings, label
from .lines import columns, fit, say, show
from .report import ORDER, Report
from .tokens import visible

EACH = 3  # heads shown of a pattern
CELLS = (("entropy", ".2f"), ("distance", ".1f"), ("peak", ".2f"), ("first", ".2f"))
RESTS = 0.3  # a head that leaves more on the first token is far and sharp for that alone
# Which head is the most of something: a statistic, and whether the least of it is meant.
EXTREMES = {
    "sharpest": ("peak", False),
    "broadest": ("entropy", False),
    "farthest": ("distance", False),
    "most local": ("distance", True),
}


def print_report(report: Report, console: Console, *, every: bool = False) -> None:
    """The whole page; `every` lists all heads, a layer after another."""
    rule(console, "model and text")
    _header(report, console)
    rule(console, "every head" if every else "heads worth a look")
    _table(report, console, every)
    rule(console, "what was found")
    for sentence in findings(report):
        _bullet(console, sentence)


def rule(console: Console, title: str) -> None:
    line = Text("── ", "dim").append(title, "bold").append(" ")
    line.append("─" * max(1, console.width - line.cell_len), "dim").truncate(console.width)
    console.print()
    console.print(line, no_wrap=True)


def _header(report: Report, console: Console) -> None:
    about, layers = report.about, report.rec.layers
    heads = sorted({layer.heads for layer in layers})
    shared = sorted({layer.kv_heads for layer in layers})
    grouped = f", sharing {_numbers(shared, 'key head')}" if shared != heads else ""
    of = f" of {about.total:,}" if about.total and about.total > report.tokens else ""
    more = ", the first of a longer text" if about.total is None else ""
    bos = (
        f"the tokenizer put a BOS before them, {visible(about.bos or '')}"
        if about.has_bos
        else "no BOS: the tokenizer puts none before a text"
    )
    loss = "not known" if report.loss is None else f"{report.loss:.2f} nats a token"
    start = f": {report.start}" if about.content else ""
    lines = [
        ("model", about.model.removesuffix(f", {about.licence}")),  # which has a line of its own
        ("licence", about.licence or "not known here; see where the model comes from"),
        ("heads", f"{many(len(layers), 'layer')} × {_numbers(heads, 'head')}{grouped}"),
        ("text", f"{about.text}{start}"),
        ("tokens", f"{report.tokens:,}{of}{more}; {bos}"),
        ("loss", loss),
    ]
    for name, value in lines:
        wrapped = Text(value).wrap(console, max(20, console.width - 12))
        show(console, [Text(fit(name if n == 0 else "", 9), "dim") + line
                       for n, line in enumerate(wrapped)])  # fmt: skip


def _numbers(counts: Sequence[int], what: str) -> str:
    """
    >>> _numbers([1], "head"), _numbers([2, 3, 9], "head")
    ('1 head', '2 to 9 heads')
    """
    return f"{counts[0]} to " * (len(counts) > 1) + many(counts[-1], what)


def _table(report: Report, console: Console, every: bool) -> None:
    rows = report.heads()
    parts = {"": [("", row) for row in rows]} if every else groups(report, rows)
    kept = [cell for cell in CELLS if rows and cell[0] in rows[0]]
    told = [(label(r["layer"], r["head"]), *(f"{r[k]:{f}}" for k, f in kept))
            for some in parts.values() for _, r in some]  # fmt: skip
    lines = columns([("head", *(k for k, _ in kept)), *told], gap=2)
    show(console, [lines[0] + Text("  ") + Text("" if report.names is None else "names", "dim")])
    after = iter(lines[1:])
    for title, some in parts.items():
        if title:
            console.print()
            show(console, [Text(title, "bold")])
        for beside, row in some:
            _row(console, next(after), _names(beside, row.get("names") or []))
    console.print()
    shown = {(r["layer"], r["head"]) for some in parts.values() for _, r in some}
    _legend(report, console, len(rows) - len(shown))


def _row(console: Console, line: Text, names: str) -> None:
    """A head, its names in what is left of the line, on more lines where they are many."""
    left = line.cell_len + 2
    wrapped = Text(names).wrap(console, max(12, console.width - left - 2))
    for n, part in enumerate(wrapped or [Text()]):
        show(console, [(line + Text("  ") if n == 0 else Text(" " * left)) + part])


def _legend(report: Report, console: Console, more: int) -> None:
    said = (
        "head: layer.head. entropy: nats, how widely it looks. distance: tokens, how far. peak: "
        "its largest weight. first: its weight on the first token. All are means over rows."
    )
    if report.names is not None:
        said += (
            " Names: the mean weight inside the pattern where there is an opportunity (local: its "
            "excess over chance); c on cue (random tokens that come twice), r at rest (this text); "
            "the higher of the two."
        )
    if more:
        said += f" {many(more, 'more head')}: --all."
    say(console, said, "dim")


def groups(
    report: Report, rows: Sequence[dict[str, Any]]
) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """The heads worth a look: the strongest of each pattern, then the extremes, with a remark."""
    by_place = {(row["layer"], row["head"]): row for row in rows}
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for pattern in ORDER:
        own = best(report.names or (), pattern)
        if own:
            title = f"{pattern}: {PATTERNS[pattern].says} ({many(len(own), 'head')})"
            found[title] = [("", by_place[n.layer, n.head]) for n in own[:EACH]]
    awake = "heads that rest on the first token left out"
    found[f"extremes ({awake})"] = [(f"{what}; ", row) for what, row in extremes(rows).items()]
    return found


def best(names: Sequence[Name], pattern: str) -> list[Name]:
    """The heads of a pattern, each once, on cue before at rest, strongest first."""
    own = [n for n in names if n.pattern == pattern]
    once: dict[tuple[int, int], Name] = {}
    for name in sorted(own, key=lambda n: (n.where != "on cue", -n.score)):
        once.setdefault((name.layer, name.head), name)
    return list(once.values())


def extremes(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The head that is the most of something, of those that do not rest on the first token."""
    awake = [row for row in rows if row.get("first", 0.0) < RESTS] or rows
    found = {}
    for what, (key, least) in EXTREMES.items():
        ordered = sorted((row for row in awake if key in row), key=itemgetter(key))
        if ordered:
            found[what] = ordered[0 if least else -1]
    return found


def _names(beside: str, names: Sequence[Name]) -> str:
    """Each pattern once, with the higher of its scores."""
    top: dict[str, Name] = {}
    for name in sorted(names, key=lambda n: -n.score):
        top.setdefault(name.pattern, name)
    ordered = sorted(top.values(), key=lambda n: ORDER.index(n.pattern))
    marks = {"on cue": "c", "at rest": "r"}
    told = ", ".join(f"{n.pattern} {n.score:.2f}{marks[n.where]}" for n in ordered)
    return (beside + told) if told else beside.removesuffix("; ")


def _bullet(console: Console, sentence: str) -> None:
    """A finding, its later lines below the first."""
    wrapped = Text(sentence).wrap(console, max(20, console.width - 6))
    show(console, [Text("· " if n == 0 else "  ", "dim") + line for n, line in enumerate(wrapped)])
