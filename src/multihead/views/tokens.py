"""Tokens as a person can see them: a space is ·, a line end is ⏎."""

from __future__ import annotations

import re

MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "": "∅"}

PIECE = re.compile(r"<[0-9A-F]{2}( [0-9A-F]{2})*>")  # the bytes of a piece of a letter: recording's
JOINERS = "\u200c\u200d"  # they print nothing, and make one sign of several: 👩‍🚀


def visible(token: str) -> str:
    r"""One token on one line, with nothing in it that a terminal would obey.

    >>> visible(" cat"), visible("\n\n"), visible("\x1b[0m"), visible(""), visible("<E2 80>")
    ('·cat', '⏎⏎', '�[0m', '∅', '<E2 80>')
    """
    if not token:
        return MARKS[""]
    if PIECE.fullmatch(token):
        return token
    return "".join(MARKS.get(c, c if c.isprintable() else "\ufffd") for c in token)


def one_line(text: str) -> str:
    r"""A text on one line, with nothing in it that a terminal would obey.

    >>> one_line("Two\nlines \x1b[31m")
    'Two lines �[31m'
    """
    shown = (c if c.isprintable() or c in JOINERS else "\ufffd" for c in " ".join(text.split()))
    return "".join(shown)
