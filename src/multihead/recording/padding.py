"""Padding told by a mask, and left out of what keys receive: its rows look too.

A statistic of rows can leave some out afterwards. One of keys is a sum over rows: what some of them
gave is worked out once more, from queries and keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..masks import Mask
from ..observation import weights
from .call import Call, forbids
from .layer import Layer, of_text, written

_STRIP = 64  # rows at a time


def unpadded(mask: Mask | None, batch: int, tokens: int, offset: int | Tensor) -> Tensor | None:
    """Which tokens of a text that looks at itself some row may see, (batch, token).

    Those that nobody sees are padding. None where all are seen: of a rule without data they are;
    and where tokens do not see themselves, for such a mask hides more than padding.
    """
    if mask is None or not (data := written(mask)[1]):
        return None
    every = torch.arange(tokens, device=data[0].device)
    seen, own = (
        torch.zeros(batch, tokens, dtype=torch.bool, device=data[0].device) for _ in range(2)
    )
    for rows in every.split(512):
        links = mask.allows(rows, every, offset).any(1).expand(batch, len(rows), tokens)
        seen |= links.any(1)
        own[:, rows] = links[:, torch.arange(len(rows)), rows]
    return None if bool(seen.all()) or not bool((own | ~seen).all()) else seen


def real_of_layer(layer: Layer) -> Tensor | None:
    """As its mask tells: for models that are not told so by an attention_mask."""
    if layer.crosses or len(layer.chunks) > 1 or layer.queries != layer.keys:
        return None
    if "0.mask.0" not in layer.tensors:  # by a rule without data, told at once
        return None
    asked = layer.asked(0)
    return unpadded(asked["mask"], layer.batch, layer.keys, asked["offset"])


def real_of_layers(layers: list[Layer]) -> Tensor | None:
    """The same of a model, where all layers in which a text looks at itself tell the same."""
    return _same([real_of_layer(layer) for layer in layers if not layer.crosses])


def source_of_layers(layers: list[Layer]) -> Tensor | None:
    """Which keys of another text some row may see, (batch, key), where all that read it agree."""
    return _same([_seen_keys(layer) for layer in layers if layer.crosses])


def stack_of(name: str) -> str:
    """The path of the stack that a layer belongs to: all before its number, or of what holds it.

    The layers of one stack read one text. An encoder and a decoder are two.

    >>> stack_of("decoder.layers.1.self_attn"), stack_of("encoder.attn")
    ('decoder.layers', 'encoder')
    """
    parts = name.partition("#")[0].split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[:number])


def _seen_keys(layer: Layer) -> Tensor | None:
    asked = layer.asked(0)
    mask = asked["mask"]
    if len(layer.chunks) > 1 or mask is None or not (data := written(mask)[1]):
        return None
    every = torch.arange(layer.keys, device=data[0].device)
    seen = torch.zeros(layer.batch, layer.keys, dtype=torch.bool, device=data[0].device)
    for rows in torch.arange(layer.queries, device=data[0].device).split(512):
        seen |= mask.allows(rows, every, asked["offset"]).any(1).any(1)
    return seen


def _same(told: list[Tensor | None]) -> Tensor | None:
    first = told[0] if told else None
    if first is None or not all(one is not None and torch.equal(one, first) for one in told):
        return None
    return first


def real_of_call(call: Call) -> Tensor | None:
    """As the mask of a call tells, or a bias that forbids; None where all are, or nothing tells."""
    batch, tokens = call.query.shape[0], call.query.shape[2]
    if tokens != call.key.shape[2] or tokens == 1:
        return None
    real = unpadded(call.mask, batch, tokens, 0 if call.offset is None else call.offset)
    if isinstance(call.bias, Tensor) and call.bias.ndim == 4 and call.bias.shape[3] == tokens:
        seen = (~forbids(call.bias)).any(2).any(1).expand(batch, tokens)
        real = seen if real is None else real & seen
    return None if real is None or bool(real.all()) or not bool(real.any()) else real


def given_by(layer: Layer, rows: Tensor) -> Tensor:
    """What each key gets from some rows, (batch, row) → (batch, heads, key)."""
    given = torch.zeros(layer.batch, layer.heads, layer.keys, dtype=layer.lse.dtype)
    first = 0
    for i, chunk in enumerate(layer.chunks):
        query, key = layer.qk(i)
        asked, lse = layer.asked(i), layer.tensors[f"{i}.lse"]
        for batch in range(layer.batch):
            text = slice(batch, batch + 1)
            own = rows[batch, first : first + chunk.rows].nonzero()[:, 0]
            for some in own.split(_STRIP) if len(own) else ():
                tile = weights(
                    query[text], key[text], rows=some, lse=lse[text], **of_text(asked, batch)
                )
                given[batch, :, : chunk.keys] += tile[0].sum(1)
        first += chunk.rows
    return given


def received(layer: Layer, real: Tensor | None) -> Tensor | None:
    """What each key gets from the rows that are no padding, (batch, heads, key).

    None where it was not recorded, or cannot be told: there is padding, and no queries and keys.
    """
    if layer.kinds.get("received") != "key":
        return None
    if real is None:
        return layer["received"]
    return (layer["received"] - given_by(layer, ~real)).clamp(min=0) if layer.has_qk else None


def on_first(layer: Layer, found: Tensor, real: Tensor | None) -> Tensor | None:
    """The weight on the first token, (batch, heads, row), of one on key 0: of texts padded in front
    that is padding, and their own first token stands further on.

    `real` is of the keys, (batch, key). None where their queries and keys were not kept.
    """
    starts = torch.zeros(0) if real is None else real.int().argmax(1)
    if not bool(starts.any()):
        return found
    if not layer.has_qk:
        return None
    moved, first = found.clone(), 0
    for i, chunk in enumerate(layer.chunks):
        query, key = layer.qk(i)
        lse, rows = layer.tensors[f"{i}.lse"], slice(first, first + chunk.rows)
        for batch, start in enumerate(int(start) for start in starts):
            text = slice(batch, batch + 1)
            if not 0 < start < chunk.keys:
                continue
            given = of_text(layer.asked(i), batch)
            tile = weights(query[text], key[text], keys=[0, start], lse=lse[text], **given)[0]
            if torch.allclose(tile[..., 0], found[batch, :, rows], atol=1e-3):  # what it says it is
                moved[batch, :, rows] = tile[..., 1]
        first += chunk.rows
    return moved


def shares(layer: Layer, batch: int, real: Tensor | None) -> Tensor | None:
    """What each key gets of a row that may look at it, on average, of one text, (heads, key).

    Of the rows that are no padding, (batch, row) where there is some: from queries and keys.
    """
    if real is None or bool(real[batch].all()):
        every = layer.shares()
        return None if every is None else every[batch]
    if not layer.has_qk:
        raise ValueError(
            f"text {batch} is padded, and what its padding gave to each key is told by queries and "
            "keys alone; record with keep_qk=True, or that text without its padding."
        )
    alone = torch.zeros_like(real)
    alone[batch] = real[batch]
    rows = [layer.seen_by(batch, head, real[batch]) for head in range(layer.heads)]
    return given_by(layer, alone)[batch] / torch.stack(rows).clamp(min=1)
