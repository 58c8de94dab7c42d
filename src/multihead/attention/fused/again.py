# Triton only looks like Python:
# pyright: reportAttributeAccessIssue=false
"""Launching a kernel again: Triton finds the compiled one anew each time, by every argument.

That takes longer than the launch itself, and a model of many layers asks the same of each. What was
compiled is kept here by the kinds of its arguments, as Triton tells them apart.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

INTERPRETED = triton.knobs.runtime.interpret
_BY_TRITON = INTERPRETED or torch.version.hip is not None  # AMD's compiler asks for sizes as well
_MANY = 4096  # kinds; a text of each length is one
_COMPILED: dict[tuple, Any] = {}
# By function: the names of its arguments, and of which of them, before those that are compiled in
# as they are, the value makes no other kernel.
_PARAMETERS: dict[Any, tuple[list[str], list[bool]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], options: dict, *first: Any, **named: Any) -> None:
    """kernel[grid](*first, **named, **options), sooner from the second time on."""
    if _BY_TRITON:
        kernel[grid](*first, **named, **options)
        return
    if kernel.fn not in _PARAMETERS:
        _PARAMETERS[kernel.fn] = (
            kernel.arg_names,
            [p.do_not_specialize for p in kernel.params if not p.is_constexpr],
        )
    names, free = _PARAMETERS[kernel.fn]
    values = [*first, *[named[name] for name in names[len(first) :]]]
    key = (
        kernel.fn, torch.cuda.current_device(), *options.values(),
        *map(_kind, values, free), *values[len(free) :],
    )  # fmt: skip
    known = _COMPILED.get(key)
    if known is None:
        if len(_COMPILED) >= _MANY:
            _COMPILED.clear()
        _COMPILED[key] = kernel[grid](*first, **named, **options)
    else:
        known[(*grid, 1, 1)[:3]](*values)


def _kind(value: Any, free: bool) -> Any:
    """What of an argument is compiled in. Of numbers we ask more than Triton, which is safe."""
    if type(value) is int:
        return value if not free else value.bit_length() < 32
    if value is None or type(value) is float:
        return type(value)
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    return value.base.dtype, *value.block_shape  # a descriptor: its layout goes with its block
