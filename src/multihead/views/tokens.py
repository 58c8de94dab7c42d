"""Tokens as a person can see them: a space is ·, a line end is ⏎."""

from __future__ import annotations

MARKS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "": "∅"}


def visible(token: str) -> str:
    r"""One token on one line, with nothing in it that a terminal would obey.

    >>> visible(" cat"), visible("\n\n"), visible("\x1b[0m"), visible("")
    ('·cat', '⏎⏎', '�[0m', '∅')
    """
    if not token:
        return MARKS[""]
    return "".join(MARKS.get(c, c if c.isprintable() else "\ufffd") for c in token)
