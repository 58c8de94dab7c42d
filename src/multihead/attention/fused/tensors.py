# Triton only looks like Python:
# pyright: reportCallIssue=false
"""How tensors lie for a kernel: strides, descriptors, room for rows, numbers on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..band import Band

_Launch = TypeVar("_Launch", bound=Callable)


def on_its_device(launches: _Launch) -> _Launch:
    """On the GPU of the question or tensor that comes first: Triton takes the current one."""

    @functools.wraps(launches)
    def there(first, *more, **named):
        device = getattr(first, "query", first).device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return launches(first, *more, **named)
        with torch.cuda.device(device):
            return launches(first, *more, **named)

    return there  # type: ignore[return-value]


def width(dim: int) -> int:
    """The next power of two, which is what a tile must have."""
    return max(16, 1 << (dim - 1).bit_length())


def blocks(length: int, step: int) -> int:
    """How many steps a length takes; Triton's own cdiv is made for kernels, and slow out here."""
    return -(-length // step)


def plain(tensor: Tensor) -> Tensor:
    """Strides that a descriptor takes: columns side by side, all else in steps of 16 bytes."""
    step, shape, strides = 16 // tensor.element_size(), tensor.shape, tensor.stride()
    steps = [s for s, n in zip(strides[:-1], shape, strict=False) if n > 1]
    aligned = tensor.data_ptr() % 16 == 0 and all(s % step == 0 and s > 0 for s in steps)
    if aligned and strides[-1] == 1 and shape[-1] > 1:
        return tensor
    short = -tensor.shape[-1] % step
    if short:
        return torch.nn.functional.pad(tensor, (0, short))[..., : tensor.shape[-1]]
    return tensor.clone(memory_format=torch.contiguous_format)


def rows_of(tensor: Tensor, rows: int, dim: int) -> object:
    """A descriptor by which a kernel reads or writes `rows` of one head at a time."""
    return _Rows(tensor, [*tensor.shape], _steps(tensor), [1, 1, rows, dim])


class _Rows(TensorDescriptor):
    """Triton's descriptor without its checks, a tenth of a launch: `plain` saw to all of them."""

    def __post_init__(self) -> None: ...


def _steps(tensor: Tensor) -> list[int]:
    """Its strides; those of axes of 1 are made up, for a descriptor wants steps of 16 bytes."""
    step = 16 // tensor.element_size()
    return [*(s if n > 1 else -(-s // step) * step or step
              for s, n in zip(tensor.stride()[:-1], tensor.shape, strict=False)), 1]  # fmt: skip


def tiles_of(tensor: Tensor, rows: int, dim: int) -> object:
    """The same, with the layout that the tile has in shared memory."""
    shape, block = [*tensor.shape], [1, 1, rows, dim]
    return _tiles()(tensor, shape, _steps(tensor), block, _layout(rows, dim))


@functools.cache
def _tiles() -> type:
    """Gluon's descriptor, without its checks likewise."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as WithLayout

    return type("Tiles", (WithLayout,), {"__post_init__": lambda self: None})


@functools.cache
def _layout(rows: int, dim: int) -> object:
    from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16

    return NVMMASharedLayout.get_default_for([1, 1, rows, dim], bfloat16)  # float16 has the same


def empty_like_rows(query: Tensor, heads: int, tokens: int, dim: int) -> Tensor:
    """Rows of `dim` columns as the query's lie, each in steps of 16 bytes."""
    step = 16 // query.element_size()
    wide = -(-dim // step) * step
    if query.stride(1) < query.stride(2):  # (batch, tokens, heads, dim), as projections give it
        return query.new_empty(query.shape[0], tokens, heads, wide).transpose(1, 2)[..., :dim]
    return query.new_empty(query.shape[0], heads, tokens, wide)[..., :dim]


def numbers_of(bands: tuple[Band, ...], device: torch.device) -> Tensor | None:
    """left, right and length of each band, as a kernel reads them."""
    return on_device(tuple(n for band in bands for n in band[:3]), device) if bands else None


@functools.lru_cache(64)
def on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Whole numbers where a kernel reads them; kept, for each way there waits for the device."""
    return torch.tensor(numbers, dtype=torch.int32, device=device)
