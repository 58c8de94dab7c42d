"""Who is told: a file of lines, the folder of a run, a writer as TensorBoard's, a function.

runs/names/heads.jsonl                  one record a line, appended whole
runs/names/maps/00000300.safetensors    largest.0, mean.0, largest.1, …: (heads, cells, cells)
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from ..recording.files import cannot_write, write_tensors, write_whole
from .looking import Seen
from .summary import Record, picture

LINES = "heads.jsonl"
MAPS = "maps"
_PIXELS = 8  # a side of each head in a picture


@runtime_checkable
class Receiver(Protocol):
    """Gets each record, and what was seen of the layers, whose maps are there if it `draws`."""

    draws: bool

    def take(self, record: Record, seen: Sequence[Seen]) -> None: ...
    def past(self) -> list[Record]: ...


def receivers_of(to: Any, step: int) -> list[Receiver]:
    """What `to=` means: one receiver, several in a list, or none."""
    if to is None:
        return []
    if isinstance(to, list | tuple):
        return [receiver for one in to for receiver in receivers_of(one, step)]
    if isinstance(to, str | os.PathLike):
        path = Path(to)
        return [_Lines(path, step) if path.suffix == ".jsonl" else _Folder(path, step)]
    if all(callable(getattr(to, name, None)) for name in ("add_scalar", "add_image")):
        return [_Writer(to)]
    if callable(to):
        return [_Function(to)]
    raise ValueError(
        "to= is a path (a folder, or a file that ends in .jsonl), an object with add_scalar and "
        f"add_image, a function, or a list of these, but a {type(to).__name__} came; give "
        "to='runs/first', say."
    )


class _Function:
    draws = False

    def __init__(self, function: Callable[[Record], object]) -> None:
        self.function = function

    def take(self, record: Record, seen: Sequence[Seen]) -> None:
        self.function(record)

    def past(self) -> list[Record]:
        return []


class _Writer:
    """Three series a layer and statistic and one picture a statistic, never a series a head."""

    draws = False

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def take(self, record: Record, seen: Sequence[Seen]) -> None:
        step = record["step"]
        for key, rows in record["quantiles"].items():
            for layer, (low, _, middle, _, high) in zip(record["layers"], rows, strict=True):
                for what, value in (("least", low), ("median", middle), ("greatest", high)):
                    if value is not None:
                        self.writer.add_scalar(f"heads/{key}/{layer['name']}/{what}", value, step)
            self.writer.add_image(f"heads/{key}", _image(record, key), step)
        if record["warnings"] and callable(getattr(self.writer, "add_text", None)):
            text = "\n\n".join(warning["text"] for warning in record["warnings"])
            self.writer.add_text("heads/warnings", text, step)

    def past(self) -> list[Record]:
        return []


def _image(record: Record, key: str) -> torch.Tensor:
    """Layers down, heads across, (1, height, width) in 0 … 1: what is never above 1 as it is."""
    drawn = picture(record, key).nan_to_num(0.0).clamp(min=0.0)
    drawn = drawn / max(1.0, float(drawn.max()) if drawn.numel() else 1.0)
    return drawn.repeat_interleave(_PIXELS, 0).repeat_interleave(_PIXELS, 1)[None]


class _Lines:
    """A file of records, a line each. A run that is begun again drops what it will say anew."""

    draws = False

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step, self._failed = path, step, False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._past = self._begin(step)
        except OSError as error:
            raise cannot_write(path, error) from error

    def past(self) -> list[Record]:
        return self._past

    def _begin(self, step: int) -> list[Record]:
        """What the file says of the steps before; a line that a kill cut short is taken off."""
        whole = self.path.read_bytes() if self.path.exists() else b""
        lines = whole[: whole.rfind(b"\n") + 1].splitlines(keepends=True)
        records = [_read(line, self.path) for line in lines]
        kept = [line for line, told in zip(lines, records, strict=True) if told["step"] < step]
        past = [told for told in records if told["step"] < step]
        aside = _free(self.path)
        if records and not kept:  # another run: it stays readable beside this one
            os.replace(self.path, self.path.with_suffix(f"{aside}.jsonl"))
        elif (text := b"".join(kept)) != whole:
            write_whole(self.path, lambda where: where.write_bytes(text))
        self._clear({told["step"] for told in past}, aside)
        return past

    def _clear(self, kept: set[int], aside: str) -> None:
        """Take away what stands beside lines that are gone."""

    def take(self, record: Record, seen: Sequence[Seen]) -> None:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            self._write(record, seen)
            append(self.path, line.encode())
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._failed = True
                told = error if "cannot write" in str(error) else cannot_write(self.path, error)
                warnings.warn(
                    f"{told} Training goes on; what heads do is not written until it can be.",
                    RuntimeWarning,
                    stacklevel=4,  # where step() was called
                )

    def _write(self, record: Record, seen: Sequence[Seen]) -> None:
        """What stands beside the line, written before it."""


class _Folder(_Lines):
    """The folder of a run: its lines, and the pooled maps of every sample."""

    draws = True

    def __init__(self, folder: Path, step: int) -> None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(
                f"{folder} is a file, and a run is a folder; give another path, or one that ends "
                "in .jsonl for the lines alone."
            )
        self.maps = folder / MAPS
        super().__init__(folder / LINES, step)

    def _clear(self, kept: set[int], aside: str) -> None:
        """Maps of dropped lines are removed, those of another run go where its lines went."""
        files = [*self.maps.glob("*.safetensors")] if self.maps.is_dir() else []
        for path in files:
            if not path.stem.isdecimal() or int(path.stem) in kept:
                continue
            if kept:
                path.unlink()
            else:
                before = self.maps.with_name(f"{MAPS}{aside}")
                before.mkdir(exist_ok=True)
                os.replace(path, before / path.name)

    def _write(self, record: Record, seen: Sequence[Seen]) -> None:
        self.maps.mkdir(exist_ok=True)
        tensors = {
            f"{name}.{layer}": drawn.cpu()
            for layer, one in enumerate(seen)
            for name, drawn in one.maps.items()
        }
        said = {"step": str(record["step"]), "layers": json.dumps([one.name for one in seen])}
        write_tensors(self.maps / f"{record['step']:08}.safetensors", tensors, said)


def _free(path: Path) -> str:
    """What the name of no earlier run ends in yet: .before, .before-2, …"""
    ends = (".before" if n == 1 else f".before-{n}" for n in itertools.count(1))
    taken = lambda end: (  # noqa: E731
        path.with_suffix(f"{end}.jsonl").exists() or path.with_name(f"{MAPS}{end}").exists()
    )
    return next(end for end in ends if not taken(end))


def append(path: Path, line: bytes) -> None:
    """Add a whole line or nothing: what a full disk took of it is taken off again."""
    with open(path, "ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            left = memoryview(line)
            while left:
                left = left[file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), before)
            raise


def _read(line: bytes, path: Path) -> Record:
    try:
        told = json.loads(line)
        if isinstance(told, dict) and isinstance(told["step"], int) and "layers" in told:
            return told
    except (ValueError, KeyError):
        pass
    raise ValueError(
        f"{path} has a line that no monitor wrote, {line[:40]!r}; give a file of its own."
    )


def read_lines(path: str | os.PathLike) -> list[Record]:
    """The records of a run, from its folder or file; a line that a kill cut short is left out."""
    path = Path(path)
    path = path / LINES if path.is_dir() else path
    whole = path.read_bytes()
    lines: Iterable[bytes] = whole[: whole.rfind(b"\n") + 1].splitlines()
    return [_read(line, path) for line in lines]


def forget(folder: Path) -> None:
    """Take away the lines and maps of a run that is begun again, and will say all of it anew."""
    (folder / LINES).unlink(missing_ok=True)
    for path in (folder / MAPS).glob("*.safetensors"):
        if path.stem.isdecimal():
            path.unlink()
