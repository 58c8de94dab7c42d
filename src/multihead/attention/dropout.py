"""Dropout by counter: whether the weight of (row, head, query, key) drops depends on those four
and a seed alone. Backward sees what forward saw, and every backend drops the same weights.
"""

from __future__ import annotations

from jaxtyping import Bool, Int
from torch import Tensor

# Odd 64-bit constants with well-spread bits (those of the splitmix64 generator), as signed.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX = 0xBF58476D1CE4E5B9 - 2**64


def keep(
    seed: Int[Tensor, ""], share: float, batch: Tensor, heads: Tensor, query: Tensor, key: Tensor
) -> Bool[Tensor, "batch heads query key"]:
    """Which weights stay, for 1-D indices on each axis: each with probability 1 − `share`.

    >>> import torch
    >>> some = [torch.arange(n) for n in (2, 3, 100, 100)]
    >>> round(keep(torch.tensor(7), 0.25, *some).float().mean().item(), 2)
    0.75
    """
    word = seed.to(query.device)
    for axis in (batch[:, None, None], heads[:, None], query):
        word = _scramble((word + axis) * _STEP)  # (batch, heads, query)
    # Rows and columns are scrambled on their own, so that a tile needs one more round alone.
    word = _scramble(word[..., None] ^ _scramble(key * _STEP))
    return (word & (2**53 - 1)) >= int(share * 2**53)


def _scramble(word: Tensor) -> Tensor:
    word = (word ^ (word >> 31)) * _MIX
    return word ^ (word >> 29)
