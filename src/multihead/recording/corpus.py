"""Many texts: what each head does on the whole of them, and where it does it most."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .chosen import whole
from .padding import received
from .recording import Recording

# What is not one number a row, and why it has no mean over texts.
_APART = {
    "map": "a map, and that of one text does not lie on that of another",
    "top": "a list of keys, and a key of one text is none of another",
    "key": "one number a key, and a key of one text is none of another",
}


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

        The interval is the mean ± t standard errors over texts, t by Student with one degree of
        freedom less than there are texts (1.96 for many); NaN with one text alone. With few texts
        it may reach beyond what is possible, below 0 for a weight: it is the mean's.
        `received_top_share` is the share of a text's rows that its strongest key gets, padding
        left out, as `rec.heads()` has it.
        """
        rows = []
        for i, (layer, name, head) in enumerate(self.names):
            row: dict[str, Any] = {"layer": layer, "name": name, "head": head, "texts": self.texts}
            for key, values in self.values.items():
                mean, error = _mean_and_error(values[:, i])
                row |= {key: mean, f"{key}_low": mean - error, f"{key}_high": mean + error}
            rows.append(row)
        return rows

    def examples(self, layer: int | str, head: int) -> list[Example]:
        """The strongest links of a head to a key that is neither the first nor its own.

        A layer by its number or its path in the model, as in `rec.weights`.
        """
        asked = layer if isinstance(layer, str) else whole(layer)
        for index, name, own in self.names:
            if asked in (index, name) and own == whole(head):
                return self.strongest[index, own]
        raise ValueError(
            f"there is no layer {layer!r} with a head {head!r}; see corpus.heads() for all."
        )

    def __repr__(self) -> str:
        return f"Corpus of {self.texts} texts, {len(self.names)} heads: {', '.join(self.values)}"


def gather_texts(
    recordings: Iterable[Recording], examples: int, progress: Callable[[int], None] | None
) -> Corpus:
    """One recording after another, none of them kept."""
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 0:
        raise ValueError(
            f"examples are a number of links, 0 or more, but {examples!r} came; give 5, say."
        )
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
        for key, value in _by_text(rec).items():
            values.setdefault(key, []).append(value)
        _collect(rec, texts, examples, strongest)
        texts += rec.layers[0].batch
        if progress is not None:
            progress(n + 1)
    if not texts:
        raise ValueError("batches are empty; give at least one text.")
    joined = {key: torch.cat(parts) for key, parts in values.items()}
    return Corpus(texts, names, joined, strongest)


def _by_text(rec: Recording) -> dict[str, Tensor]:
    """Each statistic of each text, (text, head of all layers); `peak_key` is for examples alone."""
    found = {}
    for key, kind in rec.layers[0].kinds.items():
        if kind == "row":
            found[key] = _row_mean(rec, key)
        elif key == "received":
            found["received_top_share"] = _top_share(rec)
        elif kind != "place":
            raise ValueError(
                f"{key} is {_APART[kind]}, so it has no mean over texts; leave it out of stats, or "
                "look at each text with mh.record."
            )
    return found


def _top_share(rec: Recording) -> Tensor:
    """What the key that gets most gets of the rows that count, (text, head of all)."""
    columns = []
    for layer in rec.layers:
        got = received(layer, rec.real_rows(layer))
        assert got is not None  # queries and keys were kept for it
        looking = rec.counted(layer).sum(2).clamp(min=1)  # (text, head)
        columns.append((got.amax(-1) / looking).double())
    return torch.cat(columns, dim=1)


def _row_mean(rec: Recording, key: str) -> Tensor:
    """The mean of a statistic over the rows of each text, (text, head of all layers)."""
    columns = []
    for layer in rec.layers:
        counted = rec.counted(layer)
        value = rec.of_rows(layer, key)
        assert value is not None  # queries and keys were kept
        value = value if value.ndim == 3 else value.mean(-1)
        total = value.masked_fill(~counted, 0).sum(2)
        columns.append((total / counted.sum(2).clamp(min=1)).double())
    return torch.cat(columns, dim=1)


def _collect(rec: Recording, first: int, count: int, strongest: dict) -> None:
    for layer in rec.layers:
        peak, key = layer["peak"], layer["peak_key"]
        told = None if layer.crosses else rec.words_of(layer)
        own = torch.arange(peak.shape[2]) + (layer.chunks[0].offset or 0)
        real = rec.real_keys(layer)
        first_key = 0 if real is None else real.int().argmax(1)[:, None, None]
        plain = (key > first_key) & (key != own) & rec.counted(layer)
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
                if told is not None and layer.queries == layer.keys:
                    words = (told[batch][query], told[batch][at])
                held.append(Example(weight, first + batch, query, at, words))
            strongest[layer.index, head] = heapq.nlargest(count, held)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    n = len(values)
    error = float(values.std()) / math.sqrt(n) * student(n - 1) if n > 1 else math.nan
    return float(values.mean()), error


_FEW = (12.7062, 4.3027, 3.1824, 2.7764)  # of 1, 2, 3 and 4 degrees of freedom


def student(freedom: int) -> float:
    """How many standard errors a 95 % interval reaches either way, with so many degrees of freedom.

    Of few from the table; else by the normal quantile and its corrections (Abramowitz and Stegun,
    26.7.5), to three digits and more.

    >>> [round(student(n), 2) for n in (1, 4, 5, 10, 30, 10_000)]
    [12.71, 2.78, 2.57, 2.23, 2.04, 1.96]
    """
    if freedom <= len(_FEW):
        return _FEW[freedom - 1]
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**n for n, term in enumerate(terms, 1))
