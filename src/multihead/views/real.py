"""The walk of `explain` through one head of a real model: the same steps, learnt weights."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from .explain import MOST, WIDTH
from .findings import label
from .followed import Followed, follow
from .lines import fit
from .shades import legend, maps
from .sheet import LABEL, Sheet, many, number, percent, shape, some

__all__ = ["explain_head", "follow"]

FEW = 6  # keys told one by one


def explain_head(walk: Followed, console: Console) -> None:
    """Print the whole walk."""
    sheet = Sheet(walk, console)
    # A later word than in the middle has more to look back at.
    sheet.follow = max(0, sheet.shown - 2)
    opening(sheet)
    for place, (name, step) in enumerate(STEPS, start=1):
        sheet.number, sheet.name = place, name
        step(sheet)


def opening(sheet: Sheet[Followed]) -> None:
    walk, console, layer = sheet.walk, sheet.console, sheet.walk.layer
    sheet.title(WIDTH)
    sheet.say(walk.about, "dim")
    parts = [many(len(walk.words), "token"), f"layer {layer.index}, head {walk.head}"]
    parts.append(f"{many(layer.heads, 'head')} of {walk.dim}")
    if layer.kv_heads != layer.heads:
        parts.append(many(layer.kv_heads, "key head"))
    sheet.say(" · ".join(parts), "dim")
    console.print()
    why = (
        f"Head {label(layer.index, walk.head)}, as asked; it puts "
        if walk.chosen
        else f"Head {label(layer.index, walk.head)}, because of all it reads most of the token "
        "before: "
    )
    sheet.say(
        f"The weights are learnt, and these are the model's own tokens: · is a space. {why}"
        f"{percent(walk.previous)} of its weight{' on the token before' * walk.chosen}, on average."
    )
    console.print()
    shown = some(sheet.shown, len(walk.words), "tokens")
    sheet.say(f"Follow one token, {sheet.word}. {shown}".rstrip())


def score(sheet: Sheet[Followed]) -> None:
    walk = sheet.walk
    turned = (
        "Both were turned by their places before (rope), so the score knows how far apart they "
        "stand; these are the numbers after the turn."
        if walk.turned
        else "Query and key are as the model's attention got them."
    )
    sheet.step_of(
        f"{len(walk.words)}×{walk.dim} · {walk.dim}×{len(walk.words)} → {shape(walk.dots)}",
        f"How well does the query of {sheet.word} match each key? {turned}",
    )
    sheet.row("q · k", [number(v, 1) for v in walk.dots[sheet.follow].tolist()])


def scale(sheet: Sheet[Followed]) -> None:
    walk, i, chunk = sheet.walk, sheet.follow, sheet.walk.layer.chunks[0]
    usual = abs(chunk.scale - walk.dim**-0.5) < 1e-6
    by = f"1/√{walk.dim} = {chunk.scale:.3g}" if usual else f"{chunk.scale:.3g}"
    sheet.step_of(shape(walk.dots), f"Scores are multiplied by {by}, so that they stay small.")
    sheet.row("scaled", [number(v) for v in walk.steps.scaled[i].tolist()])
    if chunk.softcap is not None:
        sheet.say(f"This model caps scores softly at ± {chunk.softcap:g}:")
        sheet.row("capped", [number(v) for v in walk.steps.capped[i].tolist()])
    if not walk.steps.biased.equal(walk.steps.capped):
        sheet.say("It adds a bias by place:")
        sheet.row("biased", [number(v) for v in walk.steps.biased[i].tolist()])


def mask(sheet: Sheet[Followed]) -> None:
    walk = sheet.walk
    hidden = bool(walk.steps.masked.isneginf().any())
    sheet.step_of(
        shape(walk.dots),
        "Scores that the model's mask forbids become -inf."
        if hidden
        else "The mask forbids nothing here.",
    )
    sheet.row("masked", [number(v) for v in walk.steps.masked[sheet.follow].tolist()])


def softmax(sheet: Sheet[Followed]) -> None:
    walk, i = sheet.walk, sheet.follow
    total = float(walk.steps.weights[i].sum())
    rest = "" if total > 0.999 else f" A sink takes the rest: the row adds up to {percent(total)}."
    sheet.step_of(
        shape(walk.steps.weights), f"exp of each score, divided by the sum of its row.{rest}"
    )
    sheet.row("weights", [percent(v) for v in walk.steps.weights[i].tolist()])
    beyond = walk.steps.weights[i, sheet.shown :].sum().item()
    if beyond > 0:
        others = many(len(walk.words) - sheet.shown, "token")
        sheet.say(f"The other {others}: {percent(beyond)} together.", "dim")
    rows = min(len(walk.words), MOST)
    sheet.console.print()
    sheet.say("Its map, queries (who asks) down and keys (who is asked) across:")
    visible = ~walk.steps.masked[None, :rows, :rows].isneginf()
    room = sheet.console.width - 2
    drawn = maps(walk.steps.weights[None, :rows, :rows], visible[0], walk.words[:rows], room)
    # The one map is of the head we follow, and not of head 0.
    drawn[0] = Text(drawn[0].plain.replace("head 0", f"head {walk.head}"), "bold")
    sheet.lines(drawn)
    sheet.console.print()
    sheet.say(legend(), "dim")
    sheet.say(some(rows, len(walk.words), "tokens"), "dim")


def weigh(sheet: Sheet[Followed]) -> None:
    walk, i = sheet.walk, sheet.follow
    norms = walk.layer.output_norm()
    sheet.step_of(
        "",
        f"What {sheet.word} gets is every value times its weight. A weight is not yet an effect: "
        "a token with much weight and a short value moves little. How far each moves the output, "
        "weight × ‖v W_O‖:",
    )
    if norms is None:
        sheet.say("The output projection of this layer was not found, so that is not known.")
        return
    weights, lengths = walk.steps.weights[i], norms[0, walk.head, : len(walk.words)].float()
    moved = weights * lengths
    lines = [Text(fit("", LABEL) + "   weight   ‖v W_O‖    moves", "dim")]
    order = weights.argsort(descending=True, stable=True)
    order = order[weights[order] > 0]
    for j in sorted(order[:FEW].tolist()):
        cells = f"{percent(float(weights[j])):>9}{lengths[j]:>10.2f}{moved[j]:>9.2f}"
        lines.append(Text(fit(walk.words[j], LABEL) + cells))
    if len(rest := order[FEW:]):
        cells = f"{percent(float(weights[rest].sum())):>9}{'':>10}{float(moved[rest].sum()):>9.2f}"
        lines.append(Text(fit(many(len(rest), "other"), LABEL) + cells))
    sheet.lines(lines)


def join(sheet: Sheet[Followed]) -> None:
    walk, i = sheet.walk, sheet.follow
    sheet.step_of(
        f"{many(walk.layer.heads, 'head')} → 1 sum",
        f"W_O mixes the {many(walk.layer.heads, 'head')} of layer {walk.layer.index}: each adds "
        f"its share, and the sum goes on. How long each share is for {sheet.word}:",
    )
    if walk.shares is None:
        sheet.say("The layer does not give its sum by itself, so shares are not known.")
        return
    lengths = walk.shares[:, i].norm(dim=-1)
    longest = max(float(lengths.max()), 1e-30)
    lines = []
    for h, length in enumerate(lengths[:MOST].tolist()):
        mark = " ← this one" if h == walk.head else ""
        bar = "█" * round(24 * length / longest)
        lines.append(Text(fit(f"head {h}", 9) + f"{length:>8.2f}  ").append(bar, "cyan") + mark)
    sheet.lines(lines)
    total = walk.shares[:, i].sum(0).norm().item()
    sheet.say(some(MOST, walk.layer.heads, "heads"), "dim")
    sheet.console.print()
    sheet.say(
        f"The sum of all shares is {total:.2f} long: shares that point apart cancel. Each was "
        "measured by taking its head away."
    )


STEPS: tuple[tuple[str, Callable[[Sheet[Followed]], None]], ...] = (
    ("score", score),
    ("scale", scale),
    ("mask", mask),
    ("softmax", softmax),
    ("weigh the values", weigh),
    ("join the heads", join),
)
