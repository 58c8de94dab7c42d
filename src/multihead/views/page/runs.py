"""A training run as it lies in its folder, read as the page shows it; it may still be written.

    runs/names/heads.jsonl            a sample a line: step, loss, layers, warnings
    runs/names/losses.jsonl           losses in between, if they were kept
    runs/names/maps/00000100.safetensors   largest.LAYER and mean.LAYER: (heads, cells, cells)

What is not known is left alone; what cannot be read is left out, and said.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..counts import many

SAMPLES, LOSSES, MAPS = "heads.jsonl", "losses.jsonl", "maps"
POOLS = ("largest", "mean")
DIGITS = 7  # of a number that is told
_MAP = re.compile(r"([0-9]{1,15})\.safetensors")
_LOSS = re.compile(r"loss|train|held|valid|eval|test")
_MOST = 50  # warnings of one sample that are told
_HEADS = 4096  # of a layer: a file of another kind may say anything
_POINTS = 4000  # of a curve, which has fewer pixels


class Run:
    """One folder; every answer reads it as it is now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.resolve().name
        self._kept: tuple[Any, dict[str, Any]] | None = None  # what was read, and of which files
        if not self.told()["steps"]:
            said = "; ".join(self.told()["notes"]) or "it is empty"
            raise ValueError(f"{folder / SAMPLES} holds no sample yet: {said}. Let the run go on.")

    def version(self) -> str:
        """Changes whenever there is more to read."""
        return _version(self._stamp())

    def told(self) -> dict[str, Any]:
        """All numbers of the run; maps are asked for one by one."""
        stamp = self._stamp()
        if self._kept is None or self._kept[0] != stamp:
            self._kept = stamp, _told(self.folder, self.name)
        return {**self._kept[1], "version": _version(stamp)}

    def map(self, step: int, layer: int, head: int, pool: str) -> bytes:
        """The pooled map of one head at one step, float16, row by row."""
        maps = self.layer_map(step, layer, pool)
        if not 0 <= head < len(maps):
            raise ValueError(f"layer {layer} has heads 0 to {len(maps) - 1}, but {head} came.")
        return maps[head].tobytes()

    def layer_map(self, step: int, layer: int, pool: str) -> Any:
        """The same of all heads of a layer, (heads, cells, cells)."""
        from safetensors import SafetensorError, safe_open

        if pool not in POOLS:
            raise ValueError(f"pool must be {' or '.join(POOLS)}, but {pool[:40]!r} came.")
        path = next((path for at, path in _maps(self.folder) if at == step), None)
        if path is None:
            raise ValueError(f"there are no maps of step {step:,} in {self.folder / MAPS}.")
        name = f"{pool}.{layer}"
        try:
            with safe_open(path, framework="numpy") as file:
                if name not in [*file.keys()]:
                    raise ValueError(f"{path.name} has no {name}; it has {', '.join(file.keys())}.")
                found = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} cannot be read, it may still be written: {error}.") from None
        if found.ndim != 3 or found.shape[1] != found.shape[2]:
            raise ValueError(f"{name} must be (heads, cells, cells), but is {found.shape}.")
        return found.astype("<f2")

    def _stamp(self) -> list[tuple[int, int]]:
        """Size and time of each file, the folder of maps among them."""
        found = []
        for name in (SAMPLES, LOSSES, MAPS):
            with contextlib.suppress(OSError):
                told = (self.folder / name).stat()
                found.append((told.st_size, told.st_mtime_ns))
        return found


def _version(stamp: list[tuple[int, int]]) -> str:
    return "-".join(f"{size}.{time}" for size, time in stamp)


def _told(folder: Path, name: str) -> dict[str, Any]:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise ValueError(f"--run must be the folder of a training run, and {folder} {what}.")
    path, notes = folder / SAMPLES, []
    if not path.is_file():
        raise ValueError(f"{folder} holds no {SAMPLES}: it is no run that was watched.")
    samples = sorted(_samples(path, notes).items())
    layers, steps = _layers(samples), {step for step, _ in samples}
    losses = _losses(folder / LOSSES, notes, steps)
    return {
        "name": name,
        "layers": layers,
        "steps": [step for step, _ in samples],
        "loss": [_number(sample.get("loss")) for _, sample in samples],
        "losses": losses,
        "statistics": _statistics(samples, layers),
        "warnings": [one for step, sample in samples for one in _warnings(step, sample, layers)],
        "maps": [step for step, _ in _maps(folder) if step in steps],
        "notes": notes,
    }


