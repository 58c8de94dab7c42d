"""Many texts: what each head does on the whole of them, and where it does it most."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .recording import Recording


@dataclasses.dataclass(frozen=True, order=True)
class Example:
    """One link of a head: a query, the key it looked at most, and how much."""

    weight: float
    text: int  # which of all texts, counted over the batches
    query: int
    key: int
    words: tuple[str, str] | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass
class Corpus:
    """Head statistics over many texts: means, 95 % intervals, and each head's strongest links."""

    texts: int
    names: list[tuple[int, str, int]]  # layer, its name, head
    values: dict[str, Tensor]  # each statistic, (text, head of all layers)
    strongest: dict[tuple[int, int], list[Example]]

    def heads(self) -> list[dict[str, Any]]:
        """One dict a layer and head: `entropy`, and `entropy_low`, `entropy_high` around it.

        The interval is the mean ± 1.96 standard errors over texts; NaN with one text alone. With
        few texts it may reach beyond what is possible, below 0 for a weight: it is the mean's.
        """
        rows = []
        for i, (layer, name, head) in enumerate(self.names):
            row: dict[str, Any] = {"layer": layer, "name": name, "head": head, "texts": self.texts}
            for key, values in self.values.items():
                mean, error = _mean_and_error(values[:, i])
                row |= {key: mean, f"{key}_low": mean - error, f"{key}_high": mean + error}
            rows.append(row)
        return rows

    def examples(self, layer: int, head: int) -> list[Example]:
        """The strongest links of a head to a key that is neither the first nor its own."""
        if (layer, head) not in self.strongest:
            raise ValueError(
                f"there is no layer {layer!r} with a head {head!r}; see corpus.heads() for all."
            )
        return self.strongest[layer, head]

    def __repr__(self) -> str:
        return f"Corpus of {self.texts} texts, {len(self.names)} heads: {', '.join(self.values)}"


def gather_texts(
    recordings: Iterable[Recording], examples: int, progress: Callable[[int], None] | None
) -> Corpus:
    """One recording after another, none of them kept."""
    values: dict[str, list[Tensor]] = {}
    strongest: dict[tuple[int, int], list[Example]] = {}
    names: list[tuple[int, str, int]] = []
    texts = 0
    for n, rec in enumerate(recordings):
        here = [(one.index, one.name, head) for one in rec.layers for head in range(one.heads)]
        if names and here != names:
            raise ValueError(
                f"batch {n} was seen by other layers than those before it; record them apart."
            )
        names = here
        for key, kind in rec.layers[0].kinds.items():
            if kind == "row":
                values.setdefault(key, []).append(_by_text(rec, key))
        _collect(rec, texts, examples, strongest)
        texts += rec.layers[0].batch
        if progress is not None:
            progress(n + 1)
    if not texts:
        raise ValueError("batches are empty; give at least one text.")
    joined = {key: torch.cat(parts) for key, parts in values.items()}
    return Corpus(texts, names, joined, strongest)


def _by_text(rec: Recording, key: str) -> Tensor:
    """The mean of a statistic over the rows of each text, (text, head of all layers)."""
    columns = []
    for layer in rec.layers:
        counted = rec.counted(layer)
        value = layer[key]
        value = value if value.ndim == 3 else value.mean(-1)
        total = value.masked_fill(~counted, 0).sum(2)
        columns.append((total / counted.sum(2).clamp(min=1)).double())
    return torch.cat(columns, dim=1)


def _collect(rec: Recording, first: int, count: int, strongest: dict) -> None:
    for layer in rec.layers:
        peak, key = layer["peak"], layer["peak_key"]
        own = torch.arange(peak.shape[2]) + (layer.chunks[0].offset or 0)
        plain = (key > 0) & (key != own) & rec.counted(layer)
        ranked = torch.where(plain, peak, -1.0)
        for head in range(layer.heads):
            found = ranked[:, head].flatten()
            best = found.topk(min(count, len(found)))
            held = strongest.setdefault((layer.index, head), [])
            for weight, where in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                if weight < 0:
                    continue
                batch, query = divmod(where, peak.shape[2])
                at = int(key[batch, head, query])
                words = None
                if rec.words is not None and not layer.crosses:
                    words = (rec.words[batch][query], rec.words[batch][at])
                held.append(Example(weight, first + batch, query, at, words))
            strongest[layer.index, head] = heapq.nlargest(count, held)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    n = len(values)
    error = float(values.std()) / math.sqrt(n) * 1.96 if n > 1 else math.nan
    return float(values.mean()), error
