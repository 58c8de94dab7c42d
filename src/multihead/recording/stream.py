"""A recording written while it is made, so that a kill at any moment loses no finished layer.

A layer is finished for now when the next one is called, or when the pass ends: until then its
output projection may still come. One that goes on growing, step by step, is written anew when its
rows have doubled, which costs twice the writing of the last state in all, and for good at the end.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from torch import nn

from .growing import Growing
from .inputs import Inputs
from .keeping import settle
from .recording import Recording
from .saving import Saving, check_done


class Stream:
    """The folder of a recording at work; in a with statement it sees where each pass ends."""

    def __init__(
        self, path: str | os.PathLike, model: nn.Module, inputs: Inputs, name: str
    ) -> None:
        self._saving = Saving(path, name)
        self._model, self._inputs = model, inputs
        self._text = 0  # the number of the one at work
        self._open: Growing | None = None  # the layer that was called last
        self._written: dict[int, tuple[int, int]] = {}  # by layer: changes and rows in its file

    def __enter__(self) -> Stream:
        self._hook = self._model.register_forward_hook(self._pass_ends)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
        with contextlib.suppress(OSError):  # a full disk has been told of, or will be
            if self._open is not None:
                self._write(self._open)

    def kept(self, layer: Growing) -> None:
        """A call of a layer was kept: those before it are finished for now."""
        if self._open is not None and self._open is not layer:
            self._write(self._open)
        self._open = layer

    def _pass_ends(self, *_: object) -> None:
        if self._open is not None and self._write(self._open):
            ids, real, _loss = (
                self._inputs.text()
            )  # whether losses mean something is told at the end
            told = Recording(
                [],
                "",
                ids=ids,
                real=real,
                source_ids=self._inputs.source,
                source_real=self._inputs.source_padding,
            )
            self._saving.write_text(self._text, told)
        self._open = None

    def _write(self, layer: Growing) -> bool:
        rows = layer.layer.queries
        _, known = self._written.get(layer.layer.index, (0, 0))
        if rows < 2 * known:
            return False
        settle()
        self._saving.write_layer(self._text, layer.so_far())
        self._written[layer.layer.index] = layer.changes, rows
        return True

    def text_ends(self, layers: Iterable[Growing], text: Recording) -> None:
        """Write for good what has changed since it was written, and begin the next text."""
        for layer in layers:
            if self._written.get(layer.layer.index, (0, 0))[0] != layer.changes:
                self._saving.write_layer(self._text, layer.layer)
        self._saving.write_text(self._text, text)
        self._text, self._open, self._written = self._text + 1, None, {}

    def finish(self, recording: Recording) -> None:
        """The folder becomes a whole recording, as `rec.save` would write it."""
        check_done(recording)
        self._saving.finish(recording)
