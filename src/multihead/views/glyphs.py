"""Letters that the font of the figures has, and a readable form of those it has not."""

from __future__ import annotations

import functools
from typing import Any

FONT = "DejaVu Sans"  # the one that comes with matplotlib: alike on every machine


def drawable(text: str, most: int | None = None) -> str:
    """The text with U+732B for a letter that would be an empty box, cut after so many letters.

    >>> drawable("cat"), drawable("猫 cat"), drawable("x" * 20, 5), drawable("猫猫猫", 14)
    ('cat', 'U+732B cat', 'xxxx…', 'U+732B U+732B…')
    """
    parts: list[str] = []
    named = False  # the letter before this one was not drawn but named
    for letter in text:
        has = bool(_font().get_char_index(ord(letter)))
        told = letter if has else f"U+{ord(letter):04X}"
        parts.append(f" {told}" if named and letter != " " else told)
        named = not has
    if most is not None and len("".join(parts)) > most:
        while len("".join(parts)) >= most and len(parts) > 1:
            parts.pop()
        parts.append("…")
    return "".join(parts)


@functools.cache
def _font() -> Any:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties(family=[FONT])))
