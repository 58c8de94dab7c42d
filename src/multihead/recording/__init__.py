"""Look into a PyTorch model: record what every head did, cut heads and see.

No adapter for each architecture: every call to SDPA, `nn.MultiheadAttention`, `attend` or
transformers' attention interface is seen where it is made (watch.py).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..masks import causal, prefix
from ..observation import asked_statistics, mass
from ..observation.statistics import Statistic, Stats
from .corpus import Corpus, gather_texts
from .cutting import cut
from .growing import Growing
from .inputs import Inputs
from .keeping import give_back_holes, settle
from .layer import Layer
from .padding import real_of_layers
from .recorder import Recorder
from .recording import Recording
from .store import load
from .stream import Stream
from .surgery import ablate, call_model, head_importance, several
from .watch import Watch, watching
from .words import decode

__all__ = [
    "DEFAULT", "Corpus", "Layer", "Recording", "ablate", "cut", "head_importance", "load", "record",
    "record_many",
]  # fmt: skip

_FIRST = mass(prefix(1), name="first")
DEFAULT = ("entropy", "distance", "peak", _FIRST, "received")


@contextlib.contextmanager
def record(
    model: nn.Module,
    *,
    stats: Stats = DEFAULT,
    keep_qk: bool = True,
    tokenizer: Any = None,
    max_bytes: float = 4 * 2**30,
    allow_unseen: bool = False,
    to: str | os.PathLike | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Recording]:
    """Record every attention call of a model inside the with statement.

    `stats` are as in `observe`, and `"first"`, the weight on the first token; `keep_qk` keeps
    queries and keys too, so that any weight can be had later. Beyond `max_bytes` layers are kept on
    disk, where TMPDIR says. The model's outputs are what they are without. A model of which a part
    cannot be seen is refused; `allow_unseen=True` records the rest. `to="run.heads"` writes each
    layer into that folder as soon as it is finished, so that `mh.load` opens what there is even
    when the process is killed; at the end the folder is what `rec.save` would write. `progress` is
    told how many calls have been kept.

    >>> import multihead as mh, torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2)
    >>> with mh.record(model.eval()) as rec:
    ...     y = model(torch.randn(1, 5, 8))
    >>> [layer.name for layer in rec.layers], len(rec.heads())
    (['layers.0.self_attn', 'layers.1.self_attn'], 4)
    """
    _check_given(tokenizer, max_bytes)
    run = _Run(model, _asked(stats), keep_qk, tokenizer, max_bytes, progress)
    with watching(model, run.recorder) as watch, run.inputs, run.written_to(model, to):
        yield run.recording
    if not allow_unseen:
        check_seen(watch, model)
    run.finish()


def _check_given(tokenizer: Any, max_bytes: Any) -> None:
    """What would only fail when all is done."""
    is_number = isinstance(max_bytes, int | float) and not isinstance(max_bytes, bool)
    if not is_number or not max_bytes >= 0:
        raise ValueError(
            f"max_bytes is a number of bytes, 0 or more, but {max_bytes!r} came; give 2**30 for "
            "one GiB, say."
        )
    if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
        raise ValueError(
            f"a tokenizer has a method decode(ids), but a {type(tokenizer).__name__} came; "
            "give the tokenizer itself, not its name."
        )


def _asked(stats: Stats) -> tuple[Statistic, ...]:
    """As `observe` takes them, and the weight on the first token by its name in the table."""
    stats = (stats,) if isinstance(stats, str) else stats
    if isinstance(stats, Iterable):
        stats = tuple(_FIRST if isinstance(s, str) and s == "first" else s for s in stats)
    return asked_statistics(stats)


def record_many(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    stats: Stats = DEFAULT,
    examples: int = 5,
    tokenizer: Any = None,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """Head statistics over many texts, with means and 95 % intervals, in the memory of one.

    `batches` are what the model is called with, a dict, a tuple or a tensor each; every row of one
    is a text. Each head's strongest links are kept as `examples`. `progress` is told how many
    batches are done.
    """
    asked = {s.key: s for s in _asked(stats)}
    wanted = asked | {s.key: s for s in asked_statistics(("peak", "peak_key"))}  # for examples
    # Queries and keys tell what padding gave to a key; like all of a text, until the next one.
    keep_qk = not asked.keys().isdisjoint(("received", "first"))

    def look(batch: Any) -> Recording:
        kept = {"stats": tuple(wanted.values()), "keep_qk": keep_qk, "tokenizer": tokenizer}
        with torch.no_grad(), record(model, **kept) as rec:
            call_model(model, batch)
        return rec

    found = gather_texts(map(look, several(batches)), examples, progress)
    for key in found.values.keys() & {"peak"} - asked.keys():
        del found.values[key]
    return found


_TIDY = 64 * 2**20  # bytes


class _Run:
    """One recording at work: it begins new texts, spills layers to disk, and lays all together."""

    def __init__(
        self, model: nn.Module, stats, keep_qk: bool, tokenizer: Any, max_bytes: float,
        progress: Callable[[int], None] | None,
    ) -> None:  # fmt: skip
        self.tokenizer, self.max_bytes = tokenizer, max_bytes
        self.progress, self._calls = progress, 0
        self.inputs = Inputs(model, self._sees_ahead)
        name = type(getattr(model, "_orig_mod", model)).__name__
        self.recording = self._text = Recording([], model=name)
        self.recorder = Recorder(stats, keep_qk, self._new_text, self._kept)
        self._since = 0  # bytes kept since memory was tidied up
        self._folder: tempfile.TemporaryDirectory | None = None
        self._settled = 0  # bytes of the texts that are done
        self._stream: Stream | None = None

    def written_to(self, model: nn.Module, path: str | os.PathLike | None):
        """Have each layer written into a folder as it is finished, where one was given."""
        if path is None:
            return contextlib.nullcontext()
        self._stream = Stream(path, model, self.inputs, self.recording.model)
        return self._stream

    def _new_text(self) -> None:
        self._finish_text()
        self.inputs.new_text()
        self._text = Recording([], model=self.recording.model)
        self.recording.more.append(self._text)

    def _kept(self, layer: Growing) -> None:
        self._calls += 1
        self._since += layer.added
        if self._since >= _TIDY and not layer.is_cuda:
            self._since = 0
            give_back_holes()
        if self._stream is not None:
            self._stream.kept(layer)
        self._spill(layer)
        if self.progress is not None:
            self.progress(self._calls)

    def _spill(self, layer: Growing) -> None:
        held = self.recorder.layers.values()
        if self._settled + sum(one.bytes for one in held) <= self.max_bytes:
            return
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="multihead-")
            self.recording._spilled = self._folder  # as long as the recording lives
        for one in held:
            if one is not layer:  # which may still get its output norms
                one.spill(Path(self._folder.name))

    def _finish_text(self) -> None:
        layers = []
        for growing in self.recorder.layers.values():
            layers.append(growing.finish())
            if self._folder is not None:  # what was joined lies in memory again
                growing.spill(Path(self._folder.name))
            self._settled += growing.bytes
        self._text.layers[:] = sorted(layers, key=lambda layer: layer.index)
        encoder = self.inputs.encoder
        foretells = self.inputs.losses.masked or not self._sees_ahead()
        self._text.ids, self._text.real, self._text.loss = self.inputs.text()  # waits for a GPU
        if self._text.real is None and encoder is None:
            self._text.real = real_of_layers(layers)
        if encoder is not None:  # its layers read another text, which has padding of its own
            self._text.about["encoder"] = encoder
            self._text.source_real = self.inputs.source_padding
        if not foretells:
            self._text.loss = None  # a model that sees the next token does not foretell it
        if any(chunk.version for one in layers if not one.crosses for chunk in one.chunks):
            # Beams: a row's past is another row's, so that no text is the tokens of one row.
            self._text.ids = self._text.loss = None
            self._text.about["reordered"] = True
        self._text.words = decode(self.tokenizer, self._text.ids)
        self._text.source_ids = self.inputs.source
        self._text.source_words = decode(self.tokenizer, self.inputs.source)
        self._text.about |= self._told()
        if self.inputs.given:
            self._text.about["input"] = dict(self.inputs.given)
        if self._stream is not None:
            self._stream.text_ends(self.recorder.layers.values(), self._text)

    def _sees_ahead(self) -> bool:
        """Whether some layer lets tokens of the text see those behind them; an encoder's is none.

        The text is then the decoder's, and what the encoder reads is another one.
        """
        encoder = self.inputs.encoder
        layers = [growing.layer for growing in self.recorder.layers.values()]
        return any(
            _looks_ahead(layer)
            for layer in layers
            if encoder is None or not f"{layer.name}.".startswith(f"{encoder}.")
        )

    def _told(self) -> dict[str, Any]:
        """The model's own line, and whether the text begins with a BOS, where that is known."""
        told: dict[str, Any] = {}
        line = getattr(getattr(self.inputs.model, "config", None), "about", None)
        if isinstance(line, str):
            told["model"] = line
        bos, ids = getattr(self.tokenizer, "bos_token_id", None), self._text.ids
        if self.tokenizer is not None and ids is not None:
            told["bos"] = bool(bos is not None and (ids[:, 0] == bos).all())
            told["bos_token"] = getattr(self.tokenizer, "bos_token", None)
        return told

    def finish(self) -> None:
        self._finish_text()
        if self._stream is not None:
            self._stream.finish(self.recording)
        self.recorder.layers = {}  # what was kept lives as long as the recording, and no longer
        del self.recording, self._text


