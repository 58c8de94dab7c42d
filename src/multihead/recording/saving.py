"""A recording into a folder, `run.heads/`: one safetensors a layer, and meta.json that names them.

    text0-layer0-1f3a9c2e.safetensors …    the layers, each written whole, then renamed into place
    text0-1f3a9c2e.safetensors             its tokens and losses
    meta.json                              names the files of one saving: the recording is these

Each saving has a number, 1f3a9c2e, in the names of its files. meta.json is renamed into place when
all of them are there, and only then the files of an older saving are removed: a crash leaves the
older recording or, where there was none, every finished layer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from .files import FORMAT, cannot_write, write_tensors, write_whole
from .layer import Layer
from .layer_file import NAME, write_layer

if TYPE_CHECKING:
    from .recording import Recording

TEXT_TENSORS = ("ids", "real", "loss", "source_ids", "source_real")
_OURS = re.compile(rf"meta\.json|{NAME.pattern}|\.(?:meta\.json|{NAME.pattern})\.\d+\.partial")


def save(recording: Recording, path: str | os.PathLike) -> None:
    """Write a recording into a folder, which is made; a recording that is there is replaced."""
    check_done(recording)
    saving = Saving(path, recording.model)
    saving.meta(recording)  # what cannot be said there is refused before anything is written
    try:
        for t, text in enumerate(recording.texts):
            for layer in text.layers:
                saving.write_layer(t, layer)
            saving.write_text(t, text)
        saving.finish(recording)
    except BaseException:
        saving.give_up()
        raise


class Saving:
    """One saving at work. Its files lie beside those of an older one until all are there."""

    def __init__(self, path: str | os.PathLike, model: str) -> None:
        self.folder, self.model, self.run = folder_of(path), model, uuid.uuid4().hex[:8]
        try:
            _check_target(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.folder, error) from error

    def write_layer(self, t: int, layer: Layer) -> None:
        path = self.folder / self._layer_name(t, layer)
        write_layer(path, layer, run=self.run, text=t, model=self.model)

    def write_text(self, t: int, text: Recording) -> None:
        given = {name: getattr(text, name) for name in TEXT_TENSORS}
        tensors = {name: value for name, value in given.items() if value is not None}
        said = {"format": FORMAT, "run": self.run}
        write_tensors(self.folder / self._text_name(t), tensors, said)

    def meta(self, recording: Recording) -> str:
        """What meta.json says: all that is no tensor, and the names of the files."""
        texts = []
        for t, text in enumerate(recording.texts):
            said = {n: getattr(text, n) for n in ("model", "words", "source_words", "about")}
            names = [self._layer_name(t, layer) for layer in text.layers]
            texts.append({**said, "tensors": self._text_name(t), "layers": names})
        try:
            return json.dumps({"format": FORMAT, "texts": texts}, indent=1)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"rec.about holds what JSON does not know ({error}); "
                "keep words, numbers, lists and dicts there."
            ) from None

    def finish(self, recording: Recording) -> None:
        """The files become the recording: meta.json names them, and what is older is removed."""
        said = self.meta(recording)
        own = {"meta.json"}
        for t, text in enumerate(recording.texts):
            own |= {self._text_name(t), *(self._layer_name(t, one) for one in text.layers)}
        there = {*os.listdir(self.folder)}
        gone = sorted(own - there - {"meta.json"})
        if gone:
            raise OSError(
                f"cannot write {self.folder}: {gone[0]} was taken away while others were written; "
                "give each recording a folder of its own."
            )
        write_whole(self.folder / "meta.json", lambda where: where.write_text(said, "utf-8"))
        _settle(self.folder)
        for name in there - own:
            self._remove(name)

    def give_up(self) -> None:
        """Leave a folder that holds a whole recording as it was; else what was finished stays."""
        if not (self.folder / "meta.json").exists():
            return
        for name in os.listdir(self.folder):
            if name.endswith(f"-{self.run}.safetensors"):
                self._remove(name)

    def _remove(self, name: str) -> None:
        if _OURS.fullmatch(name):
            with contextlib.suppress(OSError):  # some systems hold on to what is mapped
                (self.folder / name).unlink(missing_ok=True)

    def _layer_name(self, t: int, layer: Layer) -> str:
        return f"text{t}-layer{layer.index}-{self.run}.safetensors"

    def _text_name(self, t: int) -> str:
        return f"text{t}-{self.run}.safetensors"


def folder_of(path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ValueError(
            f"a recording is a folder, given by its path, but {path!r} came; "
            'give one, as "run.heads".'
        )
    return Path(path)


def check_done(recording: Recording) -> None:
    for t, text in enumerate(recording.texts):
        if not text.layers:
            raise ValueError(
                f"nothing is recorded{f' of text {t}' if t else ''} yet: save after the with "
                "statement has ended, and ended well; to keep layers as they come, "
                'give mh.record(model, to="run.heads").'
            )


def _check_target(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a recording is a folder: give another name.")
    if folder.is_dir():
        strange = [f for f in os.listdir(folder) if not _OURS.fullmatch(f)]
        if strange:
            raise ValueError(
                f"{folder} holds other things ({strange[0]}); give a new folder for the recording."
            )


def _settle(folder: Path) -> None:
    """Have the new name on the disk before older files go, where the system can do that."""
    with contextlib.suppress(OSError):
        where = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(where)
        finally:
            os.close(where)
