"""Numbers as shades: maps of weights, pictures of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Bool, Float
from rich.cells import cell_len
from rich.text import Text
from torch import Tensor

from .lines import fit

# From light to dark; the least of each. What a mask hides is left blank.
WEIGHTS = ((0.70, "█"), (0.40, "▓"), (0.20, "▒"), (0.05, "░"), (0.0, "·"))
NUMBERS = ((1.2, "█"), (0.4, "▓"), (-0.4, "▒"), (-1.2, "░"), (float("-inf"), "·"))


def shade(number: float, ramp: Sequence[tuple[float, str]] = WEIGHTS) -> str:
    """One number as one character.

    >>> "".join(shade(weight) for weight in (0.01, 0.1, 0.3, 0.5, 1.0))
    '·░▒▓█'
    """
    return next(mark for least, mark in ramp if number >= least)


def legend() -> str:
    """What the shades of a map stand for.

    >>> legend()
    '·· below 5 %   ░░ from 5 %   ▒▒ from 20 %   ▓▓ from 40 %   ██ from 70 %'
    """
    marks = [f"{mark * 2} from {100 * least:.0f} %" for least, mark in reversed(WEIGHTS) if least]
    return "   ".join([f"·· below {100 * WEIGHTS[-2][0]:.0f} %", *marks])


def picture(matrix: Float[Tensor, "rows columns"], usual: float) -> list[str]:
    """A matrix, a line for each row: · ░ ▒ ▓ █ from far below 0 to far above, seen from `usual`."""
    return ["".join(shade(n / usual, NUMBERS) for n in row) for row in matrix.tolist()]


def maps(
    weights: Float[Tensor, "heads words words"],
    visible: Bool[Tensor, "words words"],
    words: Sequence[str],
    width: int,
) -> list[Text]:
    """A map for each head: queries down, keys across, two cells a key.

    As many heads stand on a line as the width holds, and lines are equally full.
    """
    heads, label, each = len(weights), min(9, max(map(cell_len, words))), max(7, 2 * len(words))
    gap = next((g for g in (3, 2, 1) if label + heads * (each + g) <= width), 3)
    fits = max(1, (width - label) // (each + gap))
    fits = -(-heads // -(-heads // fits))
    letters = "".join(fit(word.lstrip("·")[:1] or "·", 2) for word in words)  # · is a space
    lines: list[Text] = []
    for first in range(0, heads, fits):
        some = range(first, min(first + fits, heads))

        def line(name: str, blocks: Sequence[str], style: str) -> Text:
            padded = ("".join((" " * gap, fit(block, each))) for block in blocks)
            return Text(fit(name, label)).append("".join(padded), style)

        lines.append(line("", [f"head {h}" for h in some], "bold"))
        lines.append(line("", [letters] * len(some), "dim"))
        for row, word in enumerate(words):
            drawn = [_row(weights[h, row].tolist(), visible[row].tolist()) for h in some]
            lines.append(line(word, drawn, "cyan"))
        lines.append(Text())
    return lines[:-1]


def _row(weights: Sequence[float], visible: Sequence[bool]) -> str:
    return "".join(shade(w) * 2 if v else "  " for w, v in zip(weights, visible, strict=True))
