"""The whole page as one file: chosen heads exactly at every zoom, the others pooled and saying so.

Of a chosen head the file carries queries, keys and lse, and works out any tile in the browser, as
tiles.py does here; of the others the largest weights, in 64 × 64 cells at most.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import torch
from torch import Tensor

from ...positions import Alibi
from ...recording import Layer
from ...recording.layer import of_head
from ..files import plain
from .bundle import bundled, page, read
from .session import Session
from .shown import Shown
from .tables import heads_table
from .tiles import Map, factors, pooled_layer

_FEW = 3  # heads that are exact where none are chosen
_BIAS = 2048  # tokens, up to which a bias of n × n numbers is carried along


def standalone(
    session: Session, number: str, heads: list[tuple[int, int]], batch: int = 0
) -> bytes:
    """A page that opens anywhere, with no network."""
    shown = session.of(number)
    layers = [layer for layer in shown.rec.layers if layer.has_qk]
    if not layers:
        raise ValueError(
            "this recording has statistics alone, and no maps to write; record again with "
            "keep_qk=True."
        )
    chosen = heads or _telling(session, layers)
    for layer, head in chosen:
        shown.layer(Map(layer, head, batch))  # raises for what is not there
    home = session.home(number, batch)
    home |= {
        "exact": [f"{layer}.{head}" for layer, head in chosen],
        "can_run": False, "can_cut": False, "recordings": home["recordings"][:1], "recording": "0",
        "batches": 1, "row": [batch, shown.batches],  # the file has one of them
    }  # fmt: skip
    file = {
        "home": home,
        "names": session.names(number, batch),
        "thumbs": base64.b64encode(shown.thumbs(batch)).decode(),
        "heads": {},
        "exact": {f"{a}.{b}": _exact(shown, Map(a, b, batch)) for a, b in chosen},
        "pooled": {},
        "tokens": _tokens(shown, batch),
        "table": heads_table(session, number, batch),
    }
    for layer in layers:
        pooled = _pooled(shown, layer, batch)
        for head in range(layer.heads):
            which, name = Map(layer.index, head, batch), f"{layer.index}.{head}"
            if name in file["exact"]:
                file["heads"][name] = shown.head(which)
            else:
                file["heads"][name] = shown.head(which, strips=())
                file["pooled"][name] = pooled[head]
    if file["names"]["state"] == "running":  # nobody will tell more
        file["names"] |= {"state": "done", "message": ""}
    data = json.dumps(plain(file), ensure_ascii=False, separators=(",", ":"))
    script = bundled("main.js", {"carried.js": read("carried-file.js")})
    return page(script, data, "multihead").encode("utf-8", "replace")


def _telling(session: Session, layers: list[Layer]) -> list[tuple[int, int]]:
    """The heads that say most: verified ones, else the strongest names, else the first."""
    found = [(v.name.layer, v.name.head) for v in session.naming.verdicts or () if v.holds]
    found += [(n.layer, n.head) for n in session.naming.names or ()]
    there = {(layer.index, head) for layer in layers for head in range(layer.heads)}
    unique = [head for head in dict.fromkeys([*found, (layers[0].index, 0)]) if head in there]
    return unique[:_FEW]


def _exact(shown: Shown, which: Map) -> dict[str, Any]:
    """All that exp(s − lse) needs of one head."""
    layer = shown.layer(which)
    if len({chunk.version for chunk in layer.chunks}) > 1:
        raise ValueError(
            f"{which.layer}.{which.head} was recorded while its keys were reordered (beams); "
            "such a head cannot be carried along exactly: choose others."
        )
    group = layer.heads // layer.kv_heads
    chunks = range(len(layer.chunks))
    query = torch.cat([layer.qk(i)[0][which.batch, which.head] for i in chunks])
    key = layer.tensors[f"key.{layer.chunks[0].version}"][which.batch, which.head // group]
    asked = of_head(layer.asked(0), which.batch, which.head)
    norms = layer.output_norm()
    bias, slope = asked["bias"], 0.0
    if isinstance(bias, Alibi):
        bias, slope = None, float(bias.slopes[0])
    if bias is not None and (len(layer.chunks) > 1 or max(layer.queries, layer.keys) > _BIAS):
        raise ValueError(
            f"{which.layer}.{which.head} has a bias of {layer.queries} × {layer.keys} numbers, too "
            "many to carry along; choose heads without one."
        )
    return {
        "queries": layer.queries, "keys": layer.keys, "dim": query.shape[-1],
        "query": _floats(query), "key": _floats(key),
        "lse": _floats(layer.lse[which.batch, which.head]),
        "scale": layer.chunks[0].scale, "softcap": layer.chunks[0].softcap, "slope": slope,
        "offset": layer.chunks[0].offset or 0,
        "bias": None if bias is None else _floats(bias[0, 0].expand(layer.queries, layer.keys)),
        "norm": None if norms is None else _floats(norms[which.batch, which.head]),
        "runs": [_runs(layer, which, row) for row in range(layer.queries)],
        "seen": layer.seen(which.batch, which.head).tolist(),
    }  # fmt: skip


def _runs(layer: Layer, which: Map, row: int) -> list[int]:
    """Where the keys that a row may look at begin and end: [first, end, …]."""
    allowed = layer.allowed(which.batch, which.head, slice(row, row + 1))[0].int()
    steps = torch.nn.functional.pad(allowed, (1, 1)).diff()
    return steps.nonzero()[:, 0].tolist()


def _pooled(shown: Shown, layer: Layer, batch: int) -> list[dict[str, str]]:
    """The map of each head of a layer, its sinks left out, and with them where it has some."""
    factor = factors(layer)[-1]
    sinks = [shown.sinks(layer, head, batch) for head in range(layer.heads)]
    hide = pooled_layer(shown.rec, layer, batch, factor, sinks).half()
    found = [{"hide": _halves(one)} for one in hide]
    if any(sinks):
        show = pooled_layer(shown.rec, layer, batch, factor, [()] * layer.heads).half()
        for head, keys in enumerate(sinks):
            if keys:
                found[head]["show"] = _halves(show[head])
    return found


def _halves(tensor: Tensor) -> str:
    return base64.b64encode(tensor.contiguous().numpy().tobytes()).decode()


def _tokens(shown: Shown, batch: int) -> list[dict[str, Any]]:
    """The loss and the next words of each token."""
    count = 0 if shown.rec.ids is None else shown.rec.ids.shape[1]
    return [shown.token(place, batch) for place in range(count)]


def _floats(tensor: Tensor) -> str:
    return base64.b64encode(tensor.float().contiguous().numpy().tobytes()).decode()
