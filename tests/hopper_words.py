"""The two instructions in an assembler's words that our Hopper kernels have, worked out by numpy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle


def run(asm: str, given: list[tl.tensor]) -> Any:
    """Two numbers into the halves of one of 32 bits, or such halves out of one."""
    operands = [int(n) for n in re.findall(r"\$(\d)", asm)]
    if asm.startswith("cvt.rn.f16x2.f32 "):  # where it goes, its upper half, its lower half
        into, *halves = operands
        assert into == 0
        upper, lower = (_half(given[n - 1]).astype(np.uint32) for n in halves)
        return _tensor((upper << 16 | lower).astype(np.int32), tl.int32)
    assert asm == "mov.b32 {$0, $1}, $2;", asm  # its lower half, its upper half, where they are
    bits = given[0].handle.data.view(np.uint32)
    parts = bits & 0xFFFF, bits >> 16
    return tuple(_tensor(part.astype(np.uint16).view(np.int16), tl.int16) for part in parts)


def _half(tile: tl.tensor) -> np.ndarray:
    with np.errstate(over="ignore"):
        return tile.handle.data.astype(np.float16).view(np.uint16)


def _tensor(data: np.ndarray, dtype: tl.dtype) -> tl.tensor:
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, [*data.shape]))
