"""Masks that carry data: one row of it for every batch row, or one for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .by_place import sort
from .mask import Allowed, Blocks, Mask, frozen, stand

Ids = Int[Tensor, "tokens"] | Int[Tensor, "batch tokens"]


@frozen
class padding(Mask):
    """A query sees the first `lengths[row]` keys of its batch row: the rest is padding.

    >>> print(padding([5]).draw(queries=3))
    ■ ■ ■ ■ ■ · · ·
    ■ ■ ■ ■ ■ · · ·
    ■ ■ ■ ■ ■ · · ·
    """

    lengths: Int[Tensor, "batch"]

    def __init__(self, lengths: Int[Tensor, "batch"] | Sequence[int] | int) -> None:
        object.__setattr__(self, "lengths", _integers("padding", lengths, ranks=(1,)))

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        _rows("padding", self.lengths, batch)

    def row(self, rows: slice) -> Mask:
        return padding(_pick(self.lengths, rows))

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        return key < self.lengths.to(key.device)[:, None, None, None]

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        lengths = self.lengths.cpu()[:, None, None]
        return sort(full=key_edges[1:] <= lengths, empty=key_edges[:-1] >= lengths)


@frozen
class ById(Mask):
    """What masks of ids share: an id at each position, the same for all batch rows or not."""

    ids: Ids

    def __init__(self, ids: Ids | Sequence[int]) -> None:
        object.__setattr__(self, "ids", _integers(type(self).__name__, ids, ranks=(1, 2)))

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        _tokens(type(self).__name__, self.ids, batch, keys)

    def carried(self) -> tuple[int | None, int | None]:
        return None, self.ids.shape[-1]

    def row(self, rows: slice) -> Mask:
        return type(self)(_pick(self.ids, rows) if self.ids.ndim == 2 else self.ids)


class documents(ById):
    """A query sees the keys of its own document: `ids` names the document at each position.

    Keep ids on the host, even for a GPU: it is asked there which parts of the map are empty, and
    layers that are given the same mask ask once.

    >>> print(documents([1, 1, 1, 2, 2, 3, 3, 3]).draw())
    ■ ■ ■ · · · · ·
    ■ ■ ■ · · · · ·
    ■ ■ ■ · · · · ·
    · · · ■ ■ · · ·
    · · · ■ ■ · · ·
    · · · · · ■ ■ ■
    · · · · · ■ ■ ■
    · · · · · ■ ■ ■
    """

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        ids = per_row(self.ids, key.device)
        mine, known = at(ids, stand(query, offset)[:, 0, :, 0])
        return known & (mine == ids[:, None, None, key])

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        ids = per_row(self.ids, torch.device("cpu"))
        query = torch.arange(int(query_edges[-1]), device="cpu")
        mine, known = at(ids, stand(query, offset)[:, 0, :, 0])
        # Blocks whose ids do not meet are empty; blocks of a single id are full. A query that
        # stands outside the text may see nothing, which the extremes turn into PARTIAL.
        limits = torch.iinfo(torch.int64)
        low, _ = _spans(torch.where(known, mine, limits.min)[:, 0, :, 0], query_edges)
        _, high = _spans(torch.where(known, mine, limits.max)[:, 0, :, 0], query_edges)
        low, high = low[:, :, None], high[:, :, None]
        key_low, key_high = (span[:, None, :] for span in _spans(ids, key_edges))
        alone = (low == high) & (key_low == key_high) & (low == key_low)
        return sort(full=alone, empty=(high < key_low) | (key_high < low))


@frozen
class dense(Mask):
    """Any boolean tensor broadcastable to (batch, heads, queries, keys): True = may attend.

    The one mask of indices, not positions: row `i` is query `i`, wherever it stands.

    >>> print(dense(torch.eye(8, dtype=torch.bool).flip(0)).draw(queries=8))
    · · · · · · · ■
    · · · · · · ■ ·
    · · · · · ■ · ·
    · · · · ■ · · ·
    · · · ■ · · · ·
    · · ■ · · · · ·
    · ■ · · · · · ·
    ■ · · · · · · ·
    """

    allowed: Bool[Tensor, "..."]

    def __post_init__(self) -> None:
        if not isinstance(self.allowed, Tensor) or self.allowed.dtype != torch.bool:
            came = self.allowed.dtype if isinstance(self.allowed, Tensor) else type(self.allowed)
            raise ValueError(
                f"dense() takes a boolean tensor, True = may attend, but {came} came; convert it, "
                "as in torch.as_tensor(table).bool(), or give numbers to add as bias=."
            )
        if not 1 <= self.allowed.ndim <= 4:
            raise ValueError(
                "dense() takes a tensor broadcastable to (batch, heads, queries, keys), "
                f"but it has {self.allowed.ndim} axes; give 1 to 4."
            )

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        want = (batch, heads, queries, keys)
        if any(n not in (1, m) for n, m in zip(self._full_rank().shape, want, strict=True)):
            raise ValueError(
                "the mask does not broadcast to (batch, heads, queries, keys); reshape it.\n"
                f"  mask {tuple(self.allowed.shape)}  expected {want}, or 1 in place of any"
            )

    def carried(self) -> tuple[int | None, int | None]:
        queries, keys = self._full_rank().shape[2:]
        return (queries if queries > 1 else None), (keys if keys > 1 else None)

    def row(self, rows: slice) -> Mask:
        return dense(_pick(self._full_rank(), rows))

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        allowed = self._full_rank().to(query.device)
        rows, columns = allowed.shape[-2:]
        allowed = allowed if rows == 1 else allowed[:, :, query]
        return allowed if columns == 1 else allowed[..., key]

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        allowed = self._full_rank()
        one_row, one_column = (n == 1 for n in allowed.shape[-2:])
        query_edges = torch.tensor([0, 1], device="cpu") if one_row else query_edges
        key_edges = torch.tensor([0, 1], device="cpu") if one_column else key_edges
        width = key_edges.diff()
        answers = []
        for first, last in zip(query_edges[:-1].tolist(), query_edges[1:].tolist(), strict=True):
            strip = allowed[:, :, first:last].flatten(1, 2)  # (batch, heads · queries, keys)
            some = _count(strip.any(1), key_edges)
            every = _count(strip.all(1), key_edges)
            answers.append(sort(full=every == width, empty=some == 0))
        return torch.stack(answers, dim=1)

    def _full_rank(self) -> Bool[Tensor, "#batch #heads #queries #keys"]:
        return self.allowed[(None,) * (4 - self.allowed.ndim)]


# ---- what these share --------------------------------------------------------------------------


def _integers(mask: str, data: Tensor | Sequence[int] | int, ranks: tuple[int, ...]) -> Tensor:
    shapes = " or ".join({1: "(n,)", 2: "(batch, n)"}[rank] for rank in ranks)
    try:
        tensor = data if isinstance(data, Tensor) else torch.as_tensor(data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{mask}() takes whole numbers {shapes}, but {data!r} came; give a tensor or a list."
        ) from error
    tensor = tensor[None] if tensor.ndim == 0 and ranks == (1,) else tensor
    if tensor.ndim not in ranks or tensor.shape[-1] == 0:
        raise ValueError(
            f"{mask}() takes a tensor {shapes}, but {tuple(tensor.shape)} came; reshape it."
        )
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(
            f"{mask}() takes whole numbers, but {tensor.dtype} came; convert it with .long()."
        )
    return tensor.to(torch.int64)


def _rows(mask: str, data: Tensor, batch: int) -> None:
    if data.shape[0] not in (1, batch):
        raise ValueError(
            f"{mask}() carries {data.shape[0]} rows but the batch has {batch}; "
            f"give one row for all, or {batch}."
        )


def _pick(data: Tensor, rows: slice) -> Tensor:
    return data if data.shape[0] == 1 else data[rows]


def _tokens(mask: str, ids: Tensor, batch: int, keys: int) -> None:
    if ids.ndim == 2:
        _rows(mask, ids, batch)
    if ids.shape[-1] != keys:
        raise ValueError(
            f"{mask}() carries {ids.shape[-1]} tokens but there are {keys} keys; "
            "give one id for each key.\n"
            f"  ids {tuple(ids.shape)}  keys {keys}"
        )


def per_row(ids: Tensor, device: torch.device) -> Int[Tensor, "#batch tokens"]:
    return torch.atleast_2d(ids).to(device, torch.int64)


def at(ids: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """The id at each place, and whether the text reaches that far; (batch | 1, 1, query, 1)."""
    batch = place.shape[0] if ids.shape[0] == 1 else ids.shape[0]
    ids, place = ids.expand(batch, -1), place.expand(batch, -1)
    known = (place >= 0) & (place < ids.shape[1])
    mine = ids.gather(1, place.clamp(0, ids.shape[1] - 1))
    return mine[:, None, :, None], known[:, None, :, None]


def _spans(ids: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest id of each block, (batch, blocks)."""
    table, starts = ids[:, : int(edges[-1])].numpy(), edges[:-1].numpy()
    low, high = (f.reduceat(table, starts, axis=1) for f in (np.minimum, np.maximum))
    return torch.from_numpy(low), torch.from_numpy(high)


def _count(marks: Bool[Tensor, "batch keys"], edges: Tensor) -> Tensor:
    """How many marks each block holds, (batch, blocks)."""
    total = torch.nn.functional.pad(marks.cpu().cumsum(1), (1, 0))
    return total[:, edges].diff(dim=1)
