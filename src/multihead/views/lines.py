"""Lines on a console: words of one width, paragraphs, columns. None ends in spaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

INDENT = "  "


def fit(word: str, cells: int, *, right: bool = False) -> str:
    """A word in exactly so many cells of the terminal, cut with … where it is longer.

    >>> fit("cat", 5), fit("yesterday", 5), fit("cat", 5, right=True), fit("日本語", 5)
    ('cat  ', 'yest…', '  cat', '日本…')
    """
    if cell_len(word) > cells:
        word = set_cell_size(word, cells - 1) + "…"
    pad = " " * (cells - cell_len(word))
    return pad + word if right else word + pad


def say(console: Console, words: str, style: str = "") -> None:
    """A paragraph."""
    paragraph = Text(words, style)
    show(console, paragraph.wrap(console, max(20, console.width - 2 * len(INDENT))))


def show(console: Console, lines: Iterable[Text]) -> None:
    """Lines as they are, cut where the terminal ends."""
    for line in lines:
        whole = Text(INDENT, no_wrap=True).append_text(line)
        whole.truncate(console.width)
        whole.rstrip()
        console.print(whole)


def columns(rows: Sequence[Sequence[str]], gap: int = 3) -> list[Text]:
    """Rows in columns, the first row their heading; numbers stand right, names left.

    >>> for line in columns([("", "maps"), ("one wide head", "1"), ("slices", "4")]):
    ...     print(line.plain)
                     maps
    one wide head       1
    slices              4
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for number, row in enumerate(rows):
        cells = [fit(cell, widths[c], right=c > 0) for c, cell in enumerate(row)]
        lines.append(Text((" " * gap).join(cells), "" if number else "dim"))
    return lines
