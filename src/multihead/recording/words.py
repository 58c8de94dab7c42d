"""Tokens as text: what a tokenizer makes of each alone."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor


def decode(tokenizer: Any, ids: Tensor | None) -> list[list[str]] | None:
    """Each token as its own text; a piece of a letter stays visible as what it is."""
    if tokenizer is None or ids is None:
        return None
    return [[_text(tokenizer, token) for token in row] for row in ids.tolist()]


def _text(tokenizer: Any, token: int) -> str:
    if token < 0 or math.isnan(token):
        return ""
    text = tokenizer.decode([token])
    if "\ufffd" in text and hasattr(tokenizer, "convert_ids_to_tokens"):
        return _bytes(tokenizer.convert_ids_to_tokens(token)) or text
    return text


def _bytes(piece: object) -> str:
    """A piece of a letter by its bytes, where a tokenizer writes each byte as a letter.

    That is how byte-level vocabularies do it since GPT-2: bytes that print are themselves, the
    others are counted on from 256.

    >>> _bytes("âĢ")
    '<E2 80>'
    """
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in prints]
    known = {chr(b): b for b in prints} | {chr(256 + i): b for i, b in enumerate(others)}
    if not isinstance(piece, str) or not piece or any(c not in known for c in piece):
        return ""
    return f"<{' '.join(f'{known[c]:02X}' for c in piece)}>"
