"""Thumbnails: the largest weights of every head, few enough to be sent at once."""

from __future__ import annotations

import torch
from torch import Tensor

from ...recording import Layer, Recording
from .tiles import pooled_layer

THUMB = 32  # cells of a thumbnail
_KEY = f"heatmap({THUMB})"


def has_thumbs(layer: Layer) -> bool:
    """Whether there is anything to draw: a heat map of that size, or queries and keys for one."""
    return layer.has_qk or _drawn(layer)


def _drawn(layer: Layer) -> bool:
    return _KEY in layer.kinds and len(layer.chunks) == 1


def thumbs(rec: Recording, batch: int) -> bytes:
    """A byte for each cell of every head: 255 is a weight of 1, and 0 four decades down."""
    shades = [1 + _largest(rec, layer, batch).log10() / 4 for layer in rec.layers]
    levels = (torch.cat(shades).clamp(0, 1) * 255).round().to(torch.uint8)
    return levels.contiguous().numpy().tobytes()


def _largest(rec: Recording, layer: Layer, batch: int) -> Tensor:
    """The largest weights of every head of a layer, (head, cell, cell), none of them 0."""
    if _drawn(layer):
        found = layer[_KEY].largest[batch]
    elif layer.has_qk:  # swept once, for a recording that has no heat map of that size
        factor = -(-max(layer.queries, layer.keys) // THUMB)
        few = pooled_layer(rec, layer, batch, factor, [()] * layer.heads).nan_to_num(0.0)
        down, across = (torch.arange(THUMB) * n // THUMB for n in few.shape[1:])
        found = few[:, down][:, :, across]
    else:
        found = torch.zeros(layer.heads, THUMB, THUMB)
    return found.float().clamp(min=1e-9)
