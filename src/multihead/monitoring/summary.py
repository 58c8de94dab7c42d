"""One sample as a record: plain words and numbers, the same for a file, a writer and a function.

    {"step": 300, "loss": 2.31,
     "layers": [{"name": "blocks.0.attention", "heads": 4, "entropy": [0.71, …], …}, …],
     "quantiles": {"entropy": [[least, 25 %, median, 75 %, greatest], …], …},     a row a layer
     "worst": {"entropy": [{"layer": 0, "name": …, "head": 3, "value": 0.02}, …], …},
     "warnings": [{"kind": "collapse", "layer": 0, "name": …, "head": 3, …, "text": …}, …]}

`entropy` is relative, between 0 and 1; `max_score` the largest of all rows. null is no number: NaN
came, or no row has one, as the entropy of rows that see one key; then the layer also says of which
heads, "undefined": {"entropy": [0, 1, 2, 3]}.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .looking import Seen

Record = dict[str, Any]

DIGITS = 5
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
WORST = 5  # heads named of each statistic
LEAST = ("entropy", "effective")  # of which the least is the worst


def summarise(
    step: int, loss: float | None, statistics: Sequence[str], seen: Sequence[Seen]
) -> Record:
    """The record of one sample, its warnings still to be told."""
    layers = [
        {"name": one.name, "heads": one.values.shape[1]}
        | {key: _rounded(row) for key, row in zip(statistics, one.values.tolist(), strict=True)}
        | _undefined(statistics, one)
        for one in seen
    ]
    return {
        "step": step,
        "loss": None if loss is None or not math.isfinite(loss) else loss,
        "layers": layers,
        "quantiles": {key: [_quantiles(layer[key]) for layer in layers] for key in statistics},
        "worst": {key: _worst(layers, key) for key in statistics},
        "warnings": [],
    }


def _undefined(statistics: Sequence[str], seen: Seen) -> Record:
    """Which heads have no row that a statistic could be of: nothing that went wrong."""
    heads = {
        key: [head for head, count in enumerate(counts) if not count]
        for key, counts in zip(statistics, seen.rows.tolist(), strict=True)
    }
    found = {key: some for key, some in heads.items() if some}
    return {"undefined": found} if found else {}


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [round(value, DIGITS) if math.isfinite(value) else None for value in values]


def _quantiles(values: Sequence[float | None]) -> list[float | None]:
    known = torch.tensor([value for value in values if value is not None], dtype=torch.float64)
    if not len(known):
        return [None] * len(QUANTILES)
    return _rounded(known.quantile(known.new_tensor(QUANTILES)).tolist())


def _worst(layers: Sequence[Record], key: str) -> list[Record]:
    heads = [
        {"layer": number, "name": layer["name"], "head": head, "value": value}
        for number, layer in enumerate(layers)
        for head, value in enumerate(layer[key])
        if value is not None
    ]
    return sorted(heads, key=lambda head: head["value"], reverse=key not in LEAST)[:WORST]


def picture(record: Record, statistic: str) -> Float[Tensor, "layers heads"]:
    """One statistic of every head, a row a layer; NaN where a layer has no such head.

    >>> picture({"layers": [{"peak": [0.5, 1.0]}, {"peak": [0.2]}]}, "peak")
    tensor([[0.5000, 1.0000],
            [0.2000,    nan]])
    """
    rows = [layer[statistic] for layer in record["layers"]]
    drawn = torch.full((len(rows), max(map(len, rows), default=0)), torch.nan)
    for number, row in enumerate(rows):
        values = [torch.nan if value is None else value for value in row]
        drawn[number, : len(row)] = torch.tensor(values)
    return drawn
