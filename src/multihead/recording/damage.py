"""Weights that are not numbers: which layers have some, found without making the weights.

A query or key that is not a number makes the lse of every row that sees it one. A file may say
otherwise, and a key that is hidden has weights of its own: queries and keys are looked at too, in
one pass that makes nothing, as the largest number of a tensor is NaN where any is.
"""

from __future__ import annotations

import torch

from .layer import Layer

_AT_A_GLANCE = 2**28  # bytes of queries and keys


def broken(layer: Layer) -> bool:
    """Whether some weight of the layer is not a number."""
    return lse_broken(layer) or any(
        bool(layer.tensors[name].max().isnan()) for name in layer.tensors if _is_qk(name)
    )


def lse_broken(layer: Layer) -> bool:
    """By lse alone: NaN, or +∞, from which weights cannot be had."""
    parts = (layer.tensors[f"{i}.lse"] for i in range(len(layer.chunks)))
    return any(part.numel() and not float(part.max()) < torch.inf for part in parts)


def quick(layers: list[Layer]) -> bool:
    """Whether queries and keys are few enough to look at in passing."""
    names = [(layer, name) for layer in layers for name in layer.tensors if _is_qk(name)]
    return sum(layer.tensors[name].nbytes for layer, name in names) <= _AT_A_GLANCE


def _is_qk(name: str) -> bool:
    return name.endswith(".query") or name.startswith("key.")
