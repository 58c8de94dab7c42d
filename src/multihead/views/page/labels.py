"""What stands on the axes of a map: words, patches of an image, frames of a sound, or numbers."""

from __future__ import annotations

import math
import re

from ...recording import Layer, Recording


def texts_of(rec: Recording, batch: int) -> tuple[dict[str, list[str]], dict[int, tuple[str, str]]]:
    """Every text by name, and the names of the two that each layer has on its axes."""
    texts: dict[str, list[str]] = {}
    if rec.ids is not None:
        texts["text"] = _words(rec.words, rec.ids, batch)
    if rec.source_ids is not None:
        texts["source"] = _words(rec.source_words, rec.source_ids, batch)
    of_layer = {}
    for layer in rec.layers:
        query = _which(layer, layer.queries, texts, "source" if _encodes(layer) else "text", rec)
        wanted = "source" if layer.crosses or _encodes(layer) else "text"
        of_layer[layer.index] = (query, _which(layer, layer.keys, texts, wanted, rec))
    return texts, of_layer


def padding_of(rec: Recording, batch: int, texts: dict[str, list[str]]) -> dict[str, list[int]]:
    """The places of each text that only fill it up to the length of its batch."""
    found = {}
    for name, words in texts.items():
        real = rec.source_real if name == "source" else rec.real
        if real is not None and real.shape[1] == len(words) and not bool(real[batch].all()):
            found[name] = (~real[batch]).nonzero()[:, 0].tolist()
    return found


def _words(words: list[list[str]] | None, ids, batch: int) -> list[str]:
    return words[batch] if words else [f"#{token}" for token in ids[batch].tolist()]


def _encodes(layer: Layer) -> bool:
    return re.search(r"(^|\.)encoder\.", layer.name) is not None


def _which(
    layer: Layer, length: int, texts: dict[str, list[str]], wanted: str, rec: Recording
) -> str:
    for name in (wanted, "text", "source"):
        if name in texts and len(texts[name]) == length:
            return name
    name = f"places {length}"
    texts.setdefault(name, made_labels(length, rec.about.get("input", {})))
    return name


def made_labels(length: int, given: dict[str, list[int]]) -> list[str]:
    """Labels for what has no words: by what went into the model, and how many there are.

    >>> made_labels(5, {"pixel_values": [1, 3, 32, 32]})
    ['class', 'patch 0,0', 'patch 0,1', 'patch 1,0', 'patch 1,1']
    >>> made_labels(3, {"input_features": [1, 80, 6]})
    ['frame 0', 'frame 1', 'frame 2']
    """
    if "pixel_values" in given:
        high, wide = given["pixel_values"][-2:]
        for extra in (1, 0, 2):
            across = math.isqrt(max(1, (length - extra) * wide // max(1, high)))
            if across and across * (across * high // wide) == length - extra:
                patches = [f"patch {i // across},{i % across}" for i in range(length - extra)]
                return [*(("class", "distillation")[:extra]), *patches]
    if given.keys() & {"input_features", "input_values"}:
        return [f"frame {i}" for i in range(length)]
    return [str(i) for i in range(length)]
