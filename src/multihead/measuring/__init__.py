"""What attention takes on this machine: fused, ours, ours while looking, and eager attention.

All on the same random tensors and in turns, so that one row tells what looking costs here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attention import attend, explain_choice
from ..masks import Mask, causal
from ..observation import asked_statistics, observe
from .clock import Calls, machine, medians, medians_on_gpu, others, spent
from .peers import ON_GPU, eager, matrix_of, sdpa

__all__ = ["Asked", "Row", "compare", "machine", "others", "spent"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MATRICES = 4  # that eager attention has at a time, about; twice as many with gradients
_BYTES = 8  # a place of SDPA's mask, with what it makes of it
_TENSORS = 4  # as large as the queries, at least: they, what is read of them, and what is given


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is compared: tokens that look at themselves, in `heads` heads of `dim` numbers."""

    mask: Mask | None = dataclasses.field(default_factory=causal)
    stats: tuple[str, ...] = ("entropy", "distance", "peak")
    batch: int = 1
    heads: int = 12
    kv_heads: int = 12
    dim: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    backward: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "kv_heads", "dim"):
            if (given := getattr(self, name)) < 1:
                said = name.replace("_", "-")
                raise ValueError(f"{said} must be 1 or more, and {given} came.")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"query heads must be a multiple of key heads, and {self.heads} on {self.kv_heads} "
                "came; give 12 on 4, say."
            )
        if self.dtype not in DTYPES:
            raise ValueError(
                f"there is no dtype {self.dtype!r} here; choose one of {', '.join(DTYPES)}."
            )
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"a device is cpu or cuda here, and {self.device!r} came.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("cuda needs a GPU that PyTorch sees, and it sees none; take cpu.")
        asked_statistics(self.stats)

    @property
    def is_plain(self) -> bool:
        """Whether PyTorch's fused attention knows the mask; others it takes as a matrix."""
        return self.mask is None or self.mask == causal()


@dataclasses.dataclass(frozen=True)
class Row:
    """Seconds of each at so many tokens; who answered; None where a matrix found no room."""

    tokens: int
    sdpa: float | None
    attend: float
    looking: float
    eager: float | None
    sdpa_by: str | None  # the fastest of PyTorch's, where it has several
    attend_by: str
    looking_by: str
    matrix_bytes: int  # of the weights, which eager attention builds


def compare(
    asked: Asked, lengths: Sequence[int], tell: Callable[[str, float | None], None]
) -> Iterator[Row]:
    """A row for each number of tokens; `tell` hears which is being measured."""
    done, total = 0, sum(n * n for n in lengths)
    for tokens in lengths:
        tell(f"Timing {tokens:,} tokens", done / total)
        try:
            with torch.set_grad_enabled(asked.backward):
                row = _row(asked, tokens)
        except RuntimeError as error:
            if "memory" not in str(error).lower():
                raise
            raise _too_much(asked, tokens) from error
        yield row
        done += tokens * tokens


def _too_much(asked: Asked, tokens: int) -> ValueError:
    return ValueError(
        f"{tokens:,} tokens of {asked.batch:,} × {asked.heads:,} heads of {asked.dim:,} take more "
        "memory than there is; give less of one of them."
    )


def _row(asked: Asked, tokens: int) -> Row:
    free, square = _free(asked.device), tokens * tokens
    if _TENSORS * asked.batch * asked.heads * tokens * asked.dim * 4 > free:
        raise _too_much(asked, tokens)
    q, k, v = _drawn(asked, tokens)
    choice = explain_choice(q, k, v, mask=asked.mask)
    seen = observe(q, k, v, mask=asked.mask, stats=asked.stats)
    fits = asked.is_plain or _BYTES * square <= free
    quick = (_fused(asked, q, k, v) if fits else {}) | {
        "attend": partial(attend, q, k, v, mask=asked.mask),
        "looking": lambda: observe(q, k, v, mask=asked.mask, stats=asked.stats).out,
    }
    slow: Calls = {}  # apart, for with it there were few turns
    matrix = asked.batch * asked.heads * square * 4
    if _MATRICES * (1 + asked.backward) * matrix <= free:
        allowed = None if asked.mask is None else matrix_of(asked.mask, tokens, asked.device)
        slow["eager"] = lambda: eager(q, k, v, allowed)[0]
    if asked.backward:
        pull = torch.randn_like(q)
        quick, slow = (_with_gradients(calls, (q, k, v), pull) for calls in (quick, slow))
    time = medians if asked.device == "cpu" else medians_on_gpu
    times = time(quick) | (time(slow) if slow else {})
    theirs = {name: taken for name, taken in times.items() if name.startswith("SDPA")}
    return Row(
        tokens, min(theirs.values(), default=None), times["attend"], times["looking"],
        times.get("eager"), min(theirs, key=theirs.__getitem__, default=None), choice.backend,
        seen.backend, matrix,
    )  # fmt: skip


def _drawn(asked: Asked, tokens: int) -> list[Tensor]:
    random = torch.Generator(asked.device).manual_seed(0)
    return [
        torch.randn(
            asked.batch, heads, tokens, asked.dim, generator=random,
            dtype=DTYPES[asked.dtype], device=asked.device, requires_grad=asked.backward,
        )
        for heads in (asked.heads, asked.kv_heads, asked.kv_heads)
    ]  # fmt: skip


def _fused(asked: Asked, q: Tensor, k: Tensor, v: Tensor) -> Calls:
    """PyTorch's fused attention; on a GPU by each of its backends that knows the question."""
    known: dict[str, Any] = {"enable_gqa": asked.heads > asked.kv_heads}
    if asked.is_plain:
        known["is_causal"] = asked.mask is not None
    elif asked.mask is not None:
        known["attn_mask"] = matrix_of(asked.mask, q.shape[2], q.device)
    every: Calls = {"SDPA": partial(sdpa, q, k, v, **known)}
    if asked.device == "cuda":
        for name in ON_GPU:
            call = partial(sdpa, q, k, v, **known, by=name)
            with contextlib.suppress(RuntimeError):  # it does not know the question
                call()
                every[f"SDPA, {name}"] = call
    return every


def _with_gradients(calls: Calls, tensors: tuple[Tensor, ...], pull: Tensor) -> Calls:
    """The same, and the gradients of what they give."""
    return {
        name: lambda call=call: torch.autograd.grad(call(), tensors, pull)
        for name, call in calls.items()
    }


def _free(device: str) -> int:
    """Bytes of memory that may be taken; where nobody tells, those of a small machine."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    told = Path("/proc/meminfo")
    lines = told.read_text().splitlines() if told.exists() else ()
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return int(next(found, 4 * 2**20)) * 1024
