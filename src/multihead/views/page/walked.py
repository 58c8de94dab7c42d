"""A walk as one page that stands alone: the numbers and sentences that explain.js plays.

The sentences are those of the terminal: the steps of explain.py and real.py write on a sheet that
keeps what is said. The word that is followed, and its head, can be changed on the page; so they
stand in the sentences as marks, which no word of a walk can hold.
"""

from __future__ import annotations

import io
import json
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from .. import explain, real
from ..followed import Followed
from ..lines import fit
from ..sheet import Sheet, W, shape, some
from ..walk import Walk
from .bundle import bundled, page

MOST_WORDS, MOST_HEADS, MOST_NUMBERS = 16, 8, 32  # of a grid, so that cells stay large enough
DIGITS = 4
WORD, HEAD = "\ue000", "\ue001"


class Told(Sheet[W]):
    """A sheet that prints nothing and keeps the sentences."""

    def __init__(self, walk: W, shown: int) -> None:
        super().__init__(walk, Console(file=io.StringIO(), width=explain.WIDTH))
        self.shown, self.through = shown, HEAD
        self.said: list[str] = []
        self.told: dict[str, str] = {}

    @property
    def word(self) -> str:
        return WORD

    def title(self, width: int) -> None: ...

    def step(self, shapes: str, words: str, rungs: str) -> None:
        self.told = {"shapes": shapes, "words": words, "rungs": rungs}

    def step_of(self, shapes: str, words: str) -> None:
        self.step(shapes, words, "")

    def say(self, words: str, style: str = "") -> None:
        self.said += [words] * bool(words)

    def lines(self, lines: Any) -> None: ...

    def row(self, label: str, numbers: Any) -> None: ...


def walk_page(walk: Walk | Followed) -> str:
    """The whole file."""
    data = walked(walk) if isinstance(walk, Walk) else followed(walk)
    told = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return page(bundled("explain.js"), told, "attention, step by step", style="explain.css")