def _lines(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Objects of a file of JSON lines; the rest is left out, and said."""
    broken = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    for n, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
        except (ValueError, RecursionError):
            given = None
        if isinstance(given, dict) and type(given.get("step")) is int and given["step"] >= 0:
            yield given
        elif n == len(lines):
            notes.append(f"the last line of {path.name} is half-written, and left out")
        else:
            broken.append(n)
    if broken:
        some = ", ".join(map(str, broken[:5])) + (", …" if len(broken) > 5 else "")
        where = f"line {some}" if len(broken) == 1 else f"lines {some}"
        notes.append(f"{path.name}: {where} cannot be read as a step: left out")


def _samples(path: Path, notes: list[str]) -> dict[int, dict[str, Any]]:
    """By step; a run that was taken up again writes some a second time, and those hold."""
    found: dict[int, dict[str, Any]] = {}
    again, empty = 0, 0
    for sample in _lines(path, notes):
        layers = sample.get("layers")
        if not isinstance(layers, list) or not layers or not all(map(_is_layer, layers)):
            empty += 1
            continue
        again += sample["step"] in found
        found[sample["step"]] = sample
    if again:
        notes.append(f"{many(again, 'step')} came twice; what came later is shown")
    if empty:
        notes.append(f"{path.name}: {many(empty, 'sample')} without layers left out")
    return found


def _is_layer(layer: Any) -> bool:
    heads = layer.get("heads") if isinstance(layer, dict) else None
    return type(heads) is int and 0 < heads <= _HEADS


def _layers(samples: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Names and heads, as the last sample has them."""
    if not samples:
        return []
    last = samples[-1][1]["layers"]
    return [
        {"name": str(one.get("name", index)), "heads": one["heads"]}
        for index, one in enumerate(last)
    ]


def _statistics(samples: list[tuple[int, dict[str, Any]]], layers: list[dict[str, Any]]):
    """Of each statistic a number for every step, layer and head; null where there is none."""
    lists = (
        key for _, sample in samples for layer in sample["layers"]
        for key, value in layer.items() if isinstance(value, list)
    )  # fmt: skip
    found = {
        key: [[_row(sample["layers"], n, key, layer["heads"]) for n, layer in enumerate(layers)]
              for _, sample in samples]
        for key in dict.fromkeys(lists)
    }  # fmt: skip
    # A list of words, or of another length, is none of ours.
    return {key: of for key, of in found.items() if any(v is not None for v in _flat(of))}


def _flat(steps: list[list[list[float | None]]]) -> Iterator[float | None]:
    return (value for layers in steps for heads in layers for value in heads)


def _row(layers: list[dict[str, Any]], n: int, key: str, heads: int) -> list[float | None]:
    given = layers[n].get(key) if n < len(layers) else None
    if not isinstance(given, list) or len(given) != heads:
        return [None] * heads
    return [_number(one) for one in given]


def _number(given: Any) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    try:
        return float(f"{given:.{DIGITS}g}") if math.isfinite(given) else None
    except OverflowError:  # a whole number beyond all floats
        return None


def _losses(path: Path, notes: list[str], keep: set[int]) -> dict[str, list[list[float]]]:
    """[step, loss] of every kind of loss that was kept between samples."""
    if not path.is_file():
        return {}
    found: dict[str, dict[int, float]] = {}
    for line in _lines(path, notes):
        for key, value in line.items():
            number = _number(value)
            if number is not None and key != "step" and _LOSS.search(key):
                found.setdefault(key, {})[line["step"]] = number
    return {key: _thin([*sorted(of.items())], keep) for key, of in found.items()}


def _thin(points: list[tuple[int, float]], keep: set[int]) -> list[list[float]]:
    """Every so many, and all at the steps that are shown with their number."""
    every = math.ceil(len(points) / _POINTS)
    return [[*point] for n, point in enumerate(points) if n % every == 0 or point[0] in keep]


def _warnings(step: int, sample: dict[str, Any], layers: list[dict[str, Any]]):
    """{step, what, layer, head}; a layer is given by number or by name, or not at all."""
    names = [layer["name"] for layer in layers]
    given = sample.get("warnings")
    for one in (given if isinstance(given, list) else [])[:_MOST]:
        told: dict[str, Any] = one if isinstance(one, dict) else {"what": one}
        layer, head = told.get("layer"), told.get("head")
        layer = names.index(layer) if layer in names else layer
        known = type(layer) is int and 0 <= layer < len(layers)
        fits = known and type(head) is int and 0 <= head < layers[layer]["heads"]
        what = told.get("what") or told.get("message") or json.dumps(told, ensure_ascii=False)
        yield {"step": step, "what": str(what), "layer": layer if known else None,
               "head": head if fits else None}  # fmt: skip


def _maps(folder: Path) -> list[tuple[int, Path]]:
    """The steps that have maps, in order."""
    try:
        files = [*(folder / MAPS).iterdir()]
    except OSError:
        return []
    found = ((_MAP.fullmatch(path.name), path) for path in files)
    return sorted((int(name[1]), path) for name, path in found if name)
