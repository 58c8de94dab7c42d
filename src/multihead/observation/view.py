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


_FAR = 1e3  # a float32 of that size still holds a logarithm to 6e-5
_ALONE = 1e8  # beside a float32 of that size a score is nothing


def steady(problem: Problem) -> Problem:
    """The same weights, from a bias whose rows stand near 0; the problem itself where they do.

    Softmax does not mind what is added to a whole row, but lse does: where every key of a row is
    forbidden by the least float32, as some models pad, lse = −3e38 + ln n has lost its ln n. The
    scores of such a row are lost beside its bias: it looks at all keys alike.
    """
    bias, query = problem.bias, problem.query
    if not isinstance(bias, Tensor) or problem.sinks is not None or not bias.numel():
        return problem
    top = bias.detach().amax(-1, keepdim=True)  # (#batch, #heads, #query, 1)
    far = top.isfinite() & (top.abs() > _FAR)
    if not bool(far.any()):
        return problem
    if query.dtype != torch.float64:
        query = query.masked_fill((far & (top.abs() > _ALONE)).expand(*query.shape[:3], 1), 0.0)
    bias = bias - top.masked_fill(~far, 0.0)
    return dataclasses.replace(problem, bias=bias, query=query)


def known_lse(lse: Tensor, shape: torch.Size, like: Tensor, chosen: Tensor) -> Tensor:
    """The lse of the rows chosen, of one that was given for all rows or for just these."""
    of_rows = (*shape[:2], len(chosen))
    if not isinstance(lse, Tensor) or tuple(lse.shape) not in (tuple(shape), of_rows):
        came = tuple(lse.shape) if isinstance(lse, Tensor) else type(lse).__name__
        raise ValueError(
            "lse must be one number for each query of each head, as seen.lse is; give that.\n"
            f"  lse {came}  expected {tuple(shape)}"
        )
    lse = lse.to(like.device, exact(like.dtype))
    return lse if len(chosen) == lse.shape[2] else lse[:, :, chosen]


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
