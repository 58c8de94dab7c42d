"""Weights that are not numbers, or lost: which layers have some, found without making the weights.

A query or key that is not a number makes the lse of every row that sees it one. A file may say
otherwise, and a key that is hidden has weights of its own: queries and keys are looked at too, in
one pass that makes nothing, as the largest number of a tensor is NaN where any is.
"""

from __future__ import annotations

import torch

from .files import DamagedError, OnDisk
from .layer import Layer

_AT_A_GLANCE = 2**28  # bytes of queries and keys


def broken(layer: Layer) -> bool:
    """Whether some weight of the layer is not a number, or cannot be had from its file."""
    try:
        return _not_numbers(layer)
    except DamagedError:
        return True


def told(layers: list[Layer]) -> list[str]:
    """A line for each kind of damage there is, found in passing: printing reads no gigabytes."""
    look = _not_numbers if quick(layers) else lse_broken
    lost, files = [], []
    for layer in layers:
        try:
            if look(layer):
                lost.append(layer.name)
        except DamagedError as error:
            files.append(str(error))
    lines = [f"  not numbers: weights of {len(lost)} layers, {lost[0]} first"] if lost else []
    return lines + ([f"  damaged: {len(files)} files; {files[0]}"] if files else [])


def _not_numbers(layer: Layer) -> bool:
    """Reads everything, and so finds a file that does not hold what was written."""
    found = lse_broken(layer)
    for name in layer.tensors:
        tensor = layer.tensors[name]
        found |= _is_qk(name) and bool(tensor.max().isnan())
    return found


def lse_broken(layer: Layer) -> bool:
    """By lse alone: NaN, or +∞, from which weights cannot be had."""
    parts = (layer.tensors[f"{i}.lse"] for i in range(len(layer.chunks)))
    return any(part.numel() and not float(part.max()) < torch.inf for part in parts)


def quick(layers: list[Layer]) -> bool:
    """Whether queries and keys are few enough to look at in passing."""
    names = [(layer.tensors, name) for layer in layers for name in layer.tensors if _is_qk(name)]
    sizes = (t.nbytes(name) if isinstance(t, OnDisk) else t[name].nbytes for t, name in names)
    return sum(sizes) <= _AT_A_GLANCE


def _is_qk(name: str) -> bool:
    return name.endswith(".query") or name.startswith("key.")
