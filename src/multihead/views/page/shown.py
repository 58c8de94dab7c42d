"""One recording as the page shows it: its tokens, its heads in a table, its maps in tiles."""

from __future__ import annotations

import itertools
from typing import Any

from torch import Tensor

from ...patterns import FEW, Sink, sinks_in
from ...recording import Layer, Recording
from ...recording.padding import received, shares
from .cache import Cache
from .labels import padding_of, texts_of
from .numbers import number, numbers
from .strips import along
from .strongest import strongest
from .thumbs import THUMB, has_thumbs, thumbs
from .tiles import BY, POOLS, SIDE, Map, Pyramid, build, cut_out, factors, tile

STRIPS = ("entropy", "distance", "received")  # numbers a token, along the text
_LINKS = 8  # told of a row or a column
_NOT_SHOWN = ("layer", "name", "head")
_SERIALS = itertools.count()


class Shown:
    """What the page asks of a recording. Weights are worked out when they are looked at."""

    def __init__(self, rec: Recording, label: str, cache: Cache, about: dict[str, Any]) -> None:
        self.rec, self.label, self.cache, self.about = rec, label, cache, about
        self.serial = next(_SERIALS)  # in the cache; an id() would come again
        self.guesses: list[list[tuple[str, float]]] | None = None  # of each token's next
        self.uncut: dict[int, list[list[tuple[str, float]]]] = {}  # the same, worked out later
        self.outputs: dict[int, dict[str, list[float | None]]] = {}  # what heads move, measured
        self._heads: dict[int, list[dict[str, Any]]] = {}  # by text
        self._sinks: dict[tuple[int, int], list[tuple[int, ...]]] = {}  # by layer and text
        self._got: dict[int, tuple[Tensor | None, Tensor]] = {}  # what keys receive, by layer
        self._thumbs: dict[int, bytes] = {}

    # ── the whole

    def home(self, batch: int = 0) -> dict[str, Any]:
        self.check_batch(batch)
        rec, heads = self.rec, self.heads(batch)
        texts, of_layer = texts_of(rec, batch)
        padding = padding_of(rec, batch, texts)
        loss = None if rec.loss is None else numbers(rec.loss[batch], 4)
        return {
            "label": self.label,
            "about": self.about,
            "batches": self.batches,
            "tokens": 0 if rec.ids is None else rec.ids.shape[1] - len(padding.get("text", ())),
            "texts": texts,
            "padding": padding,
            "loss": loss,
            "guesses": self.guesses is not None,
            "damaged": rec.damaged(),
            "layers": [_layer(layer, *of_layer[layer.index]) for layer in rec.layers],
            "stats": [key for key in heads[0] if key not in ("layer", "head", "sinks")],
            "heads": heads,
            "thumb": THUMB,
        }

    def heads(self, batch: int = 0) -> list[dict[str, Any]]:
        """One dict a head: statistics of one text, its sinks and how much weight lies on them."""
        self.check_batch(batch)
        if batch not in self._heads:
            self._heads[batch] = self.rec.heads(batch=batch)
        found = []
        for row in self._heads[batch]:
            layer, head = self.rec.layer(row["layer"]), row["head"]
            keys = self.sinks(layer, head, batch)
            kept = {k: v for k, v in row.items() if k not in _NOT_SHOWN}
            found.append(
                {"layer": row["layer"], "head": head}
                | {key: number(value, 5) for key, value in kept.items()}
                | {
                    "sinks": list(keys),
                    "hidden": self.share_on(Map(layer.index, head, batch), keys),
                }
            )
        return found

    def sinks(self, layer: Layer, head: int, batch: int) -> tuple[int, ...]:
        """The keys that get more than 0.3 of every row that may see them, on average."""
        if (layer.index, batch) not in self._sinks:
            rows = None if layer.crosses else self.rec.real_rows(layer)
            real = None if rows is None else rows[batch]
            got = None if layer.crosses else shares(layer, batch, rows)
            self._sinks[layer.index, batch] = [
                () if got is None else _keys(sinks_in(got[h], layer, h, batch, real))
                for h in range(layer.heads)
            ]
        return self._sinks[layer.index, batch][head]

    def _no_sinks(self, layer: Layer, batch: int) -> str:
        """Why sinks are not told, where they cannot be."""
        if layer.crosses:
            return ""
        real = self.rec.real_rows(layer)
        if (layer.keys if real is None else int(real[batch].sum())) < FEW:
            return f"sinks are not told of fewer than {FEW} tokens"
        known = {"received", "received_mean"} & layer.kinds.keys()
        return "" if known else "sinks are not known: what keys receive was not recorded"

    def share_on(self, which: Map, keys: tuple[int, ...]) -> float | int | None:
        """What share of all weight lies on these keys; 0 where it was not recorded."""
        (got, rows), at = self._received(self.layer(which)), (which.batch, which.head)
        if not keys or got is None:
            return 0.0
        return number(float(got[at][list(keys)].sum() / rows[at]), 4)

    def _received(self, layer: Layer) -> tuple[Tensor | None, Tensor]:
        """What keys get, and from how many rows, (batch, heads): of rows that are no padding."""
        if layer.index not in self._got:
            got = received(layer, self.rec.real_rows(layer))
            self._got[layer.index] = (got, self.rec.counted(layer).sum(-1).clamp(min=1))
        return self._got[layer.index]

    def thumbs(self, batch: int = 0) -> bytes:
        """The largest weight in each cell of every head, a byte each: 255 is 1, four decades down.

        A recording that has no heat map of that size is swept once; one without maps has zeros.
        """
        self.check_batch(batch)
        if batch not in self._thumbs:
            self._thumbs[batch] = thumbs(self.rec, batch)
        return self._thumbs[batch]

    # ── one head

    def head(self, which: Map, strips: tuple[str, ...] = STRIPS) -> dict[str, Any]:
        """Strips along the text, sinks, and what each head of the layer moves."""
        layer = self.layer(which)
        pick, real = (
            (which.batch, which.head),
            (self.rec.real_rows(layer), self.rec.real_keys(layer)),
        )
        keys = self.sinks(layer, which.head, which.batch)
        return {
            "layer": which.layer, "head": which.head, "name": layer.name,
            "strips": along(layer, pick, strips, self._received(layer)[0], real),
            "sinks": list(keys), "no_sinks": self._no_sinks(layer, which.batch),
            "hidden": self.share_on(which, keys),
            "norm_found": layer.output_norm() is not None,
            "moves": self.moves(layer, which.batch),
            "mask": layer.chunks[0].mask, "scale": layer.chunks[0].scale,
            "softcap": layer.chunks[0].softcap,
            "kv_head": which.head * layer.kv_heads // layer.heads,
        }  # fmt: skip

    def moves(self, layer: Layer, batch: int) -> list[float | None] | None:
        """Σⱼ p‖v W_O‖ of a row of each head, on average: what of it reaches the output at most."""
        norms, (got, rows) = layer.output_norm(), self._received(layer)
        if norms is None or got is None:
            return None
        n = min(got.shape[-1], norms.shape[-1])
        return numbers((got[batch, :, :n] * norms[batch][:, :n]).sum(-1) / rows[batch], 5)

    def range(self, which: Map) -> dict[str, dict[str, float]]:
        """The largest number shown at every factor, for each way of pooling."""
        most = self.pyramid(which).most
        return {
            str(factor): {pool: most[factor, pool] for pool in POOLS}
            for factor in factors(self.layer(which))
        }

    def tile(self, which: Map, factor: int, row: int, column: int, pool: str) -> bytes:
        """256 × 256 cells at most, float16, row by row; NaN where nobody may look."""
        layer = self.layer(which)
        _check(factor in factors(layer), "factor", factors(layer), factor)
        _check(pool in POOLS, "pool", POOLS, pool)
        down, across = (-(-n // (SIDE * factor)) for n in (layer.queries, layer.keys))
        _check(0 <= row < down, "row", f"0 to {down - 1}", row)
        _check(0 <= column < across, "column", f"0 to {across - 1}", column)
        cells = tile(self.rec, which, factor, row, column)
        if cells is None:
            cells = cut_out(self.pyramid(which), factor, row, column)
        return cells.shown(pool, which.by).clamp(max=65504).half().contiguous().numpy().tobytes()

    def cell(self, which: Map, factor: int, row: int, column: int) -> dict[str, Any]:
        """The largest link of a cell, exactly; and the largest of those in it that are hidden."""
        layer = self.layer(which)
        _check(factor in factors(layer), "factor", factors(layer), factor)
        _check(0 <= row * factor < layer.queries, "row", "one of the map", row)
        _check(0 <= column * factor < layer.keys, "column", "one of the map", column)
        rows = slice(row * factor, min((row + 1) * factor, layer.queries))
        keys = slice(column * factor, min((column + 1) * factor, layer.keys))
        return strongest(self.rec, which, rows, keys)

    def row(self, which: Map, query: int) -> dict[str, Any]:
        """Where a query looks: every weight, and its strongest links."""
        layer = self.layer(which)
        _check(0 <= query < layer.queries, "query", f"0 to {layer.queries - 1}", query)
        _check_plain(which)
        weights = self.rec.weights(
            which.layer, which.head, slice(query, query + 1), by=_by(which), batch=which.batch
        )[0]
        return {"query": query, **_links(weights), **self._about_token(query, which, side=0)}

    def column(self, which: Map, key: int) -> dict[str, Any]:
        """Who looks at a key."""
        layer = self.layer(which)
        _check(0 <= key < layer.keys, "key", f"0 to {layer.keys - 1}", key)
        _check_plain(which)
        weights = self.rec.weights(
            which.layer, which.head, None, slice(key, key + 1), by=_by(which), batch=which.batch
        )[:, 0]
        if (real := self.rec.real_rows(layer)) is not None:  # nobody asks for rows of padding
            weights = weights.masked_fill(~real[which.batch], 0.0)
        return {"key": key, **_links(weights), **self._about_token(key, which, side=1)}

    def _about_token(self, place: int, which: Map, side: int) -> dict[str, Any]:
        """Of a place on an axis of the map: a source has places too, but no loss."""
        of_layer = texts_of(self.rec, which.batch)[1]
        is_text = of_layer[self.layer(which).index][side] == "text"
        return self.token(place, which.batch) if is_text else {}

    def token(self, place: int, batch: int) -> dict[str, Any]:
        """What a token cost, and what the model thought would come behind it."""
        told: dict[str, Any] = {}
        if self.rec.loss is not None:
            told["loss"] = number(float(self.rec.loss[batch, place]), 4)
        known = self.guesses if batch == 0 else None
        if known is not None and place < len(known):
            told["next"] = [[word, number(p, 4)] for word, p in known[place]]
        return told

    def next_words(self, batch: int) -> list[list[tuple[str, float]]] | None:
        """What each token of a text thinks comes next, where that is known."""
        known = self.guesses if batch == 0 else None
        return self.uncut.get(batch) if known is None else known

    @property
    def batches(self) -> int:
        """How many texts were recorded together, in every layer."""
        return min(layer.batch for layer in self.rec.layers)

    def check_batch(self, batch: int) -> None:
        _check(0 <= batch < self.batches, "batch", f"0 to {self.batches - 1}", batch)

    # ── what is kept

    def layer(self, which: Map) -> Layer:
        layer = self.rec.layer(which.layer)
        _check(0 <= which.head < layer.heads, "head", f"0 to {layer.heads - 1}", which.head)
        _check(0 <= which.batch < layer.batch, "batch", f"0 to {layer.batch - 1}", which.batch)
        _check(which.by in BY, "by", BY, which.by)
        return layer

    def pyramid(self, which: Map) -> Pyramid:
        return self.cache.get(
            (self.serial, which), lambda: build(self.rec, which), lambda p: p.nbytes
        )


def _by(which: Map) -> str:
    return "norm" if which.by == "norm" else "weight"


def _check_plain(which: Map) -> None:
    _check(which.by != "uniform", "by", "weight or norm here", which.by)


def _keys(found: tuple[Sink, ...]) -> tuple[int, ...]:
    return tuple(sorted(sink.key for sink in found))


def _check(holds: bool, what: str, expected: object, came: object) -> None:
    if not holds:
        raise ValueError(f"{what} must be {expected}, but {came!r} came; choose one of those.")


def _links(weights: Tensor) -> dict[str, Any]:
    best = weights.float().nan_to_num(0.0).topk(min(_LINKS, len(weights)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {
        "weights": numbers(weights, 7),
        "top": [[place, value] for place, value in pairs if value > 0],
        "sum": float(weights.nan_to_num(0.0).sum()),
    }


def _layer(layer: Layer, query_text: str, key_text: str) -> dict[str, Any]:
    return {
        "index": layer.index, "name": layer.name, "heads": layer.heads, "kv_heads": layer.kv_heads,
        "queries": layer.queries, "keys": layer.keys, "crosses": layer.crosses,
        "query_text": query_text, "key_text": key_text, "maps": layer.has_qk,
        "thumbs": has_thumbs(layer),
        "offset": (layer.chunks[0].offset or 0) if len(layer.chunks) == 1 else 0,
    }  # fmt: skip
