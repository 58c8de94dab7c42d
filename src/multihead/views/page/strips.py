"""Numbers a token, along the text: none of padding, and nothing of what padding gives."""

from __future__ import annotations

from torch import Tensor

from ...recording import Layer
from .numbers import numbers


def along(
    layer: Layer, pick: tuple[int, int], keys: tuple[str, ...], got: Tensor | None,
    real: tuple[Tensor | None, Tensor | None],
) -> dict[str, list[float | None]]:  # fmt: skip
    """Statistics of one text and head. `got` is what keys receive from rows that are no padding.

    `real` is of the rows and of the keys: in cross-attention those are two texts.
    """
    found = {key: layer[key][pick] for key in keys if key in layer.kinds and key != "received"}
    if "received" in keys and got is not None:
        found["received"] = got[pick]
    for key, values in found.items():
        own = real[key == "received"]
        if own is not None and own.shape[1] == len(values):
            found[key] = values.float().masked_fill(~own[pick[0]], float("nan"))
    return {key: numbers(values, 5) for key, values in found.items()}