def walked(walk: Walk) -> dict[str, Any]:
    """The numbers of a walk through random weights, and what is said of them.

    >>> from multihead.views.walk import walk
    >>> data = walked(walk("The cat ran", heads=2, dims=6))
    >>> data["words"], [step["figure"] for step in data["steps"]][:3]
    (['The', 'cat', 'ran'], ['words', 'project_in', 'split'])
    """
    n, heads = min(len(walk.words), MOST_WORDS), min(walk.heads, MOST_HEADS)
    each = min(walk.head_dim, max(1, MOST_NUMBERS // heads))  # numbers of a head
    dims = min(walk.dims, MOST_NUMBERS)
    sheet = Told(walk, n)
    every = walk.steps
    shares = torch.einsum("hwd,hdm->whm", every.out, walk.matrices()["W_oᵀ"]).norm(dim=-1)
    return {
        **_words(walk, sheet, n),
        **_told(sheet),
        "head": 0, "heads": list(range(heads)), "head_dim": walk.head_dim, "dims": walk.dims,
        "cut": _cut(walk, n, heads, each, dims),
        "x": _numbers(walk.x[:n, :dims]),
        "matrices": {name: _numbers(w[:heads, :each, :dims])
                     for name, w in walk.matrices().items()},
        **{name: _numbers(t[:heads, :n, :each])
           for name, t in (("query", walk.query), ("key", walk.key), ("value", walk.value),
                           ("out", every.out))},
        **{name: _numbers(t[:heads, :n, :n])
           for name, t in (("dots", walk.dots), ("scaled", every.scaled), ("masked", every.masked),
                           ("weights", every.weights))},
        "rest": _numbers(every.weights[:heads, :n, n:].sum(-1)),
        "y": _numbers(walk.y[:n, :dims]), "shares": _numbers(shares[:n, :heads]),
        "ladder": list(explain.RUNGS.items()),
    }  # fmt: skip


def followed(walk: Followed) -> dict[str, Any]:
    """The same of one head of a real model, of which values are not kept."""
    n = min(len(walk.words), MOST_WORDS)
    sheet = Told(walk, n)
    every, norms = walk.steps, walk.layer.output_norm()
    stages = {"dots": walk.dots, "scaled": every.scaled, "masked": every.masked,
              "weights": every.weights}  # fmt: skip
    if walk.layer.chunks[0].softcap is not None:
        stages["capped"] = every.capped
    if not every.biased.equal(every.capped):
        stages["biased"] = every.biased
    data = {
        **_words(walk, sheet, n),
        **_told_of_head(sheet),
        "head": 0, "heads": [walk.head], "head_dim": walk.dim,
        "cut": [some(n, len(walk.words), "tokens")] if n < len(walk.words) else [],
        **{name: _numbers(t[None, :n, :n]) for name, t in stages.items()},
        "rest": _numbers(every.weights[None, :n, n:].sum(-1)),
    }  # fmt: skip
    # A real model follows a later word: there is more to look back at.
    data["follow"] = max(0, Sheet(walk, sheet.console).shown - 2)
    if norms is not None:
        data["lengths"] = _numbers(norms[0, walk.head, :n].float())
    if walk.shares is not None:
        data["shares"] = _numbers(walk.shares[:, :n].norm(dim=-1).T)
    return data


def _words(walk: Walk | Followed, sheet: Sheet[Any], n: int) -> dict[str, Any]:
    words = walk.words
    return {
        "words": words[:n], "all_words": len(words), "follow": sheet.follow,
        "names": [fit(word, 20).rstrip() for word in words[:n]],  # as sentences call them
    }  # fmt: skip


def _told(sheet: Told[Walk]) -> dict[str, Any]:
    explain.opening(sheet)
    about, *opening = sheet.said
    steps = [_pane("words", "", "what goes in", f"x {shape(sheet.walk.x)}", opening)]
    for place, (name, step) in enumerate(explain.STEPS, start=1):
        sheet.said = []
        step(sheet)
        steps.append({"figure": step.__name__, "number": str(place), "name": name, **sheet.told})
    y = shape(sheet.walk.y)
    last = ["As many vectors as went in, and as long: each word, with what it found in the others."]
    steps.append(_pane("out", "", "what comes out", f"x {shape(sheet.walk.x)} → y {y}", last))
    steps[-1]["notes"] = sheet.said  # that the layer in one call gives the same
    next(s for s in steps if s["figure"] == "softmax")["notes"] = [explain.RANDOM]
    return {"about": about, "steps": steps}


def _told_of_head(sheet: Told[Followed]) -> dict[str, Any]:
    """What is said of a head depends on the word, here and there: then there is one for each."""
    real.opening(sheet)
    *about, why, follow = sheet.said
    steps = [_pane("words", "", "what goes in", "", [why, follow])]
    for place, (name, step) in enumerate(real.STEPS, start=1):
        figure, words, notes = step.__name__, [], []
        for word in range(sheet.shown):
            sheet.follow, sheet.said = word, []
            step(sheet)
            words.append(sheet.told["words"])
            notes.append(sheet.said[-1:] if figure == "join" else sheet.said)
        told = {**sheet.told, "words": _once(words)}
        if figure in ("scale", "weigh", "join"):  # the rest is said of how a terminal draws
            told["notes"] = _once(notes)
        # What a value moves is another figure than what is added up in a random walk.
        steps.append({"figure": "moves" if figure == "weigh" else figure, "number": str(place),
                      "name": name, **told})  # fmt: skip
    return {"about": " · ".join(about), "steps": steps}


def _pane(figure: str, number: str, name: str, shapes: str, words: list[str]) -> dict[str, Any]:
    return {"figure": figure, "number": number, "name": name, "shapes": shapes,
            "words": " ".join(words), "rungs": ""}  # fmt: skip


def _once(every: list[Any]) -> Any:
    """One for all words where all are the same, else one for each."""
    return every[0] if all(one == every[0] for one in every) else {"each": every}


def _cut(walk: Walk, n: int, heads: int, each: int, dims: int) -> list[str]:
    told = [
        some(n, len(walk.words), "words"),
        some(heads, walk.heads, "heads"),
        some(each, walk.head_dim, "numbers of a head"),
        some(dims, walk.dims, "numbers of a word"),
    ]
    return [one for one in told if one]


def _numbers(tensor: Tensor) -> Any:
    """Lists of rounded numbers; what a mask forbids is null."""
    hidden = tensor.isneginf()
    lists = (torch.round(tensor.double(), decimals=DIGITS) + 0.0).tolist()  # + 0: no -0.0
    return _with_null(lists) if bool(hidden.any()) else lists


def _with_null(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_null(one) for one in value]
    return None if value == float("-inf") else value
