"""The whole page as one file."""

from __future__ import annotations

from .session import Session


def standalone(session: Session, number: str, heads: list[tuple[int, int]]) -> bytes:
    raise ValueError("a standalone page cannot be made yet.")
