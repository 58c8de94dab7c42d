"""What was seen of a model on one text: its layers, tokens and losses."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..observation import weights
from ..observation.statistics.heatmap import Heat, HeatMap
from ..observation.sweep import sweep
from ..observation.tiles import posed
from ..observation.view import Rows, View, choose_rows
from .chosen import whole
from .damage import broken, told
from .layer import Layer, of_head
from .padding import on_first, real_of_layers, received, source_of_layers, stack_of


@dataclasses.dataclass
class Recording:
    """Every head of a model on one text, exactly: any weight can be had of it.

    `rec.heads()` is one dict a layer and head; `rec.weights(layer, head, rows, keys)` any part of a
    map; `rec.heatmap(layer, head, cells)` the whole of it; `rec[layer]["entropy"]` a statistic.
    `rec.texts` are the recordings of every text that the model was called on, this one first.
    """

    layers: list[Layer]
    model: str  # what it is called
    ids: Tensor | None = None  # (batch, token)
    real: Tensor | None = None  # (batch, token): False where the text was padded
    loss: Tensor | None = None  # (batch, token): −ln p of each token given those before; else NaN
    words: list[list[str]] | None = None  # the tokens as text, where a tokenizer was given
    source_ids: Tensor | None = None  # (batch, token) of the text that an encoder read
    source_real: Tensor | None = None  # (batch, token): False where that was padded
    source_words: list[list[str]] | None = None
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    more: list[Recording] = dataclasses.field(default_factory=list, repr=False)  # texts after it

    def __post_init__(self) -> None:
        self._spilled: object = None  # the folder of what was too much for memory
        self._told: dict[str, Tensor | None] = {}  # padding by stack of layers, as masks tell it

    @property
    def texts(self) -> list[Recording]:
        """Every text that the model was called on, this one first."""
        return [self, *self.more]  # no list of itself is kept: it lives no longer than it is held

    @property
    def tokens(self) -> list[list[str]] | Tensor | None:
        """The tokens of each text of the batch: as text, or as numbers without a tokenizer."""
        return self.ids if self.words is None else self.words

    def __getitem__(self, layer: int | str) -> Layer:
        return self.layer(layer)

    def layer(self, which: int | str) -> Layer:
        """A layer by its number, in order of first call, or by its path in the model."""
        asked = which if isinstance(which, str) else whole(which)
        for layer in self.layers:
            if asked in (layer.index, layer.name):
                return layer
        if not self.layers:
            raise ValueError(
                "nothing is recorded yet: look after the with statement has ended, and ended well."
            )
        some = ", ".join(f"{one.index} {one.name}" for one in self.layers[:4])
        raise ValueError(
            f"there is no layer {which!r}; choose one of {len(self.layers)}, by number or name.\n"
            f"  {some}{', …' if len(self.layers) > 4 else ''}"
        )

    def weights(
        self,
        layer: int | str,
        head: int,
        rows: Rows = None,
        keys: Rows = None,
        *,
        by: str = "weight",
        batch: int = 0,
    ) -> Tensor:
        """Any part of one head's map, exactly, (row, key).

        `by="norm"` gives p·‖v W_O‖ instead, how much each key moves the output (Kobayashi et al.
        2020); `by="value"` p·‖v‖.
        """
        seen = self.layer(layer)
        head, batch = _check_head(seen, head, batch)
        if by not in _BY:
            raise ValueError(f"by must be one of {', '.join(map(repr, _BY))}, but {by!r} came.")
        chosen = choose_rows(rows, seen.queries, torch.device("cpu"))
        columns = choose_rows(keys, seen.keys, torch.device("cpu"), "keys")
        out = torch.zeros(len(chosen), len(columns), dtype=seen.lse.dtype)
        first = 0
        for i, chunk in enumerate(seen.chunks):
            inside = (chosen >= first) & (chosen < first + chunk.rows)
            there = columns < chunk.keys
            if inside.any() and there.any():
                query, key, lse, asked = _one(seen, i, head, batch)
                tile = weights(
                    query, key, rows=chosen[inside] - first, keys=columns[there], lse=lse, **asked
                )
                found = tile[0, 0]
                if by != "weight":
                    found = found * _norms(seen, i, head, batch, by)[columns[there]]
                if found.shape == out.shape:
                    return found
                out[inside.nonzero(), there.nonzero()[:, 0]] = found
            first += chunk.rows
        return out

    def heatmap(self, layer: int | str, head: int, cells: int = 128, *, batch: int = 0) -> HeatMap:
        """One head's whole map in cells × cells: `.sum`, `.largest` weight, `.mean` of `.pairs`."""
        seen = self.layer(layer)
        head, batch = _check_head(seen, head, batch)
        gatherer, first = None, 0
        for i, chunk in enumerate(seen.chunks):
            query, key, lse, asked = _one(seen, i, head, batch)
            problem = posed(query, key, asked)
            view = View(problem, lse, torch.arange(chunk.rows), chunk.rows)
            if gatherer is None:
                gatherer = Heat(cells).begin(view)
            gatherer.spread(first, chunk.rows, seen.queries, seen.keys)
            with torch.no_grad():
                sweep(view, [gatherer])
            first += chunk.rows
        assert gatherer is not None
        return HeatMap(*(part[0, 0] for part in gatherer.result()))

    def heads(self, *, batch: int | None = None) -> list[dict[str, Any]]:
        """One dict a layer and head, for a table: `pandas.DataFrame(rec.heads())`.

        Of all texts of the batch together, or of one. Statistics of rows are means over the rows
        that saw something, padding left out; `received_top` is the key that gets most from these
        rows, and `received_top_share` its share of them. Both are missing of a padded text with
        `keep_qk=False`, and so is `first` of one that is padded in front: what padding gave to a
        key, and where the first token got its weight, is told by queries and keys alone.
        """
        found = []
        for layer in self.layers:
            if batch is not None:
                _, batch = _check_head(layer, 0, batch)
            texts = slice(None) if batch is None else slice(batch, batch + 1)
            counted = self.counted(layer)[texts]
            rows = {k: self.of_rows(layer, k) for k, kind in layer.kinds.items() if kind == "row"}
            means = {
                key: _mean(value[texts], counted)
                for key, value in rows.items()
                if value is not None
            }
            got = received(layer, self.real_rows(layer))
            if got is not None:
                most, best = got[texts].sum(0).max(-1)  # (heads,)
                looking = counted.sum((0, 2)).clamp(min=1)
                means |= {"received_top": best, "received_top_share": most / looking}
            for head in range(layer.heads):
                row: dict[str, Any] = {"layer": layer.index, "name": layer.name, "head": head}
                found.append(row | {key: value[head].item() for key, value in means.items()})
        return found

    def of_rows(self, layer: Layer, key: str) -> Tensor | None:
        """A statistic of rows; `first` is of the first token that is no padding, None where that
        cannot be told."""
        found = layer[key]
        return on_first(layer, found, self.real_keys(layer)) if key == "first" else found

    def counted(self, layer: Layer) -> Tensor:
        """The rows that count, (batch, heads, row): they saw something, and are no padding."""
        counted, real = layer.lse != -torch.inf, self.real_rows(layer)
        return counted if real is None else counted & real[:, None]

    def real_rows(self, layer: Layer) -> Tensor | None:
        """Which rows of a layer are no padding, (batch, row); None where all are, or may be.

        Where no text was told, as of models that read no tokens, the masks of its stack tell.
        """
        real = self.source_real if self._is_encoders(layer) else self.real
        if real is None and "encoder" not in self.about:
            real = self._by_masks(layer, "rows")
        if real is None or real.shape != (layer.batch, layer.queries) or bool(real.all()):
            return None
        return real

    def words_of(self, layer: Layer) -> list[list[str]] | None:
        """The words that its rows stand for, where they are told: an encoder reads a text of its
        own.
        """
        words = self.source_words if self._is_encoders(layer) else self.words
        told = words is not None and len(words) == layer.batch
        return words if told and all(len(text) == layer.queries for text in words or ()) else None

    def _is_encoders(self, layer: Layer) -> bool:
        encoder = self.about.get("encoder")
        return encoder == "" or bool(encoder and f"{layer.name}.".startswith(f"{encoder}."))

    def real_keys(self, layer: Layer) -> Tensor | None:
        """The same of its keys, (batch, key): in cross-attention they are another text's."""
        if not layer.crosses:
            return self.real_rows(layer)
        real = self.source_real
        if real is None and "encoder" not in self.about:
            real = self._by_masks(layer, "keys")
        if real is None or real.shape != (layer.batch, layer.keys) or bool(real.all()):
            return None
        return real

    def _by_masks(self, layer: Layer, what: str) -> Tensor | None:
        """An encoder and its decoder have padding of their own, and so has what a decoder reads."""
        stack = stack_of(layer.name)
        if (key := f"{what} {stack}") not in self._told:
            own = [one for one in self.layers if stack_of(one.name) == stack]
            self._told[key] = real_of_layers(own) if what == "rows" else source_of_layers(own)
        return self._told[key]

    def damaged(self) -> list[str]:
        """The layers in which a weight is not a number, or whose file does not hold what was
        written; `repr(rec)` tells of them too."""
        return [layer.name for layer in self.layers if broken(layer)]

    def save(self, path) -> None:
        """Write everything into a folder, `run.heads/`; see `mh.load`."""
        from .saving import save

        save(self, path)

    def __repr__(self) -> str:
        heads = sum(layer.heads for layer in self.layers)
        lines = [f"Recording of {self.model}: {len(self.layers)} layers, {heads} heads"]
        for layer in self.layers[:3]:
            size = f"{layer.queries} × {layer.keys}"
            lines.append(f"  {layer.index:>3} {layer.name}: {layer.heads} heads, {size}")
        if len(self.layers) > 3:
            lines.append(f"  … and {len(self.layers) - 3} more")
        if self.layers:
            lines.append(f"  statistics: {', '.join(self.layers[0].statistics)}")
        if self.loss is not None and not bool(self.loss.isnan().all()):
            lines.append(f"  loss {float(self.loss.nanmean()):.3f} nats a token")
        lines += told(self.layers)
        if self.about.get("unfinished"):
            lines.append("  unfinished: these are the layers that were written")
        if len(self.texts) > 1:
            lines.append(f"  and {len(self.texts) - 1} more texts, in rec.texts")
        return "\n".join(lines)


