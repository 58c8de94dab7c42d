"""The sheet a walk is written on: rules, paragraphs, rows of numbers below their words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from rich.console import Console
from rich.text import Text
from torch import Tensor

from .counts import many
from .lines import fit, say, show

__all__ = ["LABEL", "Sheet", "many", "number", "percent", "shape", "some", "vector"]

LABEL, COLUMN = 11, 8  # cells of the label before a row of numbers, and of each number
FEW = 4  # numbers shown of a longer vector


class HasWords(Protocol):
    @property
    def words(self) -> list[str]: ...


W = TypeVar("W", bound=HasWords)


class Sheet(Generic[W]):
    """The walk, where to print it, and which word it follows."""

    def __init__(self, walk: W, console: Console) -> None:
        self.walk, self.console = walk, console
        self.number, self.name = 0, ""
        self.through = "head 0"  # where the word is followed, in a walk of several heads
        # As many words as a row of numbers holds, and one of them in the middle: it has something
        # to look back at, and something ahead that a mask can hide.
        self.shown = min(len(walk.words), max(1, (console.width - LABEL - 2) // COLUMN))
        self.follow = self.shown // 2

    @property
    def word(self) -> str:
        return fit(self.walk.words[self.follow], 20).rstrip()

    def title(self, width: int) -> None:
        """The words themselves, and a warning where the page is narrower than it wants to be."""
        words, console = self.walk.words, self.console
        title = Text(" ".join(words[:40]) + (" …" if len(words) > 40 else ""), "bold")
        console.print()
        if console.width < width:
            self.say(
                f"This page wants {width} columns and has {console.width}: wide lines are cut."
            )
            console.print()
        show(console, title.wrap(console, console.width - 4))

    def rule(self, title: str, shapes: str) -> None:
        """A line across the page: what comes on the left, its shapes on the right."""
        line = Text("── ", "dim").append(title, "bold").append(" ")
        right = f" {shapes} ──" if shapes else "─"
        line.append("─" * max(1, self.console.width - line.cell_len - len(right)), "dim")
        self.console.print()
        line.append(right, "dim").truncate(self.console.width)
        line.rstrip()
        self.console.print(line, no_wrap=True)

    def step(self, shapes: str, words: str, rungs: str) -> None:
        """The head of a step: its name, its shapes, a sentence or two, and where to read it."""
        self.step_of(shapes, words)
        self.say(f"ladder: {rungs}", "dim")

    def step_of(self, shapes: str, words: str) -> None:
        """The same without a rung."""
        self.rule(f"{self.number} {self.name}", shapes)
        self.say(words)

    def say(self, words: str, style: str = "") -> None:
        if words:
            say(self.console, words, style)

    def lines(self, lines: Sequence[Text]) -> None:
        self.console.print()
        show(self.console, lines)

    def row(self, label: str, numbers: Sequence[str]) -> None:
        """A number for each word, below the words."""
        words = "".join(fit(w, COLUMN - 1, right=True) + " " for w in self.walk.words[: self.shown])
        cells = "".join(f"{n:>{COLUMN - 1}} " for n in numbers[: self.shown])
        top = Text(" " * LABEL).append(words.rstrip(), "dim")
        self.lines([top, Text(fit(label, LABEL)).append(cells.rstrip(), "bold")])


def number(value: float, digits: int = 2) -> str:
    """
    >>> number(-1.234), number(-0.001), number(float("-inf"))
    ('-1.23', '0.00', '-inf')
    """
    return f"{value:z.{digits}f}"  # z: no -0.00


def vector(values: Tensor, digits: int = 2) -> str:
    """
    >>> import torch
    >>> vector(torch.tensor([1.0, -2.5])), vector(torch.arange(5.0), digits=1)
    (' 1.00 -2.50', ' 0.0  1.0  2.0  3.0 …')
    """
    more = " …" if len(values) > FEW else ""
    shown = (f"{number(v, digits):>{digits + 3}}" for v in values[:FEW].tolist())
    return " ".join(shown) + more


def shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))


def some(shown: int, of: int, what: str) -> str:
    """
    >>> some(8, 300, "words"), some(4, 4, "heads")
    ('The first 8 of 300 words are shown.', '')
    """
    return f"The first {shown} of {of} {what} are shown." if shown < of else ""


def percent(weight: float) -> str:
    """
    >>> percent(0.694), percent(0.001)
    ('69 %', '0 %')
    """
    return f"{100 * weight:.0f} %"
