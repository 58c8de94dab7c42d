"""Copies that outlive the call they come from: off the device, in pages of their own.

From a GPU they travel beside the model's own work, on a stream of their own into pinned memory:
`send` has them set out, `settle` waits for them. Whoever reads what was kept settles first.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention import fused
from .norms import value_norms

_LARGE = 2**15  # bytes


def kept(tensor: Tensor, ours: bool = False) -> Tensor:
    """A copy off the device, that nothing else writes to; what is `ours` nobody writes to anyway.

    Large ones lie in pages of their own: among what a forward takes and gives back, they would
    leave holes that nothing fits into, as much again as is kept.
    """
    tensor = tensor.detach()
    if tensor.is_cuda:
        return _set_out(tensor if ours and _is_all_there(tensor) else tensor.clone())
    if tensor.nbytes < _LARGE:
        return tensor.to("cpu", copy=True).contiguous()
    pages = mmap.mmap(-1, tensor.nbytes)
    return torch.frombuffer(pages, dtype=tensor.dtype).view(tensor.shape).copy_(tensor)


def copied(
    query: Tensor | None, key: Tensor, value: Tensor
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Copies of query and key that nothing else writes to, and ‖v‖; on a GPU all in one pass."""
    if not key.is_cuda:
        return None if query is None else kept(query), kept(key), value_norms(value)
    if query is not None and fused.ready(key.device):
        from .kernels import copies

        if (found := copies(query, key, value)) is not None:
            return found
    return None if query is None else query.clone(), key.clone(), value_norms(value)


def kept_ours(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of what is ours. Parts that make up a block of memory on a GPU travel as one."""
    blocks: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        at = tensor.untyped_storage().data_ptr() if tensor.is_cuda else id(tensor)
        blocks.setdefault(at, []).append(tensor)
    copies: dict[int, Tensor] = {}
    for parts in blocks.values():
        first = parts[0]
        size = sum(part.nbytes for part in parts)
        if len(parts) == 1 or first.untyped_storage().nbytes() != size:
            copies |= {id(part): kept(part, ours=True) for part in parts}
            continue
        room = _set_out(first.as_strided((size // first.itemsize,), (1,), 0))
        for part in parts:
            copies[id(part)] = room.as_strided(part.shape, part.stride(), part.storage_offset())
    return [copies[id(tensor)] for tensor in tensors]


def send() -> None:
    """Have what was kept set out together: each way costs the same, however much travels."""
    for device, some in _waiting.by_device.items():
        stream, made = _stream(device), _waiting.made[device]
        made.record(torch.cuda.current_stream(device))
        stream.wait_event(made)
        with stream:
            sources, rooms = zip(*some, strict=True)
            torch._foreach_copy_(rooms, sources, non_blocking=True)  # type: ignore[attr-defined]
            for source in sources:
                source.record_stream(stream)
    _waiting.by_device.clear()


def settle() -> None:
    """Wait until it has arrived."""
    send()
    for stream in _streams.values():
        stream.synchronize()


_streams: dict[torch.device, torch.cuda.Stream] = {}


class _Waiting(threading.local):  # a model is watched in one thread, another in another
    def __init__(self) -> None:
        self.by_device: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}  # from, and where to
        # When all of these have been made.
        self.made: dict[torch.device, torch.cuda.Event] = defaultdict(torch.cuda.Event)


_waiting = _Waiting()


def _is_all_there(tensor: Tensor) -> bool:
    """Whether nothing else lies between its numbers, whatever their order."""
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def _set_out(source: Tensor) -> Tensor:
    """Where it will be, in pinned memory, its numbers in the order that they have: no other takes
    one way.
    """
    size, steps = source.shape, source.stride()
    into = torch.empty_strided(size, steps, dtype=source.dtype, pin_memory=True)
    _waiting.by_device.setdefault(source.device, []).append((source, into))
    return into


def _stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def give_back_holes() -> None:
    """Have the C library give free pages back to the system.

    glibc lays the small things that are kept between the large ones that a forward frees, and what
    is free between them fits nothing any more: half as much again as is kept, at 4,096 tokens.
    """
    with contextlib.suppress(AttributeError, OSError):  # other systems have no such call
        ctypes.CDLL(None).malloc_trim(0)