def _looks_ahead(layer: Layer) -> bool:
    """Whether a row may see keys behind its own, in the last layer of a text of its own."""
    if layer.crosses or layer.queries != layer.keys or layer.queries < 2:
        return False
    if "0.mask.0" in layer.tensors:  # what it is made of may still be on its way
        settle()
    asked = layer.asked(0)
    mask, offset = asked["mask"], asked["offset"]
    if isinstance(mask, causal):
        return False
    if mask is None:
        return layer.chunks[0].rows > 1 and layer.tensors.get("0.bias") is None
    if not isinstance(offset, int):
        return False
    ahead = mask.allows(torch.arange(1), torch.arange(layer.chunks[0].keys), offset)
    return bool(ahead[..., max(0, offset + 1) :].any())


def check_seen(watch: Watch, model: nn.Module) -> None:
    name = type(model).__name__
    blind = watch.unseen.among({place for place, _ in watch.places})
    if not watch.calls and not blind:
        raise ValueError(
            f"no attention call of {name} was seen: it was not called in the with statement, or "
            "it works attention out by itself; call it there, or have it use "
            "F.scaled_dot_product_attention."
        )
    if blind:
        fused = getattr(model, "_supports_sdpa", False)  # transformers models say so
        advice = (
            "load it with attn_implementation='sdpa'"
            if fused
            else "have it use F.scaled_dot_product_attention"
        )
        raise ValueError(
            f"{name} has a softmax of its own in {blind[0]}"
            f"{f' and {len(blind) - 1} more' if len(blind) > 1 else ''}, which cannot be seen; "
            f"{advice}, or, from Python, give allow_unseen=True to record the rest."
        )
