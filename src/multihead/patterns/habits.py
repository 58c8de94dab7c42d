"""What is not one mask: a head's favourite distance, its sinks, and how widely it looks.

- *positional*: its strongest key stands at one and the same distance in at least 90 % of the rows
  (Voita et al. 2019, arXiv:1905.09418).
- *sink*: a key, the first or another, gets more than 0.3 of every row that may see it, on average
  (Xiao et al. 2023, arXiv:2309.17453); *resting* where that key has little to say: its ‖v W_O‖ is
  below a third of the median (Kobayashi et al. 2020, arXiv:2004.10102). A key that few rows may see
  is left out: no more than a quarter as many as see the key that most see. In a causal model those
  are the last quarter of the keys; where every row sees all, none.
- *broad*: entropy over the logarithm of the number of keys allowed; 1 is to look at all alike.

Rows of padding count for none of them: a text has the same habits with and without it.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..recording import Layer, Recording
from ..recording.chosen import whole
from ..recording.padding import shares

STATS = ("entropy", "peak_key", "received_mean")
ALWAYS, SINK, QUIET = 0.9, 0.3, 1 / 3
FEW = 16  # rows: of fewer no habit can be told
LEAST = 1 / 4  # of the rows that see the key that most see: what fewer see is no sink


@dataclasses.dataclass(frozen=True)
class Sink:
    """A key that a head's rows leave their weight on."""

    key: int
    share: float  # of every row that may see it, on average
    resting: bool | None  # whether it says little; None where the output projection is not known


@dataclasses.dataclass(frozen=True)
class Habit:
    """What one head does at rest."""

    layer: int
    head: int
    distance: int  # where its strongest key stands most often, key − query
    always: float  # in what share of the rows
    broad: float
    sinks: tuple[Sink, ...]

    @property
    def positional(self) -> bool:
        return self.always >= ALWAYS


def habits(rec: Recording, batch: int = 0) -> list[Habit]:
    """The habits of every self-attention head of a recording that has the statistics needed.

    >>> import multihead as mh, torch
    >>> attn = mh.MultiHeadAttention(8, 2, mask=mh.causal())
    >>> stats = ("entropy", "peak_key", "received_mean")
    >>> with torch.no_grad(), mh.record(attn, stats=stats) as rec:
    ...     y = attn(torch.zeros(1, 40, 8))
    >>> [f"{habit.broad:.2f}" for habit in mh.habits(rec)]
    ['1.00', '1.00']
    """
    if not isinstance(rec, Recording):
        raise ValueError(
            f"habits are those of a recording, but a {type(rec).__name__} came; give what "
            "mh.record gives."
        )
    if not rec.layers:
        raise ValueError("nothing was recorded; look after the with statement has ended.")
    missing = [key for key in STATS if key not in rec.layers[0].kinds]
    if missing:
        raise ValueError(
            f"habits need {', '.join(STATS)}, but {missing[0]} was not recorded; record with "
            "stats=(*mh.recording.DEFAULT, 'peak_key', 'received_mean')."
        )
    texts = rec.layers[0].batch
    text = whole(batch)
    if text is None or not 0 <= text < texts:
        raise ValueError(f"batch must lie from 0 to {texts - 1}, but {batch!r} came.")
    batch = text
    found = []
    for layer in (one for one in rec.layers if not one.crosses):
        every = rec.real_rows(layer)
        share, real = shares(layer, batch, every), None if every is None else every[batch]
        assert share is not None  # received_mean was recorded
        found += [
            Habit(
                layer.index, head, *_favourite(layer, head, batch, real),
                _broad(layer, head, batch, real), sinks_in(share[head], layer, head, batch, real),
            )
            for head in range(layer.heads)
        ]  # fmt: skip
    return found


def _favourite(layer: Layer, head: int, batch: int, real: Tensor | None) -> tuple[int, float]:
    """At which distance its strongest key stands most often, and in what share of the rows."""
    keys = layer["peak_key"][batch, head]
    real = torch.ones(len(keys), dtype=torch.bool) if real is None else real
    first = layer.chunks[0].offset or 0
    place = torch.arange(len(keys)) + first
    before = real.cumsum(0) - 1 + first  # how many tokens of the text stand before a row
    # Rows that may see hardly anything have no choice.
    free = (keys >= 0) & real & (before >= min(8, int(real.sum()) // 2))
    apart = (keys - place)[free]
    if len(apart) < FEW:
        return 0, 0.0
    values, counts = apart.unique(return_counts=True)
    return int(values[counts.argmax()]), float(counts.max()) / len(apart)


def _broad(layer: Layer, head: int, batch: int, real: Tensor | None) -> float:
    entropy = layer["entropy"][batch, head]
    count = layer.seen(batch, head)
    free = count > 1 if real is None else (count > 1) & real
    return float((entropy[free] / count[free].log()).mean()) if free.any() else 0.0


def sinks(layer: Layer, head: int, batch: int = 0) -> tuple[Sink, ...]:
    """The sinks of a head, heaviest first; of a layer recorded with what its keys receive."""
    share = layer.shares()
    return () if share is None else sinks_in(share[batch, head], layer, head, batch)


def sinks_in(
    share: Tensor, layer: Layer, head: int, batch: int, real: Tensor | None = None
) -> tuple[Sink, ...]:
    """The sinks by what each key gets of a row, (key,); `real` are the rows that count, (row,)."""
    rows = layer.seen_by(batch, head, real)[: len(share)]
    seen = rows > 0  # by nobody: padding, or an empty place of a cache
    if int(seen.sum()) < FEW:
        return ()
    norms = layer.output_norm()
    own = None if norms is None else norms[batch, head, : len(share)]
    quiet = None if own is None else own < QUIET * own[seen].median()
    found = []
    for key in ((share > SINK) & (rows > LEAST * rows.max())).nonzero()[:, 0].tolist():
        resting = None if quiet is None else bool(quiet[key])
        found.append(Sink(key, float(share[key]), resting))
    return tuple(sorted(found, key=lambda sink: -sink.share))
