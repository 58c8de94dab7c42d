"""Requests read into what they ask; what is not understood is a ValueError that says so."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.requests import Request

from .tiles import Map

_KEYS = 64  # that are hidden by name
_LETTERS = 200_000  # of a text that is typed in


def recording_asked(request: Request) -> str:
    return request.query_params.get("rec", "0")


def whole(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) <= 9):
        raise ValueError(f"{name} must be a whole number, but {given[:40]!r} came.")
    return int(given)


def hidden_asked(request: Request) -> bool | tuple[int, ...]:
    """Whether a head's sinks are hidden; or which keys are, as two maps beside each other need."""
    given = request.query_params.get("sinks", "hide")
    if given in ("hide", "show"):
        return given == "hide"
    keys = given.split(",")
    if len(keys) > _KEYS or not all(k.isascii() and k.isdecimal() and len(k) <= 9 for k in keys):
        raise ValueError(
            f"sinks must be hide, show, or {_KEYS} keys at most, as 0,17; but {given[:40]!r} came."
        )
    return tuple(sorted({int(key) for key in keys}))


def map_asked(request: Request) -> Map:
    at = request.path_params
    by = request.query_params.get("by", "weight")
    return Map(at["layer"], at["head"], whole(request, "batch", 0), by)


def place(text: str) -> list[tuple[int, int]]:
    """
    >>> place("18.6, 16.0")
    [(18, 6), (16, 0)]
    """
    found = []
    for part in map(str.strip, text.split(",") if text.strip() else []):
        layer, dot, head = part.partition(".")
        number = part.isascii() and layer.isdecimal() and head.isdecimal() and len(part) < 12
        if not (dot and number):
            raise ValueError(f"heads are given as 18.6,16.0, but {text[:40]!r} came.")
        found.append((int(layer), int(head)))
    return found


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("a JSON object must come, and this is none.") from None
    if not isinstance(given, dict):
        raise ValueError(f"a JSON object must come, but a {type(given).__name__} came.")
    return given


def text_asked(body: bytes) -> tuple[str, int]:
    given = _object(body)
    text, tokens = given.get("text"), given.get("tokens", 512)
    if not isinstance(text, str) or len(text) > _LETTERS:
        raise ValueError(
            f"text must be a text of at most {_LETTERS:,} letters; give a shorter one."
        )
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        raise ValueError(f"tokens must be a whole number, but {tokens!r} came.")
    return text, tokens


def cut_asked(body: bytes) -> dict[str, Any]:
    """{"rec": "0", "batch": 0, "heads": [[18, 6]], "lasso": [[query, key], …], "by": "zero"}.

    The lasso may be null, for whole heads.
    """
    given = _object(body)
    heads, lasso, by = given.get("heads"), given.get("lasso"), given.get("by", "zero")
    batch = given.get("batch", 0)
    if type(batch) is not int or batch < 0:
        raise ValueError(f"batch must be a whole number, but {str(batch)[:40]!r} came.")
    if not isinstance(heads, list) or not 0 < len(heads) <= 1000 or not all(map(_is_head, heads)):
        raise ValueError("heads must be pairs of layer and head, as [[18, 6]]; at least one.")
    if lasso is not None and not (
        isinstance(lasso, list) and 3 <= len(lasso) <= 5000 and all(map(_is_point, lasso))
    ):
        raise ValueError("a lasso is 3 to 5,000 points of query and key, or null for whole heads.")
    if by not in ("zero", "mean", "resample"):
        raise ValueError(f"by must be zero, mean or resample, but {str(by)[:40]!r} came.")
    return {
        "number": str(given.get("rec", "0")),
        "batch": batch,
        "heads": [(layer, head) for layer, head in heads],
        "lasso": None if lasso is None else [(float(q), float(k)) for q, k in lasso],
        "by": by,
    }


def _is_head(pair: Any) -> bool:
    return (
        isinstance(pair, list) and len(pair) == 2 and all(type(n) is int and n >= 0 for n in pair)
    )


def _is_point(pair: Any) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(n) in (int, float) and math.isfinite(n) and abs(n) < 1e6 for n in pair)
    )
