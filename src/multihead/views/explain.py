"""A walk through attention in the terminal: nine steps, each with its shapes and its numbers.

What is computed is in walk.py, what forms cost in costs.py; here it is put into words.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.console import Console
from rich.text import Text

from .costs import show_costs
from .lines import fit
from .shades import legend, maps, picture
from .sheet import LABEL, Sheet, many, number, percent, shape, some, vector
from .walk import Walk

WIDTH = 80  # columns of a whole page
MOST_HEADS = 8  # of maps and lists
MOST = 16  # words of a map, lines and columns of a picture
RANDOM = "Random weights, so these patterns mean nothing."


def explain(walk: Walk, console: Console, *, costs: bool = True) -> None:
    """Print the whole walk; `costs` adds the table of forms, which takes a second or two."""
    sheet = Sheet(walk, console)
    opening(sheet)
    for place, (name, step) in enumerate(STEPS, start=1):
        sheet.number, sheet.name = place, name
        step(sheet)
    ladder(sheet)
    if costs:
        sheet.rule("what the forms cost", "")
        show_costs(console, walk.heads, walk.dims)


def opening(sheet: Sheet[Walk]) -> None:
    walk, masked = sheet.walk, sheet.walk.layer.mask is not None
    console = sheet.console
    sheet.title(WIDTH)
    parts = [many(len(walk.words), "word"), many(walk.dims, "number") + " a word"]
    parts += [f"{many(walk.heads, 'head')} of {walk.head_dim}", "causal" if masked else "no mask"]
    sheet.say(" · ".join([*parts, f"seed {walk.seed}"]), "dim")
    console.print()
    sheet.say(
        f"The weights are random (seed {walk.seed}) and not learnt: they show how attention works, "
        "and where a head looks means nothing. Words are cut at spaces; the tokenizer of a real "
        "model cuts finer. No position is added: equal words are equal vectors."
    )
    console.print()
    follow = f"Follow one word, {sheet.word}, through {sheet.through}."
    sheet.say(f"{follow} {some(sheet.shown, len(walk.words), 'words')}".rstrip())


def project_in(sheet: Sheet[Walk]) -> None:
    walk = sheet.walk
    sheet.step(
        f"x {shape(walk.x)} → q, k, v {shape(walk.x)}",
        "Three matrices make of every word a query (what it looks for), a key (what it is found "
        "by) and a value (what it gives). Each head owns a band of their rows, drawn here once, "
        "and a band of the columns of W_o, which comes last:",
        "linear in scalar, W_query W_key W_value in one_head",
    )
    heads, columns = min(walk.heads, MOST), min(walk.dims, MOST)
    rows = min(walk.head_dim, max(1, MOST // heads))
    matrices, usual = walk.matrices(), walk.dims**-0.5
    names = "  ".join(fit(name, max(4, columns)) for name in matrices)
    lines = [Text(" " * 8).append(names, "dim")]
    for h in range(heads):
        drawn = [picture(w[h, :rows, :columns], usual) for w in matrices.values()]
        for r, parts in enumerate(zip(*drawn, strict=True)):
            label = Text(fit(f"head {h}" if r == 0 else "", 8))
            lines.append(label.append("  ".join(part.ljust(4) for part in parts), "cyan"))
        lines += [Text()] * (rows > 1)
    sheet.lines(lines)
    sheet.say("· ░ ▒ ▓ █  from far below 0 to far above", "dim")
    if rows < walk.head_dim or columns < walk.dims or heads < walk.heads:
        sheet.say(
            f"A corner of each: {rows} × {columns} of {walk.head_dim} × {walk.dims}. "
            f"{some(heads, walk.heads, 'heads')}".rstrip(), "dim",
        )  # fmt: skip


def split(sheet: Sheet[Walk]) -> None:
    walk, i = sheet.walk, sheet.follow
    sheet.step(
        f"{shape(walk.x)} → {shape(walk.query)}",
        f"The {many(walk.dims, 'number')} of each query, key and value are cut into "
        f"{walk.heads} × {walk.head_dim}. Nothing is computed. For {sheet.word}:",
        "a slice in scalar, split_heads in split; stacked never joins them",
    )
    cells = max(len(vector(walk.query[0, i], digits=1)), 12)
    names = "   ".join(fit(f"{n} of {sheet.word}", cells) for n in ("query", "key", "value"))
    lines = [Text(" " * 8).append(names.rstrip(), "dim")]
    for h in range(min(walk.heads, MOST_HEADS)):
        parts = (fit(vector(t[h, i], digits=1), cells) for t in (walk.query, walk.key, walk.value))
        lines.append(Text(fit(f"head {h}", 8) + "   ".join(parts)))
    sheet.lines(lines)
    sheet.say(some(MOST_HEADS, walk.heads, "heads"), "dim")


def score(sheet: Sheet[Walk]) -> None:
    walk = sheet.walk
    sheet.step(
        f"{shape(walk.query)} · {shape(walk.key.mT)} → {shape(walk.dots)}",
        f"How well does the query of {sheet.word} match each key? Multiply number by number and "
        f"add: {many(walk.head_dim, 'multiplication')} a pair in each head.",
        "dot in scalar, query @ key.mT in split, tile by tile in streaming",
    )
    sheet.row("q · k", [number(v) for v in walk.dots[0, sheet.follow].tolist()])


def scale(sheet: Sheet[Walk]) -> None:
    walk, root = sheet.walk, sheet.walk.head_dim**0.5
    before, after = (t.square().mean().sqrt().item() for t in (walk.dots, walk.steps.scaled))
    sheet.step(
        shape(walk.dots),
        f"A sum of {many(walk.head_dim, 'product')} grows with √{walk.head_dim} = {root:.3g}. "
        "Divided by it, scores keep one size at any width (here, over all heads: "
        f"{before:.2f} → {after:.2f}), and the softmax stays soft.",
        "every rung",
    )
    sheet.row("÷ √head_dim", [number(v) for v in walk.steps.scaled[0, sheet.follow].tolist()])


def mask(sheet: Sheet[Walk]) -> None:
    walk = sheet.walk
    masked = walk.layer.mask is not None
    sheet.step(
        shape(walk.dots),
        "A word may look at itself and back, never ahead: scores of what is to come become -inf."
        if masked
        else "There is none here (--no-mask): every word may look at every word.",
        "no future yet in scalar, triangle in one_head, causal() in fused",
    )
    sheet.row(
        "masked" if masked else "as before",
        [number(v) for v in walk.steps.masked[0, sheet.follow].tolist()],
    )


def softmax(sheet: Sheet[Walk]) -> None:
    walk, i = sheet.walk, sheet.follow
    weights = walk.steps.weights
    above = (
        "what the mask forbids is exactly 0, the rest is above 0, and a row adds up to 100 %."
        if walk.layer.mask is not None
        else "weights above 0 that add up to 100 %."
    )
    sheet.step(
        shape(weights),
        f"exp of each score, divided by the sum of its row: {above}",
        "softmax in scalar, as a running sum in streaming and fused",
    )
    sheet.row("weights", [percent(v) for v in weights[0, i].tolist()])
    rest = weights[0, i, sheet.shown :].sum().item()
    if rest > 0:
        others = many(len(walk.words) - sheet.shown, "word")
        sheet.say(f"The other {others}: {percent(rest)} together.", "dim")
    rows, heads = min(len(walk.words), MOST), min(walk.heads, MOST_HEADS)
    sheet.console.print()
    sheet.say("The map of every head, queries down and keys across:")
    visible = ~walk.steps.masked[0, :rows, :rows].isneginf()
    room = sheet.console.width - 2
    sheet.lines(maps(weights[:heads, :rows, :rows], visible, walk.words[:rows], room))
    sheet.console.print()
    sheet.say(legend(), "dim")
    cut = f"{some(rows, len(walk.words), 'words')} {some(heads, walk.heads, 'heads')}".strip()
    sheet.say(f"{RANDOM} {cut}".strip(), "dim")


def weigh(sheet: Sheet[Walk]) -> None:
    walk, i = sheet.walk, sheet.follow
    sheet.step(
        f"{shape(walk.steps.weights)} · {shape(walk.value)} → {shape(walk.steps.out)}",
        f"What {sheet.through} finds for {sheet.word}: every value times its weight, added up.",
        "dot(weights, column) in scalar, weights @ value in split",
    )
    weights = walk.steps.weights[0, i]
    order = weights.argsort(descending=True, stable=True)
    order = order[weights[order] > 0]
    heavy = sorted(order[:6].tolist())
    lines = [
        Text(fit(walk.words[j], LABEL) + f"{percent(weights[j].item()):>6} × ")
        .append(vector(walk.value[0, j]))
        for j in heavy
    ]  # fmt: skip
    if len(order) > len(heavy):
        others = order[len(heavy) :]
        found = weights[others] @ walk.value[0, others]
        lines.append(Text(fit(f"{len(others)} others", LABEL + 9)).append(vector(found)))
    total = Text(fit("sum", LABEL + 9), "bold").append(vector(walk.steps.out[0, i]))
    sheet.lines([*lines, total])


def concatenate(sheet: Sheet[Walk]) -> None:
    walk, i = sheet.walk, sheet.follow
    sheet.step(
        f"{shape(walk.steps.out)} → {shape(walk.merged)}",
        f"What all heads found, laid end to end: {walk.heads} × {walk.head_dim} = "
        f"{many(walk.dims, 'number')} again. For {sheet.word}:",
        "context += in scalar, torch.cat in stacked, merge_heads in split",
    )
    heads = walk.merged[i].unflatten(0, (walk.heads, -1))[:MOST_HEADS]
    sheet.lines([Text(fit(f"head {h}", 8) + vector(head)) for h, head in enumerate(heads)])


def project_out(sheet: Sheet[Walk]) -> None:
    walk, i = sheet.walk, sheet.follow
    gap = (walk.layer(walk.x) - walk.y).abs().max().item()
    sheet.step(
        f"{shape(walk.merged)} → y {shape(walk.y)}",
        "W_o mixes the heads: each adds its share to every number of the output. "
        f"How long the share of each is in {sheet.word}:",
        "attn_wo in scalar, out_proj in split and fused; stacked does not mix",
    )
    shares = torch.einsum("hd,hdm->hm", walk.merged[i].unflatten(0, (walk.heads, -1)),
                          walk.matrices()["W_oᵀ"]).norm(dim=-1)  # fmt: skip
    sizes = "   ".join(f"head {h} {number(s)}" for h, s in enumerate(shares[:5].tolist()))
    sheet.lines([Text(sizes + ("   …" if walk.heads > 5 else ""))])
    sheet.lines([Text(fit("y", 8), "bold").append(vector(walk.y[i]))])
    sheet.console.print()
    sheet.say(f"The layer in one call, attn(x), gives the same: largest difference {gap:.0e}.")


STEPS: tuple[tuple[str, Callable[[Sheet[Walk]], None]], ...] = (
    ("project", project_in),
    ("split into heads", split),
    ("score", score),
    ("scale", scale),
    ("mask", mask),
    ("softmax", softmax),
    ("weigh the values", weigh),
    ("concatenate", concatenate),
    ("project", project_out),
)
RUNGS = {
    "scalar": "all nine steps in single numbers, a word at a time",
    "one_head": "1 and 3 to 7 as matrices, for one head",
    "stacked": "several of those side by side; 8 joins them",
    "split": "one projection for all heads, cut by 2, joined by 8, mixed by 9",
    "streaming": "3 to 7 tile by tile: no map is ever whole",
    "fused": "3 to 7 in one kernel: attend",
}


def ladder(sheet: Sheet[Walk]) -> None:
    sheet.rule("the ladder", "src/multihead/ladder/")
    sheet.say("The same steps on six rungs, each a page to read, all proven equal:")
    rungs = enumerate(RUNGS.items(), start=1)
    sheet.lines([Text(f"{r} ").append(fit(n, 11), "bold").append(does) for r, (n, does) in rungs])
