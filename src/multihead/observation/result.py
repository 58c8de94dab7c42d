"""What was seen: the output, the lse, and each statistic by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .statistics import Statistic

RESERVED = (
    "out", "lse", "backend", "queries", "real", "found", "asked", "whole_lse", "of_all_keys",
    "has_sinks",
)  # fmt: skip


class Observation:
    """The output of attention and what every head did on the way.

    `seen.out`, `seen.lse`, `seen.entropy`, `seen["mass:offset(-1)"]`, `seen.backend`. Statistics
    are (batch, heads, row), or (batch, heads, key) for what keys receive.
    """

    def __init__(
        self,
        out: Tensor,
        lse: Tensor,
        found: dict[str, object],
        *,
        backend: str,
        queries: Tensor,
        asked: tuple[Statistic, ...],
        whole_lse: Tensor,
        of_all_keys: bool = True,
        has_sinks: bool = False,
        real: Tensor | None = None,
    ) -> None:
        self.out, self.lse, self.backend = out, lse, backend
        self.queries = queries  # which rows the statistics are of
        self._real = real
        self.found, self.asked = found, asked
        # For merging: lse of every query, and what kind of shard this can be.
        self.whole_lse, self.of_all_keys, self.has_sinks = whole_lse, of_all_keys, has_sinks

    @property
    def real(self) -> Tensor:
        """The weight of each row on real keys: 1, less what a sink took; 0 where it saw nothing."""
        return (self.lse != -torch.inf).to(self.lse.dtype) if self._real is None else self._real

    def __getattr__(self, name: str):
        found = self.__dict__.get("found", {})
        if name in found:
            return found[name]
        raise AttributeError(
            f"this observation has no {name!r}; it has {', '.join(found) or 'none'}."
        )

    def __getitem__(self, key: str):
        if key in ("out", "lse"):
            return getattr(self, key)
        if key not in self.found:
            raise KeyError(
                f"this observation has no {key!r}; it has {', '.join(self.found) or 'none'}."
            )
        return self.found[key]

    def keys(self) -> list[str]:
        return list(self.found)

    def __contains__(self, key: object) -> bool:
        return key in self.found or key in ("out", "lse")

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def mean(self) -> dict[str, Tensor]:
        """Each statistic of rows, averaged over the rows that saw something, (batch, heads).

        An expectation of several columns has a mean of each, (batch, heads, columns).
        """
        seen = self.lse != -torch.inf
        count = seen.sum(-1).clamp(min=1)
        means = {}
        for statistic in self.asked:
            value = self.found[statistic.key]
            if statistic.per_row and isinstance(value, Tensor):
                more = (None,) * (value.ndim - seen.ndim)
                total = value.masked_fill(~seen[(..., *more)], 0.0).sum(2)
                means[statistic.key] = total / count[(..., *more)]
        return means

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Observation:
        """The same on another device or in another dtype (whole numbers stay whole)."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device

        def move(value):
            if isinstance(value, Tensor):
                kind = dtype if value.is_floating_point() else None
                return value.to(device or value.device, kind or value.dtype)
            return type(value)(*map(move, value)) if isinstance(value, tuple) else value

        return self._map(move)

    def detach(self) -> Observation:
        return self._map(lambda v: v.detach() if isinstance(v, Tensor) else v)

    def _map(self, move: Callable) -> Observation:
        found = {key: move(value) for key, value in self.found.items()}
        return Observation(
            move(self.out), move(self.lse), found, backend=self.backend, asked=self.asked,
            queries=move(self.queries), real=move(self._real), whole_lse=move(self.whole_lse),
            of_all_keys=self.of_all_keys, has_sinks=self.has_sinks,
        )  # fmt: skip

    def __repr__(self) -> str:
        batch, heads, rows = self.lse.shape
        lines = [f"Observation of {rows} rows, batch {batch}, {heads} heads, by {self.backend}"]
        for key, value in self.found.items():
            parts = value if isinstance(value, tuple) else (value,)
            shapes = " ".join("×".join(map(str, t.shape)) for t in parts if isinstance(t, Tensor))
            mean = self.mean().get(key)
            tail = "" if mean is None else f"   mean {mean.mean().item():.4g}"
            lines.append(f"  {key:20} {shapes}{tail}")
        return "\n".join(lines)
