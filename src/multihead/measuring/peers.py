"""What stands beside ours: PyTorch's fused attention, which shows nothing, and eager attention."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..masks import Mask

# PyTorch has several on a GPU, and seldom takes the fastest by itself.
ON_GPU = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}

STRIP = 256  # rows of a matrix


def sdpa(
    query: Tensor, key: Tensor, value: Tensor, *, by: str | None = None, **more: Any
) -> Tensor:
    """PyTorch's fused attention, `by` one of its backends; `more` is what it takes besides."""
    with contextlib.nullcontext() if by is None else sdpa_kernel(ON_GPU[by]):
        return F.scaled_dot_product_attention(query, key, value, **more)


def eager(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention as on the board, and the entropy of its rows; `seen` says who may look at whom."""
    if (group := query.shape[1] // key.shape[1]) > 1:
        key, value = (t.repeat_interleave(group, 1) for t in (key, value))
    scores = (query @ key.mT).float() * query.shape[-1] ** -0.5
    if seen is not None:
        scores.masked_fill_(~seen, -torch.inf)
    weights = scores.softmax(-1)
    return weights.to(query.dtype) @ value, -torch.special.xlogy(weights, weights).sum(-1)


def matrix_of(mask: Mask, tokens: int, device: torch.device | str) -> Tensor:
    """Who may look at whom, as a matrix of booleans, where tokens look at themselves."""
    places = torch.arange(tokens, device=device)
    matrix = None
    for first in range(0, tokens, STRIP):  # at a time: places take 8 bytes each, an answer one
        strip = mask.allows(places[first : first + STRIP], places)
        if matrix is None:
            matrix = strip.new_empty(*strip.shape[:2], tokens, tokens)
        matrix[:, :, first : first + STRIP] = strip
    assert matrix is not None
    return matrix
