"""Which blocks of a map FlexAttention visits: lists of those that a mask calls PARTIAL or FULL.

A mask answers on the host, and the lists travel to the device as one tensor. Layers ask for the
same: the last lists of a mask are kept while it lives, unless it has data on the device, of which
nobody can tell whether it is what it was. In a compiled graph they are an operator, for a graph
looks into no data.
"""

from __future__ import annotations

import functools
import math
import weakref
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import masks
from ..masks import FULL, PARTIAL, Mask
from .problem import Problem

BLOCK = 128  # queries and keys of a block that is left out or looked at whole


def lists_of(p: Problem) -> list[Tensor]:
    """How many blocks are PARTIAL, and which, how many FULL, and which: in each row of blocks, then
    in each column; for all texts, or for each; on the device."""
    assert p.mask is not None
    batch, sizes = p.query.shape[0], (p.query.shape[2], p.key.shape[2])
    if torch.compiler.is_compiling():
        offset, offsets = (0, p.offset) if isinstance(p.offset, Tensor) else (p.offset, None)
        text, data = masks.write(p.mask)
        listed = blocks_operator(data, text, batch, *sizes, offset, offsets).to(p.query.device)
    else:
        listed = _kept(p.mask, sizes, p.offset, p.query.device)
        batch = listed.numel() // _numbers(1, *sizes)
    lists = []
    for shape in _shapes(batch, *sizes):
        lists.append(listed[: math.prod(shape)].view(shape))
        listed = listed[math.prod(shape) :]
    return lists


def _shapes(batch: int, queries: int, keys: int) -> list[tuple[int, ...]]:
    down, across = -(-queries // BLOCK), -(-keys // BLOCK)
    by_row = [(batch, 1, down), (batch, 1, down, across)]
    by_column = [(batch, 1, across), (batch, 1, across, down)]
    return [*by_row, *by_row, *by_column, *by_column]


def _numbers(batch: int, queries: int, keys: int) -> int:
    """How many numbers are in all lists."""
    return sum(math.prod(shape) for shape in _shapes(batch, queries, keys))


def _blocks(mask: Mask, batch: int, queries: int, keys: int, offset: int | Tensor) -> Tensor:
    """All lists, one after the other; a batch of −1: of one text where it stands for all."""
    down, across = (torch.tensor([*range(0, n, BLOCK), n], device="cpu") for n in (queries, keys))
    offset = offset.cpu() if isinstance(offset, Tensor) else offset
    kinds = mask.blocks(down, across, offset).expand(batch, len(down) - 1, len(across) - 1).numpy()
    every = [way == kind for way in (kinds, kinds.swapaxes(1, 2)) for kind in (PARTIAL, FULL)]
    lists = [part.ravel() for marked in every for part in _listed(marked)]
    return torch.from_numpy(np.concatenate(lists, dtype=np.int32))


def _listed(marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many blocks of each row are marked, and which: the marked ones first, in order."""
    return marked.sum(-1), (~marked).argsort(-1, kind="stable")


@torch.library.custom_op(
    "multihead::blocks", mutates_args=(),
    schema="(Tensor[] data, str mask, SymInt batch, SymInt queries, SymInt keys, SymInt offset, "
    "Tensor? offsets) -> Tensor",
)  # fmt: skip
def blocks_operator(data, text, batch, queries, keys, offset, offsets):
    """The same in a graph; of layers alike, one that trains keeps one."""
    mask = masks.read(text, data)
    return _blocks(mask, batch, queries, keys, offset if offsets is None else offsets)


@blocks_operator.register_fake
def _(data, text, batch, queries, keys, offset, offsets):
    return torch.empty(_numbers(batch, queries, keys), dtype=torch.int32, device="cpu")


# ---- from layer to layer -------------------------------------------------------------------------


class _Last(NamedTuple):
    """The last lists of a mask, and copies of the data that it carried then."""

    mask: weakref.ref[Mask]
    data: list[Tensor]
    asked: tuple
    listed: Tensor


_LAST: dict[int, _Last] = {}  # by the mask's id: masks are equal by value, which would be read
_MUCH = 2**20  # numbers: to compare more takes as long as to list them


def _kept(mask: Mask, sizes: tuple[int, int], offset: int | Tensor, device: torch.device) -> Tensor:
    text, data = masks.write(mask)
    at_hand = all(t.device.type == "cpu" for t in data) and sum(t.numel() for t in data) <= _MUCH
    if isinstance(offset, Tensor) or not at_hand:
        return _blocks(mask, -1, *sizes, offset).to(device)
    asked, last = (text, *sizes, offset, device), _LAST.get(id(mask))
    same = last is not None and last.mask() is mask and last.asked == asked
    if last is None or not same or not all(map(torch.equal, last.data, data)):
        with torch.inference_mode(False):  # whoever trains may ask for them next
            listed, was = _blocks(mask, -1, *sizes, offset).to(device), [t.clone() for t in data]
        forget = functools.partial(_forget, id(mask))
        last = _LAST[id(mask)] = _Last(weakref.ref(mask, forget), was, asked, listed)
    return last.listed


def _forget(at: int, dead: weakref.ref[Mask]) -> None:
    if (last := _LAST.get(at)) is not None and last.mask is dead:
        del _LAST[at]
