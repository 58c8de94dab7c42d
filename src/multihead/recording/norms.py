"""How long a value is, ‖v‖, and how far it moves the output of its layer, ‖v W_O‖."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention import fused
from ..attention.problem import exact


def value_norms(value: Tensor) -> Tensor:
    """‖v‖ of each key, (batch, kv_heads, key)."""
    return torch.linalg.vector_norm(value, dim=-1, dtype=exact(value.dtype)).float()


def output_norms(value: Tensor, new: Sequence[int], weight: Tensor) -> Tensor:
    """‖v W_O‖ of each key and query head, (batch, heads, key), at least of the keys that are new.

    ‖v W_O‖² = v (W_O W_Oᵀ) vᵀ: each query head has its own part of W_O, (heads · value_dim, model).
    """
    dim, whole = value.shape[-1], len(new) == value.shape[2]
    if value.is_cuda and whole and fused.ready(value.device):
        from .kernels import norms

        if (found := norms(value, weight)) is not None:
            return found
    weight = weight.reshape(-1, dim, weight.shape[1]).float()
    rows = (value if whole else value[:, :, new]).float()
    rows = rows.repeat_interleave(len(weight) // value.shape[1], dim=1)
    moved = (rows @ (weight @ weight.mT)).mul_(rows).sum(-1).clamp_(min=0).sqrt_()
    if not whole:
        every = moved.new_zeros(*moved.shape[:2], value.shape[2])
        every[:, :, new] = moved
        moved = every
    return moved
