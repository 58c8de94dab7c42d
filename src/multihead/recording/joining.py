"""The steps of a generation as one chunk: hundreds of rows that came one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from ..masks import dense
from .layer import Chunk, Layer, written

pad = torch.nn.functional.pad


def join_steps(layer: Layer, tensors: dict[str, Tensor]) -> None:
    """Join each run of chunks after the first that stand one behind another on the same keys."""
    if len(layer.chunks) < 3 or "map" in layer.kinds.values():
        return
    runs: list[list[int]] = [[0]]
    for i in range(1, len(layer.chunks)):
        before, here = layer.chunks[i - 1], layer.chunks[i]
        follows = (
            len(runs) > 1
            and here.version == before.version
            and (here.scale, here.softcap) == (before.scale, before.softcap)
            and here.offset is not None
            and _end(before) == here.offset
            and _names(layer, i - 1) == _names(layer, i)
        )
        runs[-1].append(i) if follows else runs.append([i])
    taken: dict[str, Tensor] = {}
    chunks = [_join(layer, run, n, taken) for n, run in enumerate(runs)]
    for name in [name for name in tensors if name.split(".")[0].isdecimal()]:
        del tensors[name]
    tensors.update(taken)
    layer.chunks[:] = chunks


def _names(layer: Layer, i: int) -> list[str]:
    """What chunk i has, but for masks, which are joined apart."""
    names = [name.split(".", 1)[1] for name in layer.tensors if name.startswith(f"{i}.")]
    return [name for name in names if not name.startswith("mask.")]


def _end(chunk: Chunk) -> int | None:
    return None if chunk.offset is None else chunk.offset + chunk.rows


def _join(layer: Layer, run: list[int], n: int, taken: dict[str, Tensor]) -> Chunk:
    tensors, first = layer.tensors, layer.chunks[run[0]]
    names = _names(layer, run[0])
    keys = max(layer.chunks[i].keys for i in run)
    if len(run) == 1:
        own = [name for name in tensors if name.startswith(f"{run[0]}.")]
        taken.update({f"{n}.{name.split('.', 1)[1]}": tensors[name] for name in own})
        return first
    for name in names:
        parts = [tensors[f"{i}.{name}"] for i in run]
        if name in ("sinks", "slopes", "offset"):
            taken[f"{n}.{name}"] = parts[0]
        elif layer.kinds.get(key := name.removeprefix("stat.")) == "key":
            taken[f"{n}.{name}"] = layer.joined_by_key(key, run, parts)
        elif name == "bias":
            sizes = [(layer.chunks[i].rows, layer.chunks[i].keys) for i in run]
            parts = [p.expand(-1, -1, *size) for p, size in zip(parts, sizes, strict=True)]
            taken[f"{n}.{name}"] = torch.cat(
                [pad(p, (0, keys - p.shape[-1])) for p in parts], dim=2
            )
        else:
            taken[f"{n}.{name}"] = torch.cat(parts, dim=2)
    text, carried = _joint_mask(layer, run, keys)
    taken.update({f"{n}.mask.{m}": tensor for m, tensor in enumerate(carried)})
    return Chunk(
        sum(layer.chunks[i].rows for i in run), keys, first.version, first.scale, first.softcap,
        first.offset, text,
    )  # fmt: skip


def _joint_mask(layer: Layer, run: list[int], keys: int) -> tuple[str | None, list[Tensor]]:
    """A rule that all share, or bits; keys that came later are hidden from earlier rows."""
    chunks = [layer.chunks[i] for i in run]
    if all(c.mask is None and c.rows == 1 and _end(c) == c.keys for c in chunks):
        return "causal()", []  # each saw all keys up to its own
    if len({c.mask for c in chunks}) == 1 and chunks[0].mask == "causal()":
        return "causal()", []
    if all(c.mask is None and c.keys == keys for c in chunks):
        return None, []
    bits = []
    for i in run:
        chunk, asked = layer.chunks[i], layer.asked(i)
        shape = (1, 1, chunk.rows, chunk.keys)
        allowed = torch.ones(shape, dtype=torch.bool)
        if asked["mask"] is not None:
            rows, columns = torch.arange(chunk.rows), torch.arange(chunk.keys)
            allowed = asked["mask"].allows(rows, columns, asked["offset"])
            allowed = allowed.expand(-1, -1, *shape[2:])
        bits.append(pad(allowed, (0, keys - chunk.keys)))
    most = [max(b.shape[axis] for b in bits) for axis in (0, 1)]
    joined = torch.cat([b.expand(*most, -1, -1) for b in bits], dim=2)
    return written(dense(joined))
