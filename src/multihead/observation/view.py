"""What is looked at: a problem, the rows asked for, and the lse of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention.problem import Problem, exact


@dataclasses.dataclass(frozen=True)
class View:
    """Some query rows of a problem and their lse: all that the weights are made of."""

    problem: Problem  # its queries are the rows asked for
    lse: Float[Tensor, "batch heads row"]
    queries: Int[Tensor, "row"]  # their indices, ascending
    total: int  # queries in all

    @property
    def seen(self) -> Tensor:
        """Which rows saw something, (batch, heads, row)."""
        return self.lse != -torch.inf  # a NaN is not nothing

    def empty(self, *shape: int, fill: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor (batch, heads, *shape) to gather into."""
        size = (*self.problem.query.shape[:2], *shape)
        return self.lse.new_full(size, fill, dtype=dtype or self.lse.dtype)


def known_lse(lse: Tensor, shape: torch.Size, like: Tensor) -> Tensor:
    """An lse that was given, checked, with the dtype and device of the problem's own."""
    if not isinstance(lse, Tensor) or lse.shape != shape:
        came = tuple(lse.shape) if isinstance(lse, Tensor) else type(lse).__name__
        raise ValueError(
            "lse must be one number for each query of each head, as seen.lse is; give that.\n"
            f"  lse {came}  expected {tuple(shape)}"
        )
    return lse.to(like.device, exact(like.dtype))


Rows = slice | Int[Tensor, "row"] | Bool[Tensor, "all"] | Sequence[int] | None


def choose_rows(
    rows: Rows, total: int, device: torch.device, what: str = "rows"
) -> Int[Tensor, "row"]:
    """The indices that a slice, a stride, indices or a choice mean, each once and ascending."""
    if rows is None:
        return torch.arange(total, device=device)
    if isinstance(rows, slice):
        whole = all(n is None or type(n) is int for n in (rows.start, rows.stop, rows.step))
        if not whole or (rows.step is not None and rows.step < 1):
            raise ValueError(
                f"{what} must be a slice of whole numbers that ascends, but {rows} came; "
                "give one, as slice(0, 64) or slice(None, None, 8)."
            )
        return torch.arange(total, device=device)[rows].contiguous()
    if isinstance(rows, list | tuple | range) and all(type(row) is int for row in rows):
        rows = torch.tensor(list(rows), dtype=torch.int64)
    if isinstance(rows, Tensor) and rows.dtype == torch.bool and rows.shape == (total,):
        rows = rows.nonzero()[:, 0]
    if (
        not isinstance(rows, Tensor)
        or rows.ndim != 1
        or rows.dtype not in (torch.int64, torch.int32)
    ):
        came = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) else repr(rows)
        raise ValueError(
            f"{what} must be a slice, indices, or one True or False for each of {total}, "
            f"but {came} came; give torch.tensor([0, 5, 9]), say."
        )
    rows = rows.to(device, torch.int64)
    if rows.numel() and not (int(rows.min()) >= 0 and int(rows.max()) < total):
        raise ValueError(
            f"{what} must lie from 0 to {total - 1}, but they reach from {int(rows.min())} to "
            f"{int(rows.max())}; choose among the {total} there are."
        )
    if rows.numel() > 1 and not bool((rows.diff() > 0).all()):
        raise ValueError(f"{what} must ascend, each once; sort them, as in rows.unique().")
    return rows
