"""Masks that are one run of keys for each query: all that a kernel needs is a few numbers.

A query at position i sees the keys from i − left to i + right, below a length:

    causal()      right 0                     offset(d)         left −d, right d
    window(w)     left and right w − 1        prefix(n)         length n
                                              padding(lengths)  a length for each batch row

and every `&` of them is one more band: the lesser of each number.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..masks import Mask, causal, offset, padding, prefix, window
from ..masks.mask import both

FAR = 2**30  # further than any key: positions are whole numbers of 32 bits in a kernel


class Band(NamedTuple):
    left: int = FAR  # steps back
    right: int = FAR  # steps ahead
    length: int = FAR  # keys below this
    lengths: Tensor | None = None  # the same for each batch row, (batch,)

    @property
    def is_far(self) -> bool:
        """Whether it lies so far from its rows that kernels, which count in 32 bits, lose it."""
        return min(self.left, self.right) <= -FAR // 2

    def __and__(self, other: Band) -> Band:
        lengths = [band.lengths for band in (self, other) if band.lengths is not None]
        return Band(
            min(self.left, other.left), min(self.right, other.right),
            min(self.length, other.length),
            torch.minimum(*lengths) if len(lengths) == 2 else lengths[0] if lengths else None,
        )  # fmt: skip


def band_of(mask: Mask | None) -> Band | None:
    """The band that a mask is; None where it is none."""
    if mask is None:
        return Band()
    if isinstance(mask, both):
        left, right = band_of(mask.left), band_of(mask.right)
        return None if left is None or right is None else left & right
    if isinstance(mask, causal):
        return Band(right=0)
    if isinstance(mask, window):
        return Band(left=_near(mask.size - 1), right=_near(mask.size - 1))
    if isinstance(mask, offset):
        return Band(left=_near(-mask.distance), right=_near(mask.distance))
    if isinstance(mask, prefix):
        return Band(length=_near(mask.size))
    if isinstance(mask, padding):
        return Band(lengths=mask.lengths)
    return None


def _near(steps: int) -> int:
    return max(-FAR, min(steps, FAR))
