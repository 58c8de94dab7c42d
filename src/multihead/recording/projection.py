"""W_O: the first product whose input is the output of attention, heads side by side."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PRODUCTS = {F.linear, torch.addmm, torch.matmul, Tensor.matmul, Tensor.__matmul__}


def projection_in(func: Any, args: tuple, out: Tensor) -> Tensor | None:
    """The other side of a product of the output, (heads · value_dim, model); None of any other.

    `out` is (batch, heads, query, value_dim).
    """
    heads, dim = out.shape[1], out.shape[3]
    left, weight = args[-2:]
    if func is F.linear:
        left, weight = args[0], args[1].T
    if not isinstance(left, Tensor) or not isinstance(weight, Tensor) or weight.ndim != 2:
        return None
    if left.shape[-1] != heads * dim or left.dtype != out.dtype or not left.numel():
        return None
    if _is_same_memory(left, out):  # told at once: a look at its numbers would wait for a GPU
        return weight
    return weight if _is_output(left.detach().reshape(-1, heads * dim), out.detach()) else None


def _is_same_memory(one: Tensor, two: Tensor) -> bool:
    if not one.is_cuda or torch._C._are_functorch_transforms_active():  # those have no memory
        return False
    return one.data_ptr() == two.data_ptr()


def _is_output(rows: Tensor, out: Tensor) -> bool:
    """Whether rows begin and end as an output does, its heads side by side.

    The first alone tells little: a row that sees itself alone is its value. Where only some rows of
    an output go on, it has to do. Not to the last bit: what the model goes on with may come from a
    kernel of its own.
    """
    ours = torch.stack([out[0, :, 0], out[-1, :, -1]]).flatten(1)  # (2, heads · dim)
    if rows.numel() != out.numel():
        rows, ours = rows[:1], ours[:1]
    apart = (rows[:: max(1, len(rows) - 1)] - ours).abs().amax(1)
    return bool((apart <= 0.01 * ours.abs().amax(1)).all())
