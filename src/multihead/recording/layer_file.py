"""One layer as a file; nothing in it is believed: all that it says is held against its tensors.

Shapes and dtypes stand in the header of the file, so that checking a layer reads no queries, keys
or statistics; whether their bytes are those that were written is seen when they are first read.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import torch

from ..attention.problem import pose, without_autocast
from ..observation.statistics import HeatMap, Top
from .files import FORMAT, DamagedError, OnDisk, write_tensors
from .layer import Chunk, Layer

# The text's number, the layer's, and the saving that wrote it: files of older ones have none.
NAME = re.compile(r"text(\d{1,9})(?:-layer(\d{1,9}))?(?:-([0-9a-f]{8}))?\.safetensors")
_FLOATS = {
    "F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16
}  # fmt: skip
_WHOLE = ("I64", "I32")


def write_layer(path: Path, layer: Layer, *, run: str, text: int, model: str) -> None:
    """Write a layer; `run` tells those of one saving from those that another left there."""
    about = dataclasses.asdict(dataclasses.replace(layer, tensors={}))
    about.pop("tensors")
    said = {"run": run, "text": str(text), "model": model, "layer": json.dumps(about)}
    write_tensors(path, layer.tensors, {"format": FORMAT, **said})


def read_layer(path: Path) -> tuple[Layer, dict[str, str]]:
    """The layer of a file, and what else the file says of where it belongs."""
    tensors = OnDisk(path)
    said = tensors.metadata
    if said.get("format") != FORMAT:
        raise ValueError(f"{path} is not a layer of a recording; give the folder that save wrote.")
    try:
        about = json.loads(said["layer"])
        about["chunks"] = [Chunk(**chunk) for chunk in about["chunks"]]
        layer = Layer(**about, tensors=tensors)
        _check_words(layer)
        _check_place(path.name, layer, said)
        for i in range(len(layer.chunks)):
            _check_chunk(layer, i, tensors)
            for key, kind in layer.kinds.items():
                _check_statistic(layer, i, key, kind, tensors)
    except DamagedError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedError(path, error) from None
    tensors.check_metadata()
    return layer, said


def _check_words(layer: Layer) -> None:
    """What the layer says in JSON: each of its kind, before anything is reckoned with it."""
    if not layer.chunks or not isinstance(layer.name, str):
        raise ValueError("it has no rows or no name")
    counts = {name: (getattr(layer, name), 1) for name in ("batch", "heads", "kv_heads")}
    counts["index"] = (layer.index, 0)
    for chunk in layer.chunks:
        counts |= {"rows": (chunk.rows, 1), "keys": (chunk.keys, 1), "version": (chunk.version, 0)}
        for name, (count, least) in counts.items():
            if type(count) is not int or count < least:
                raise ValueError(f"{name} is {count!r}, expected a whole number from {least} on")
        if chunk.mask is not None and not isinstance(chunk.mask, str):
            raise ValueError(f"mask is {chunk.mask!r}, expected a rule or none")
        if chunk.scale is None:
            raise ValueError("scale is missing")
    kinds = layer.kinds
    if not isinstance(kinds, dict) or not all(kind in _KINDS for kind in kinds.values()):
        raise ValueError(f"kinds is {kinds!r}, expected one of {', '.join(_KINDS)} a statistic")
    for name in ("crosses", "has_qk"):
        if not isinstance(getattr(layer, name), bool):
            raise ValueError(f"{name} is {getattr(layer, name)!r}, expected true or false")


def _check_place(name: str, layer: Layer, said: dict[str, str]) -> None:
    """Whether this is the file that its name says: two may have been swapped."""
    named = NAME.fullmatch(name)
    if named is None:
        return
    if named[2] is None or int(named[2]) != layer.index:
        raise ValueError(f"it holds layer {layer.index}, which is not what its name says")
    if named[3] and (said.get("text"), said.get("run")) != (named[1], named[3]):
        raise ValueError("it is of another text or saving than its name says")


def _check_chunk(layer: Layer, i: int, tensors: OnDisk) -> None:
    """Whether all that makes the weights is there, and fits together as `attend` wants it."""
    chunk = layer.chunks[i]
    shape, dtype = tensors.header(f"{i}.lse")
    if shape != [layer.batch, layer.heads, chunk.rows] or dtype not in ("F32", "F64"):
        raise ValueError(f"{i}.lse is {dtype} {shape}")
    query, key = [*shape, 1], [layer.batch, layer.kv_heads, chunk.keys, 1]
    kinds = ["F32", "F32"]
    if layer.has_qk:
        (asked, kinds[0]), (held, kinds[1]) = (
            tensors.header(f"{i}.query"),
            tensors.header(f"key.{chunk.version}"),
        )
        if len(asked) != 4 or asked[:3] != shape:
            raise ValueError(f"{i}.query is {asked}, expected {shape} and the head's size")
        if len(held) != 4 or held[:2] != key[:2]:
            raise ValueError(f"key.{chunk.version} is {held}, expected {key[:2]}, keys and size")
        _check_reach(layer, chunk, held[2])
        query, key = asked, [*key[:3], held[3]]
    _check_norms(layer, chunk, tensors)
    if not {*kinds} <= {*_FLOATS}:
        raise ValueError(f"queries and keys are {kinds}, expected one of {', '.join(_FLOATS)}")
    # Nothing is read: one number stands for all.
    like = [
        torch.zeros((), dtype=_FLOATS[kind]).expand(size)
        for kind, size in zip(kinds, (query, key), strict=True)
    ]
    with without_autocast("cpu"):
        pose(like[0], like[1], like[1], dropout=0.0, **layer.asked(i))


def _check_reach(layer: Layer, chunk: Chunk, held: int) -> None:
    """Whether the rows are over all keys that they saw: else their weights would not sum to 1."""
    most = max(one.keys for one in layer.chunks if one.version == chunk.version)
    if held != most:
        raise ValueError(f"key.{chunk.version} holds {held} keys, but its rows speak of {most}")
    if layer.crosses or chunk.offset is None or type(chunk.offset) is not int:
        return
    own = min(chunk.offset + chunk.rows, held)  # a row that stands among the keys came with its own
    if chunk.keys < own:
        raise ValueError(f"rows up to key {own} are said to be over {chunk.keys} keys")


def _check_norms(layer: Layer, chunk: Chunk, tensors: OnDisk) -> None:
    most = max(one.keys for one in layer.chunks if one.version == chunk.version)
    for name, heads in (("value_norm", layer.kv_heads), ("output_norm", layer.heads)):
        full = f"{name}.{chunk.version}"
        if name == "output_norm" and full not in tensors:
            continue  # no projection was found
        shape, dtype = tensors.header(full)
        if shape != [layer.batch, heads, most] or dtype not in _FLOATS:
            raise ValueError(f"{full} is {dtype} {shape}, expected {[layer.batch, heads, most]}")


# Of each kind of statistic: the fields that are kept.
_KINDS = {
    "row": ("",),
    "place": ("",),
    "key": ("",),
    "top": tuple(f".{field}" for field in Top._fields),
    "map": tuple(f".{field}" for field in HeatMap._fields),
}


def _check_statistic(layer: Layer, i: int, key: str, kind: str, tensors: OnDisk) -> None:
    chunk, heads = layer.chunks[i], [layer.batch, layer.heads]
    found = {field: tensors.header(f"{i}.stat.{key}{field}") for field in _KINDS[kind]}
    for field, (shape, dtype) in found.items():
        match kind:
            case "row":
                fits = shape[:3] == [*heads, chunk.rows] and len(shape) in (3, 4)
            case "place":
                fits = shape == [*heads, chunk.rows]
            case "key":
                fits = shape == [*heads, chunk.keys]
            case "top":
                fits = shape[:3] == [*heads, chunk.rows] and len(shape) == 4
            case _:
                fits = shape[:2] == heads and len(shape) == 4 and shape[2] == shape[3]
        whole = kind == "place" or field == ".keys"
        known = _WHOLE if whole else (*_FLOATS, *_WHOLE) if field == ".pairs" else _FLOATS
        if not fits or dtype not in known:
            raise ValueError(f"{i}.stat.{key}{field} is {dtype} {shape}")
    if len({tuple(shape) for shape, _ in found.values()}) > 1:
        raise ValueError(f"{i}.stat.{key} has parts of several shapes")
