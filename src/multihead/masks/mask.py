"""What every mask is: a frozen value that answers for positions and for blocks, and composes."""

from __future__ import annotations

import dataclasses
import math
import operator
import typing
from collections.abc import Callable

import torch
from jaxtyping import Bool, Int8
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

EMPTY, PARTIAL, FULL = 0, 1, 2

Allowed = Bool[Tensor, "#batch #heads #query #key"]
Blocks = Int8[Tensor, "#batch #query_blocks #key_blocks"]


_Kind = typing.TypeVar("_Kind")


@typing.dataclass_transform(frozen_default=True)
def frozen(mask: type[_Kind]) -> type[_Kind]:
    """A mask is a frozen dataclass that prints and compares as `Mask` says."""
    return dataclasses.dataclass(frozen=True, eq=False, repr=False)(mask)


class Mask:
    """Composition, equality by value, printing, drawing and moving, once for all masks.

    Query `i` stands at position `i + offset` among the keys; `offset` is an int, or a tensor with
    one for each batch row. Masks may be built inside a compiled function, but for `~`, which
    torch.compile cannot trace: build such a mask outside.
    """

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        """Who may look at whom, for 1-D tensors of query and key indices (any subset: a tile)."""
        raise NotImplementedError

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        """EMPTY, PARTIAL or FULL for every block between consecutive edges (1-D CPU tensors)."""
        return torch.full((1, 1, 1), PARTIAL, dtype=torch.int8, device="cpu")  # always legal

    def reach(self) -> tuple[float, float]:
        """The least and the greatest key − query that may ever be allowed; ±inf where unbounded.

        `causal() & window(256)` reaches (−255, 0): 255 keys back, none ahead.
        """
        return -math.inf, math.inf

    def relative(self) -> bool:
        """Whether only key − query matters, so that the mask is the same anywhere in the text."""
        return False

    def check(self, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise a ValueError where data that the mask carries does not fit this problem."""
        for part in self.parts():
            if isinstance(part, Mask):
                part.check(batch, heads, queries, keys)

    def __and__(self, other: Mask) -> Mask:
        return both(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return either(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        return outside(self)

    def __bool__(self) -> bool:
        raise TypeError(
            "a mask is neither true nor false; join masks with & | ~, not and, or, not."
        )

    def carried(self) -> tuple[int | None, int | None]:
        """How many queries and keys the mask's data is about, where it says."""
        sizes = [part.carried() for part in self.parts() if isinstance(part, Mask)]
        queries = [q for q, _ in sizes if q is not None]
        keys = [k for _, k in sizes if k is not None]
        return (queries[0] if queries else None), (keys[0] if keys else None)

    def draw(
        self, queries: int | None = None, keys: int | None = None, offset: int | None = None
    ) -> str:
        """A small picture, one line a query: ■ where it may look; 8 × 8 unless its data says."""
        its_queries, its_keys = self.carried()
        keys = keys or its_keys or 8
        queries = queries or its_queries or keys
        offset = keys - queries if offset is None else offset
        allowed = self.allows(torch.arange(queries), torch.arange(keys), offset)
        rows = allowed.expand(-1, -1, queries, keys)[0, 0].tolist()
        return "\n".join(" ".join("■" if seen else "·" for seen in row) for row in rows)

    def parts(self) -> list[object]:
        """What the mask was made of, in order: numbers, tensors or other masks."""
        return [getattr(self, name) for name in self.__dataclass_fields__]  # type: ignore[attr-defined]

    def map(self, change: Callable[[Tensor], object]) -> Mask:
        """The same mask with each tensor it carries replaced by `change(tensor)`."""
        made = []
        for part in self.parts():
            if isinstance(part, Mask):
                part = part.map(change)
            elif isinstance(part, Tensor):
                part = change(part)
            made.append(part)
        return type(self)(*made)

    def row(self, rows: slice) -> Mask:
        """The same mask for some rows of the batch alone."""
        picked = [part.row(rows) if isinstance(part, Mask) else part for part in self.parts()]
        return type(self)(*picked)

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its data on `device`."""
        return self.map(lambda tensor: tensor.to(device))

    def spell(self, data: Callable[[Tensor], str]) -> str:
        """The mask as one writes it, each tensor it carries spelled by `data`."""
        spelled = [
            data(part) if isinstance(part, Tensor) else _plain(part) for part in self.parts()
        ]
        return f"{type(self).__name__}({', '.join(spelled)})"

    def __repr__(self) -> str:
        return self.spell(_show)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return type(self) is type(other) and all(
            _same(a, b) for a, b in zip(self.parts(), other.parts(), strict=True)
        )

    def __hash__(self) -> int:
        # Tensors enter by shape alone: equal masks hash alike and no data is read.
        parts = [tuple(p.shape) if isinstance(p, Tensor) else p for p in self.parts()]
        return hash((type(self).__name__, *parts))


@frozen
class both(Mask):
    """`left & right`: in blocks, the lesser answer."""

    left: Mask
    right: Mask

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        return self.left.allows(query, key, offset) & self.right.allows(query, key, offset)

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        left = self.left.blocks(query_edges, key_edges, offset)
        return torch.minimum(left, self.right.blocks(query_edges, key_edges, offset))

    def reach(self) -> tuple[float, float]:
        (low, high), (least, most) = self.left.reach(), self.right.reach()
        return max(low, least), min(high, most)

    def relative(self) -> bool:
        return self.left.relative() and self.right.relative()

    def spell(self, data: Callable[[Tensor], str]) -> str:
        # & binds tighter than |, and groups to the left.
        left, right = self.left.spell(data), self.right.spell(data)
        left = f"({left})" if isinstance(self.left, either) else left
        return f"{left} & " + (f"({right})" if isinstance(self.right, both | either) else right)


@frozen
class either(Mask):
    """`left | right`: in blocks, the greater answer."""

    left: Mask
    right: Mask

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        return self.left.allows(query, key, offset) | self.right.allows(query, key, offset)

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        left = self.left.blocks(query_edges, key_edges, offset)
        return torch.maximum(left, self.right.blocks(query_edges, key_edges, offset))

    def reach(self) -> tuple[float, float]:
        (low, high), (least, most) = self.left.reach(), self.right.reach()
        return min(low, least), max(high, most)

    def relative(self) -> bool:
        return self.left.relative() and self.right.relative()

    def spell(self, data: Callable[[Tensor], str]) -> str:
        left, right = self.left.spell(data), self.right.spell(data)
        return f"{left} | " + (f"({right})" if isinstance(self.right, either) else right)


@frozen
class outside(Mask):
    """`~inner`: in blocks, EMPTY and FULL swapped."""

    inner: Mask

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        return ~self.inner.allows(query, key, offset)

    def blocks(self, query_edges: Tensor, key_edges: Tensor, offset: int | Tensor = 0) -> Blocks:
        return FULL - self.inner.blocks(query_edges, key_edges, offset)

    def relative(self) -> bool:
        return self.inner.relative()

    def spell(self, data: Callable[[Tensor], str]) -> str:
        inner = self.inner.spell(data)
        return f"~({inner})" if isinstance(self.inner, both | either) else f"~{inner}"


def stand(query: Tensor, offset: int | Tensor) -> Tensor:
    """Where each query stands among the keys, (batch | 1, 1, query, 1)."""
    if isinstance(offset, Tensor):
        offset = offset.to(query.device)[:, None, None, None]
    return query[None, None, :, None] + offset


def _plain(part: object) -> str:
    """A number as it is written; `index`, for in a graph it may stand for any."""
    number = isinstance(part, int) and not isinstance(part, bool)
    return str(operator.index(part)) if number else f"{part}"  # pyright: ignore[reportArgumentType]


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)
    return a == b


def _show(data: Tensor) -> str:
    # Only plain data at hand is read: not a GPU's, nor what a compiler or transform stands in for.
    plain = type(data) is Tensor and data.device.type == "cpu" and data.numel() <= 8
    if plain and not (torch.compiler.is_compiling() or is_functorch_wrapped_tensor(data)):
        return repr(data.tolist())
    return f"<{str(data.dtype).removeprefix('torch.')} {'×'.join(map(str, data.shape))}>"
