"""Recordings as files: a folder, `run.heads/`, of one meta.json and one safetensors a layer.

Each file is written whole beside its place and then renamed into it, so that a crash leaves every
finished layer readable. Files are memory-mapped when opened, and read where they are looked at.
Pickle is never read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .layer import Chunk, Layer

if TYPE_CHECKING:
    from .recording import Recording

FORMAT = "multihead recording 1"
_TEXT_TENSORS = ("ids", "real", "loss", "source_ids")


class OnDisk(Mapping[str, Tensor]):
    """The tensors of one safetensors file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open(path)
        self._names = list(self._file.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._file.get_tensor(name)

    def shape(self, name: str) -> list[int]:
        """Of a tensor, which is not read for it."""
        if name not in self._names:
            raise KeyError(name)
        return list(self._file.get_slice(name).get_shape())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"{path} is missing; the recording is not whole: record again.")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is damaged or no safetensors file ({error}); record again."
        ) from None


def write_whole(path: Path, write) -> None:
    """Have `write` make a file beside `path`, then rename it into place."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise _no_room(path, error) from error
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if type(error).__name__ == "SafetensorError":  # what it makes of a full disk
            raise _no_room(path, error) from error
        raise


def _no_room(path: Path, error: BaseException) -> OSError:
    reason = getattr(error, "strerror", None) or str(error)
    return OSError(f"cannot write {path}: {reason}; make room, or choose another folder.")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file

    # Two names may be views of one tensor, which the format does not know.
    own = {n: t.clone() if t._is_view() else t.contiguous() for n, t in tensors.items()}
    write_whole(path, lambda where: save_file(own, where, metadata=metadata))


def write_layer(path: Path, layer: Layer, run: str) -> None:
    """Write a layer; `run` tells those of one saving from those that another left there."""
    about = dataclasses.asdict(dataclasses.replace(layer, tensors={}))
    about.pop("tensors")
    said = {"format": FORMAT, "run": run, "layer": json.dumps(about)}
    write_tensors(path, layer.tensors, said)


def read_layer(path: Path) -> Layer:
    tensors = OnDisk(path)
    metadata = tensors._file.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a layer of a recording; give the folder that save wrote.")
    try:
        about = json.loads(metadata["layer"])
        about["chunks"] = [Chunk(**chunk) for chunk in about["chunks"]]
        layer = Layer(**about, tensors=tensors)
        _check_layer(layer, tensors)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); record again.") from None
    return layer


def _check_layer(layer: Layer, tensors: OnDisk) -> None:
    """Whether all is there and of the shape that the layer speaks of; no tensor is read."""
    if not layer.chunks or not isinstance(layer.name, str):
        raise ValueError("it has no rows or no name")
    for i, chunk in enumerate(layer.chunks):
        rows = [layer.batch, layer.heads, chunk.rows]
        found = {f"{i}.lse": tensors.shape(f"{i}.lse")}
        if layer.has_qk:
            found[f"{i}.query"] = tensors.shape(f"{i}.query")[:3]
            keys = tensors.shape(f"key.{chunk.version}")
            if keys[:2] != [layer.batch, layer.kv_heads] or keys[2] < chunk.keys:
                raise ValueError(f"it has keys of {keys}")
        for name, shape in found.items():
            if shape != rows:
                raise ValueError(f"{name} is {shape}, expected {rows}")
        layer.asked(i)


def save(recording: Recording, path: str | os.PathLike) -> None:
    """Write a recording into a folder, which is made; a recording that is there is replaced."""
    folder = Path(path)
    _check_target(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_room(folder, error) from error
    (folder / "meta.json").unlink(missing_ok=True)
    before, texts, run = {*os.listdir(folder)}, [], uuid.uuid4().hex
    for t, text in enumerate(recording.texts):
        names = [f"text{t}-layer{layer.index}.safetensors" for layer in text.layers]
        texts.append({**_about(text), "layers": names})
        for name, layer in zip(names, text.layers, strict=True):
            write_layer(folder / name, layer, run)
        _save_text(folder / f"text{t}.safetensors", text)
        before -= {*names, f"text{t}.safetensors"}
    write_meta(folder, texts)
    for name in before:  # of a longer recording, or of one that was cut short
        (folder / name).unlink(missing_ok=True)


def write_meta(folder: Path, texts: list[dict[str, Any]]) -> None:
    said = json.dumps({"format": FORMAT, "texts": texts}, indent=1)
    write_whole(folder / "meta.json", lambda where: Path(where).write_text(said, "utf-8"))


def _about(text: Recording) -> dict[str, Any]:
    names = ("model", "words", "source_words", "about")
    return {name: getattr(text, name) for name in names}


def _save_text(path: Path, text: Recording) -> None:
    given = {name: getattr(text, name) for name in _TEXT_TENSORS}
    tensors = {name: value for name, value in given.items() if value is not None}
    write_tensors(path, tensors, {"format": FORMAT})


def _check_target(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a recording is a folder: give another name.")
    if folder.is_dir():
        strange = [f for f in os.listdir(folder) if not _ours(f)]
        if strange:
            raise ValueError(
                f"{folder} holds other things ({strange[0]}); give a new folder for the recording."
            )


def _ours(name: str) -> bool:
    return _NAMES.fullmatch(name) is not None


_NAME = r"meta\.json|text\d+(?:-layer\d+)?\.safetensors"
_NAMES = re.compile(rf"{_NAME}|\.(?:{_NAME})\.\d+\.partial")


def load(path: str | os.PathLike) -> Recording:
    """Open a recording that `rec.save` wrote; nothing is read but what is looked at.

    A recording that was cut short opens with the layers that were finished.
    """
    from .recording import Recording

    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; give the one that rec.save wrote.")
    meta = _inside(folder, "meta.json")
    texts = _read_meta(meta) if meta.exists() else _unfinished(folder)
    found = []
    for t, text in enumerate(texts):
        layers = [read_layer(_inside(folder, name)) for name in text["layers"]]
        more = _inside(folder, f"text{t}.safetensors")
        tensors = OnDisk(more) if more.exists() else {}
        read = Recording(layers, str(text.get("model", "")), words=text.get("words"))
        for name in _TEXT_TENSORS:
            setattr(read, name, tensors.get(name))
        read.source_words = text.get("source_words")
        read.about = dict(text.get("about") or {})
        found.append(read)
    found[0].texts = found
    return found[0]


def _read_meta(path: Path) -> list[dict[str, Any]]:
    try:
        meta = json.loads(path.read_text("utf-8"))
        if meta["format"] != FORMAT:
            raise ValueError(f"its format is {meta['format']!r}, expected {FORMAT!r}")
        if not meta["texts"] or not all(isinstance(t["layers"], list) for t in meta["texts"]):
            raise ValueError("it lists no layers")
        return meta["texts"]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or foreign ({error}); record again.") from None


def _unfinished(folder: Path) -> list[dict[str, Any]]:
    """What a saving that was cut short left behind: every layer that it finished."""
    found = [f for f in os.listdir(folder) if re.fullmatch(r"text0-layer\d+\.safetensors", f)]
    if not found:
        raise ValueError(f"{folder} is no recording: it has no meta.json and no layers.")
    runs = {name: _run(_inside(folder, name)) for name in found}
    last = runs[max(found, key=lambda name: (folder / name).stat().st_mtime_ns)]
    names = [name for name in found if runs[name] == last]
    names.sort(key=lambda name: int(re.findall(r"\d+", name)[1]))
    return [{"model": "", "layers": names, "about": {"unfinished": True}}]


def _run(path: Path) -> str | None:
    return (_open(path).metadata() or {}).get("run")


def _inside(folder: Path, name: object) -> Path:
    if not isinstance(name, str) or Path(name).name != name or name.startswith("."):
        raise ValueError(
            f"{folder}/meta.json names {name!r}, outside of the folder; it is damaged."
        )
    path = folder / name
    if path.is_symlink() or (path.exists() and path.resolve().parent != folder.resolve()):
        raise ValueError(f"{path} leads outside of the folder; it is not read.")
    return path


def moved_to_disk(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, written to a file and mapped from it: their memory can be given back."""
    write_tensors(path, tensors, {"format": FORMAT})
    return dict(OnDisk(path))