def _one(layer: Layer, i: int, head: int, batch: int) -> tuple[Tensor, Tensor, Tensor, dict]:
    """Query, key, lse and question of one head of one text in chunk i."""
    query, key = layer.qk(i)
    group = layer.heads // layer.kv_heads
    row, kv = slice(batch, batch + 1), head // group
    lse = layer.tensors[f"{i}.lse"][row, head : head + 1]
    asked = of_head(layer.asked(i), batch, head)
    return query[row, head : head + 1], key[row, kv : kv + 1], lse, asked


_BY = ("weight", "norm", "value")


def _norms(layer: Layer, chunk: int, head: int, batch: int, by: str) -> Tensor:
    """How long what each key gives is, (key,)."""
    if by == "value":
        return layer.value_norm(chunk)[batch, head // (layer.heads // layer.kv_heads)]
    norms = layer.output_norm(chunk)
    if norms is None:
        raise ValueError(
            f"no output projection was found behind {layer.name}, so ‖v W_O‖ is not known; "
            "ask by='value' for ‖v‖."
        )
    return norms[batch, head]


def _check_head(layer: Layer, head: int, batch: int) -> tuple[int, int]:
    """Both as whole numbers, NumPy's too, that this layer has."""
    found = []
    for name, given, count in (("head", head, layer.heads), ("batch", batch, layer.batch)):
        number = whole(given)
        if number is None or not 0 <= number < count:
            raise ValueError(
                f"{name} of layer {layer.index}, {layer.name}, must lie from 0 to {count - 1}, "
                f"but {given!r} came; give one of those whole numbers."
            )
        found.append(number)
    return found[0], found[1]


def _mean(value: Tensor, counted: Tensor) -> Tensor:
    """The mean of each head over batch and rows that count, (heads,)."""
    value = value if value.ndim == 3 else value.mean(-1)
    total = value.masked_fill(~counted, 0.0).sum((0, 2))
    return total / counted.sum((0, 2)).clamp(min=1)
