"""Numbers a token, along the text: none of padding, and nothing of what padding gives."""

from __future__ import annotations

from torch import Tensor

from ...recording import Layer
from .numbers import numbers


def along(
    layer: Layer, pick: tuple[int, int], keys: tuple[str, ...], got: Tensor | None,
    real: Tensor | None,
) -> dict[str, list[float | None]]:  # fmt: skip
    """Statistics of one text and head. `got` is what keys receive from rows that are `real`."""
    found = {key: layer[key][pick] for key in keys if key in layer.kinds and key != "received"}
    if "received" in keys and got is not None:
        found["received"] = got[pick]
    if real is not None:
        padding = ~real[pick[0]]
        for key, values in found.items():
            asked = key == "received" and layer.crosses  # of keys in another text
            if not asked and len(values) == len(padding):
                found[key] = values.float().masked_fill(padding, float("nan"))
    return {key: numbers(values, 5) for key, values in found.items()}
