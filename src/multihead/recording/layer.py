"""What is kept of one layer: queries, keys and lse, all that made the scores, and statistics.

Never the weights: any part of the map is exp(s − lse) of these. A layer holds *chunks*, the rows
that were asked together: a prefill is one, the steps after it are joined into a second. Tensors
lie in one mapping by name, in memory or in a file alike.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..masks import Mask, read, write
from ..observation.statistics import HeatMap, Top
from ..positions import Alibi, alibi

_SHAPES = {"HeatMap": HeatMap, "Top": Top}


@dataclasses.dataclass
class Chunk:
    """Some query rows, asked together, over the first `keys` of the layer's keys."""

    rows: int
    keys: int
    version: int  # which of the layer's keys: a cache that was reordered makes new ones
    scale: float
    softcap: float | None
    offset: int | None  # None where each text of the batch has its own, in tensors
    mask: str | None  # as `masks.write` has it, its tensors beside


@dataclasses.dataclass
class Layer:
    """One place of a model where attention is called, and what it did there."""

    name: str
    index: int
    batch: int
    heads: int
    kv_heads: int
    crosses: bool  # whether it looks at another text
    chunks: list[Chunk]
    kinds: dict[str, str]  # of each statistic: by row, by key, map or top
    has_qk: bool
    tensors: Mapping[str, Tensor] = dataclasses.field(repr=False, default_factory=dict)

    @property
    def queries(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def keys(self) -> int:
        return max(chunk.keys for chunk in self.chunks)

    @property
    def lse(self) -> Tensor:
        return torch.cat([self.tensors[f"{i}.lse"] for i in range(len(self.chunks))], dim=2)

    @property
    def statistics(self) -> list[str]:
        return list(self.kinds)

    def value_norm(self, chunk: int = -1) -> Tensor:
        """‖v‖ of each key that a chunk was over, (batch, kv_heads, key)."""
        return self.tensors[f"value_norm.{self.chunks[chunk].version}"]

    def output_norm(self, chunk: int = -1) -> Tensor | None:
        """‖v W_O‖ of each key and query head, where the output projection was found."""
        return self.tensors.get(f"output_norm.{self.chunks[chunk].version}")

    def __getitem__(self, key: str) -> Any:
        """A statistic of all rows, or of all keys, by name."""
        if key == "lse":
            return self.lse
        if key not in self.kinds:
            raise KeyError(f"{self.name} has no {key!r}; it has {', '.join(self.kinds)}, lse.")
        parts = [self._stat(i, key) for i in range(len(self.chunks))]
        match self.kinds[key]:
            case "row" | "place":
                return torch.cat(parts, dim=2)
            case "top":
                return Top(*(torch.cat(some, dim=2) for some in zip(*parts, strict=True)))
            case "key":
                return self.joined_by_key(key, range(len(parts)), parts)
        if len(parts) > 1:
            raise ValueError(
                f"{key} of {len(parts)} chunks is not one map; ask rec.heatmap, which joins them."
            )
        return parts[0]

    def _stat(self, i: int, key: str) -> Any:
        name = f"{i}.stat.{key}"
        if name in self.tensors:
            return self.tensors[name]
        for kind in _SHAPES.values():
            if f"{name}.{kind._fields[0]}" in self.tensors:
                return kind(*(self.tensors[f"{name}.{field}"] for field in kind._fields))
        raise KeyError(name)

    def asked(self, i: int) -> dict[str, Any]:
        """What made the scores of chunk i, as `attend` takes it."""
        chunk, tensors = self.chunks[i], self.tensors
        mask: Mask | None = None
        if chunk.mask is not None:
            count = sum(name.startswith(f"{i}.mask.") for name in tensors)
            mask = read(chunk.mask, [tensors[f"{i}.mask.{n}"] for n in range(count)])
        slopes = tensors.get(f"{i}.slopes")
        return {
            "mask": mask,
            "bias": alibi(slopes) if slopes is not None else tensors.get(f"{i}.bias"),
            "scale": chunk.scale,
            "softcap": chunk.softcap,
            "sinks": tensors.get(f"{i}.sinks"),
            "offset": tensors[f"{i}.offset"] if chunk.offset is None else chunk.offset,
        }

    def allowed(
        self,
        batch: int = 0,
        head: int = 0,
        rows: slice = slice(None),
        keys: slice = slice(None),
    ) -> Tensor:
        """Who may see whom, in one head of one text, (query, key); of all, or of a part."""
        wanted = range(self.queries)[rows]
        columns = torch.arange(self.keys)[keys]
        whole = torch.zeros(len(wanted), len(columns), dtype=torch.bool)
        first = 0
        for i, chunk in enumerate(self.chunks):
            start, stop = max(wanted.start, first), min(wanted.stop, first + chunk.rows)
            there = columns[columns < chunk.keys]
            if start < stop and len(there):
                asked = of_head(self.asked(i), batch, head)
                places = torch.arange(start - first, stop - first)
                here = whole[start - wanted.start : stop - wanted.start, : len(there)]
                here[:] = True
                if asked["mask"] is not None:
                    here &= asked["mask"].allows(places, there, asked["offset"])[0, 0]
                if isinstance(asked["bias"], Tensor):
                    bias = asked["bias"][0, 0].expand(chunk.rows, chunk.keys)
                    here &= bias[places][:, there] > -torch.inf
            first += chunk.rows
        return whole

    def seen(self, batch: int = 0, head: int = 0) -> Tensor:
        """How many keys each query may look at, in one head of one text, (query,)."""
        chunk = self.chunks[0]
        if self._by_rule_alone:
            return _seen_by_rule(chunk.mask, chunk.rows, chunk.keys, chunk.offset or 0)
        strips = range(0, self.queries, _STRIP)
        return torch.cat([self.allowed(batch, head, slice(r, r + _STRIP)).sum(1) for r in strips])

    def seen_by(self, batch: int = 0, head: int = 0, real: Tensor | None = None) -> Tensor:
        """How many queries may look at each key, in one head of one text, (key,).

        `real`, (query,), are those that count; None where all do.
        """
        chunk = self.chunks[0]
        if real is None and self._by_rule_alone:
            return _seen_by_rule(
                chunk.mask, chunk.rows, chunk.keys, chunk.offset or 0, of_keys=True
            )
        count = torch.zeros(self.keys, dtype=torch.int64)
        for first in range(0, self.queries, _STRIP):
            here = self.allowed(batch, head, slice(first, first + _STRIP))
            count += (here if real is None else here[real[first : first + _STRIP]]).sum(0)
        return count

    @property
    def _by_rule_alone(self) -> bool:
        """Whether who may see whom is one rule for all heads and texts."""
        own = ("0.mask.0", "0.bias", "0.offset")
        return len(self.chunks) == 1 and not any(name in self.tensors for name in own)

    def joined_by_key(self, key: str, run: Iterable[int], parts: list[Tensor]) -> Tensor:
        """One statistic of keys of some chunks: sums add; means count by the rows that may look."""
        longest = max(part.shape[-1] for part in parts)

        def total(some: Iterable[Tensor]) -> Tensor:
            pad = torch.nn.functional.pad
            return torch.stack([pad(p, (0, longest - p.shape[-1])) for p in some]).sum(0)

        if key != "received_mean" or len(parts) == 1:
            return total(parts)
        rows = [self._seen_by(i).to(parts[0]) for i in run]
        received = total(p * n for p, n in zip(parts, rows, strict=True))
        return received / total(rows).clamp(min=1)

    def shares(self) -> Tensor | None:
        """What each key gets of a row that may look at it, on average, (batch, heads, key).

        As `received_mean` says, or as follows from `received`; None where neither was recorded.
        """
        if self.kinds.get("received_mean") == "key":
            return self["received_mean"]
        if self.kinds.get("received") != "key":
            return None
        received, rows = self["received"], torch.zeros(self.batch, self.heads, self.keys)
        for i, chunk in enumerate(self.chunks):
            rows[..., : chunk.keys] += self._seen_by(i)
        return received / rows[..., : received.shape[-1]].clamp(min=1)

    def _seen_by(self, i: int) -> Tensor:
        """How many queries of chunk i may look at each key, (batch, heads, key)."""
        asked, chunk = self.asked(i), self.chunks[i]
        every, count = torch.arange(chunk.keys), torch.zeros(self.batch, self.heads, chunk.keys)
        for rows in torch.arange(chunk.rows).split(_STRIP):
            here = torch.ones(1, 1, len(rows), chunk.keys, dtype=torch.bool)
            if asked["mask"] is not None:
                here = here & asked["mask"].allows(rows, every, asked["offset"])
            if isinstance(asked["bias"], Tensor):
                bias = asked["bias"].expand(*asked["bias"].shape[:-2], chunk.rows, chunk.keys)
                here = here & (bias[..., rows, :] > -torch.inf)
            count += here.sum(-2)
        return count

    def qk(self, i: int) -> tuple[Tensor, Tensor]:
        """The queries of chunk i and the keys they were over."""
        if not self.has_qk:
            raise ValueError(
                "this recording was made with keep_qk=False and has statistics alone; "
                "record again with keep_qk=True to look at weights."
            )
        chunk = self.chunks[i]
        return self.tensors[f"{i}.query"], self.tensors[f"key.{chunk.version}"][:, :, : chunk.keys]


_STRIP = 256  # rows at a time


@functools.lru_cache(maxsize=16)
def _seen_by_rule(
    rule: str | None, rows: int, keys: int, offset: int, of_keys: bool = False
) -> Tensor:
    """How many keys a row sees, or how many rows a key; layers share a rule, and so do heads."""
    if rule is None:
        return torch.full((keys,), rows) if of_keys else torch.full((rows,), keys)
    mask, every = read(rule, []), torch.arange(keys)
    seen = (
        mask.allows(strip, every, offset)[0, 0].expand(len(strip), keys)
        for strip in torch.arange(rows).split(_STRIP)
    )
    if of_keys:
        return torch.stack([here.sum(0) for here in seen]).sum(0)
    return torch.cat([here.sum(1) for here in seen])


def of_text(asked: dict[str, Any], batch: int) -> dict[str, Any]:
    """The same question for one text of the batch."""
    row = slice(batch, batch + 1)
    mask, bias, offset = (asked[n] for n in ("mask", "bias", "offset"))
    if isinstance(bias, Tensor):
        bias = bias[(None,) * (4 - bias.ndim)]
        bias = bias if bias.shape[0] == 1 else bias[row]
    return {
        **asked,
        "mask": None if mask is None else mask.row(row),
        "bias": bias,
        "offset": offset[row] if isinstance(offset, Tensor) else offset,
    }


def of_head(asked: dict[str, Any], batch: int, head: int) -> dict[str, Any]:
    """The same question for one head of one text."""
    asked = of_text(asked, batch)
    mask, bias, sinks = (asked[n] for n in ("mask", "bias", "sinks"))
    if isinstance(bias, Alibi):
        bias = alibi(bias.slopes[head : head + 1])
    elif bias is not None:
        bias = _one_head(bias, head)
    return {
        **asked,
        "mask": None if mask is None else mask.map(lambda t: _one_head(t, head)),
        "bias": bias,
        "sinks": None if sinks is None else sinks[head : head + 1],
    }


def _one_head(data: Tensor, head: int) -> Tensor:
    return data[:, head : head + 1] if data.ndim == 4 and data.shape[1] > 1 else data


def written(mask: Mask | None) -> tuple[str | None, list[Tensor]]:
    return (None, []) if mask is None else write(mask)
