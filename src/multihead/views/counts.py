"""Counts in words."""

from __future__ import annotations


def many(count: int, what: str) -> str:
    """
    >>> many(1, "word"), many(1024, "number")
    ('1 word', '1,024 numbers')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"
