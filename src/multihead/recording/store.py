"""Recordings opened from their folder: memory-mapped, and read where they are looked at.

Nothing in a folder is believed: meta.json and each layer's header are checked before a recording is
made of them, and no name leads out of the folder. How a folder is laid out: saving.py.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .files import FORMAT, DamagedError, OnDisk
from .layer import Layer
from .layer_file import NAME, read_layer
from .padding import real_of_layers
from .recording import Recording
from .saving import TEXT_TENSORS, folder_of


def load(path: str | os.PathLike, *, unfinished: bool = False) -> Recording:
    """Open a recording that `rec.save` wrote; nothing is read but what is looked at.

    A recording that was cut short opens with every layer that was finished, and says so in
    `rec.about`. `unfinished=True` looks for such layers beside a whole recording too: it opens all
    layers that can be read, those that were written last first, and leaves damaged ones out.
    """
    folder = folder_of(path)
    if not _is_dir(folder):
        raise ValueError(f"{folder} is no folder; give the one that rec.save wrote.")
    meta = _inside(folder, "meta.json")
    if meta.exists() and not unfinished:
        texts = _read_meta(meta)
        found = [_read_text(folder, t, text) for t, text in enumerate(texts)]
        _tell_of_others(folder, {name for text in texts for name in text["layers"]})
    else:
        found = _unfinished(folder)
    found[0].more = found[1:]
    return found[0]


def _is_dir(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except (OSError, ValueError):  # a name that no system takes
        return False


def _read_meta(path: Path) -> list[dict[str, Any]]:
    try:
        meta = json.loads(path.read_text("utf-8"))
        if meta["format"] != FORMAT:
            raise ValueError(f"its format is {meta['format']!r}, expected {FORMAT!r}")
        if not isinstance(meta["texts"], list) or not meta["texts"]:
            raise ValueError("it lists no layers")
        for text in meta["texts"]:
            _check_said(text)
        return meta["texts"]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or foreign ({error}); record again.") from None


def _check_said(text: dict[str, Any]) -> None:
    """What meta.json says of one text: each of its kind."""
    if not isinstance(text["layers"], list) or not text["layers"]:
        raise ValueError("it lists no layers")
    if twice := _twice(text["layers"]):
        raise ValueError(f"it lists {twice} twice")
    for name, kind in (("model", str), ("about", dict)):
        if not isinstance(text.get(name, kind()), kind):
            raise ValueError(f"{name} is {text[name]!r}")
    for name in ("words", "source_words"):
        rows = text.get(name)
        if rows is None:
            continue
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise ValueError(f"{name} is no list of texts")
        if not all(isinstance(word, str) for row in rows for word in row):
            raise ValueError(f"{name} holds what is no text")


def _read_text(folder: Path, t: int, said: dict[str, Any]) -> Recording:
    layers = [read_layer(_inside(folder, name))[0] for name in said["layers"]]
    for what in ("index", "name"):
        if twice := _twice(getattr(layer, what) for layer in layers):
            raise ValueError(
                f"{folder / 'meta.json'} is damaged (layer {twice} is there twice); record again."
            )
    tensors = _text_tensors(_inside(folder, said.get("tensors", f"text{t}.safetensors")))
    read = Recording(layers, said.get("model", ""), words=said.get("words"), **tensors)
    read.source_words = said.get("source_words")
    read.about = dict(said.get("about") or {})
    return read


def _text_tensors(path: Path) -> dict[str, Any]:
    """Tokens and losses of a text, (batch, token) each."""
    tensors = OnDisk(path)
    if tensors.metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a part of a recording; give the folder that save wrote.")
    found = {name: tensors[name] for name in TEXT_TENSORS if name in tensors}
    for name, tensor in found.items():
        bits = str(tensor.dtype) == "torch.bool"
        kind = {"real": bits, "source_real": bits, "loss": tensor.is_floating_point()}
        whole = not tensor.is_floating_point() and not tensor.is_complex()
        if tensor.ndim != 2 or not kind.get(name, whole):
            raise DamagedError(path, f"{name} is {tensor.dtype} {list(tensor.shape)}")
    tensors.check_metadata()
    return found


class _Finished(NamedTuple):
    """A layer that a saving which was cut short had finished."""

    run: str
    text: int
    written: int  # when
    model: str
    layer: Layer


def _unfinished(folder: Path) -> list[Recording]:
    """Every layer that can be read, text by text; the saving that was at work last comes first."""
    found, left_out = _finished_layers(folder)
    if not found and left_out:
        raise ValueError(f"{folder} has no layer that can be read: {next(iter(left_out.values()))}")
    if not found:
        raise ValueError(f"{folder} is no recording: it has no meta.json and no layers.")
    last = {one.run: max(o.written for o in found if o.run == one.run) for one in found}
    texts = sorted({(-last[one.run], one.run, one.text) for one in found})
    read = []
    for _, run, t in texts:
        own = [one for one in found if (one.run, one.text) == (run, t)]
        layers = sorted((one.layer for one in own), key=lambda layer: layer.index)
        tensors: dict[str, Any] = {}
        name = f"text{t}-{run}.safetensors"
        if (folder / name).exists():
            try:
                tensors = _text_tensors(_inside(folder, name))
            except ValueError as error:
                left_out[name] = str(error)
        if "real" not in tensors and (real := real_of_layers(layers)) is not None:
            tensors["real"] = (
                real  # cut inside the first pass: masks know what the text did not say
            )
        read.append(Recording(layers, own[0].model, about={"unfinished": True}, **tensors))
    if left_out:
        read[0].about["left_out"] = sorted(left_out)
        warnings.warn(
            f"left out, the other layers are read: {'; '.join(left_out.values())}", stacklevel=3
        )
    return read


def _finished_layers(folder: Path) -> tuple[list[_Finished], dict[str, str]]:
    """The layers that can be read, and what is wrong with those that cannot, by name."""
    found, left_out = [], {}
    for name in sorted(os.listdir(folder)):
        named = NAME.fullmatch(name)
        if named is None or named[2] is None:
            continue
        try:
            path = _inside(folder, name)
            layer, said = read_layer(path)
        except ValueError as error:
            left_out[name] = str(error)
            continue
        written = path.stat().st_mtime_ns
        run, model = said.get("run", ""), said.get("model", "")
        found.append(_Finished(run, int(named[1]), written, model, layer))
    return found, left_out


def _tell_of_others(folder: Path, known: set[str]) -> None:
    """A recording that was to take the place of this one may have been cut short."""
    layers = [f for f in os.listdir(folder) if (named := NAME.fullmatch(f)) and named[2]]
    others = {*layers} - known
    if others:
        warnings.warn(
            f"{folder} also holds {len(others)} layers of a recording that was cut short; "
            "mh.load(…, unfinished=True) opens them, and saving anew clears them away.",
            stacklevel=3,
        )


def _inside(folder: Path, name: object) -> Path:
    if not isinstance(name, str) or Path(name).name != name or name[:1] in ("", "."):
        raise ValueError(
            f"{folder}/meta.json names {_short(name)}, outside of the folder; it is damaged."
        )
    if name != "meta.json" and not NAME.fullmatch(name):
        raise ValueError(
            f"{folder}/meta.json names {_short(name)}, which is no file of a recording; "
            "it is damaged."
        )
    path = folder / name
    if path.is_symlink() or (path.exists() and path.resolve().parent != folder.resolve()):
        raise ValueError(f"{path} leads outside of the folder; it is not read.")
    return path


def _twice(given: Iterable[object]) -> str | None:
    """What is there more than once, if anything is."""
    seen: set[str] = set()
    for one in map(repr, given):
        if one in seen:
            return one
        seen.add(one)
    return None


def _short(name: object) -> str:
    said = repr(name)
    return said if len(said) < 80 else f"{said[:60]}… ({len(said)} letters)"
