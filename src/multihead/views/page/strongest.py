"""The strongest link of a cell, by name: what a click lands on, and what a sentence tells of."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...recording import Recording
from .tiles import Map


def strongest(rec: Recording, which: Map, rows: slice, keys: slice) -> dict[str, Any]:
    """The largest link that is shown, and under "hidden" the largest that is left out.

    A key that is left out may be looked at all the same: its weight is told, and not that nobody
    may look.
    """
    layer = rec.layer(which.layer)
    by = "norm" if which.by == "norm" else "weight"
    weights = rec.weights(which.layer, which.head, rows, keys, by=by, batch=which.batch)
    allowed = layer.allowed(which.batch, which.head, rows, keys)
    out = [k - keys.start for k in which.hidden if 0 <= k - keys.start < weights.shape[1]]
    left_out = allowed.clone()
    left_out[:] = False
    left_out[:, out] = allowed[:, out]
    allowed[:, out] = False
    score = weights.float().nan_to_num(0.0)
    if which.by == "uniform":
        score = score * layer.seen(which.batch, which.head)[rows, None].clamp(min=1)

    def best(among: Tensor) -> dict[str, Any]:
        at = divmod(int(score.masked_fill(~among, -1.0).argmax()), weights.shape[1])
        return {"query": rows.start + at[0], "key": keys.start + at[1], "value": float(weights[at])}

    found = best(allowed) | {"pairs": int(allowed.sum())}
    hidden = best(left_out) if left_out.any() else None
    if not allowed.any():
        return found | {"value": None, "sum": None, "hidden": hidden}
    inside = weights.masked_fill(~allowed, 0.0)
    return found | {"sum": float(inside.sum()), "hidden": hidden}
