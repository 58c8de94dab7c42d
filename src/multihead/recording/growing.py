"""A layer while it is being recorded: a prefill, then the steps that append to its keys."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attention.problem import Problem
from ..masks import dense, prefix
from ..positions import Alibi
from .continuing import goes_on
from .files import moved_to_disk
from .joining import join_steps
from .keeping import copied, kept, kept_ours, send, settle
from .layer import Chunk, Layer, written
from .norms import output_norms
from .watch import Place


class Related(NamedTuple):
    """A call as it goes on from those before."""

    problem: Problem  # over all keys that there ever were, those that a cache dropped hidden
    version: int  # of the keys
    first: int  # how many were dropped in front
    new: Sequence[int]  # the places, among the keys that came, of those that were not known


class Growing:
    """Chunks as they come. Appended keys are kept once; keys that were reordered are kept anew."""

    def __init__(
        self, place: Place, problem: Problem, kinds: dict[str, str], keep_qk: bool, crosses: bool
    ) -> None:
        batch, heads = problem.query.shape[:2]
        self.tensors: dict[str, Tensor] = {}
        self.layer = Layer(
            name=place.name, index=place.index, batch=batch, heads=heads,
            kv_heads=problem.key.shape[1], crosses=crosses, chunks=[], kinds=kinds, has_qk=keep_qk,
            tensors=self.tensors,
        )  # fmt: skip
        self._last: Tensor | None = None  # the keys of the last call, whole
        self._values: tuple[Tensor, Sequence[int], int] | None = None  # while W_O is awaited
        self._pieces: dict[str, list[Tensor]] = {}
        self._on_disk: set[str] = set()
        self.changes = 0  # how often something came: a file of it may be older
        self.bytes = 0  # how much it holds in memory
        self.added = 0  # how much of that came with the last call
        self.is_cuda = False  # whether calls come from a GPU
        self._fills = False  # whether new keys take empty places, and do not come behind

    def goes_on(self, problem: Problem, crosses: bool) -> bool:
        """Whether a call stands behind what was there, or looks at the same other text again."""
        if crosses and self._last is not None:
            return problem.key.shape == self._last.shape and torch.equal(problem.key, self._last)
        if self._last is None or problem.query.shape[0] != self.layer.batch:
            return False
        settle()
        i = len(self.layer.chunks) - 1
        place = self.layer.chunks[i].offset
        asked = None if place is None else self.tensors.get(f"{i}.query")
        return goes_on(problem, self._last, asked, place or 0)

    def relate(self, problem: Problem) -> Related:
        """How a call goes on from what was there: which of its keys are new, and where they lie."""
        version, first, new = self._related(problem.key, problem.query.shape[2])
        if self.layer.crosses and (problem.mask is None or isinstance(problem.mask, dense)):
            # Rows of another text stand nowhere among the keys: they are counted from its start.
            problem = dataclasses.replace(problem, offset=self.layer.queries)
        return Related(_moved(problem, first) if first else problem, version, first, new)

    def add(self, call: Related, lse: Tensor, found: dict[str, Any]) -> None:
        """Keep a call, and what was found over all keys that there ever were."""
        problem, version, first, new = call
        self.changes, before_bytes = self.changes + 1, self.bytes
        keys = problem.key[:, :, first:] if first else problem.key
        value = problem.value[:, :, first:] if first else problem.value
        # At once: a cache may be written to in place.
        query, keys, norms = copied(problem.query if self.layer.has_qk else None, keys, value)
        i, total = len(self.layer.chunks), problem.key.shape[2]
        text, tensors = written(problem.mask)
        offset = problem.offset if isinstance(problem.offset, int) else None
        before = self.layer.chunks[-1] if self.layer.chunks else None
        self._fills = before is not None and (before.version, before.keys) == (version, total)
        self.layer.chunks.append(
            Chunk(
                problem.query.shape[2], total, version, problem.scale, problem.softcap, offset, text
            )
        )
        extras: dict[str, Tensor | None] = {f"mask.{n}": tensor for n, tensor in enumerate(tensors)}
        extras["sinks"] = problem.sinks
        extras["slopes" if isinstance(problem.bias, Alibi) else "bias"] = (
            problem.bias.slopes if isinstance(problem.bias, Alibi) else problem.bias
        )
        extras["offset"] = problem.offset if isinstance(problem.offset, Tensor) else None
        for name, tensor in extras.items():
            if tensor is not None:
                self._put(f"{i}.{name}", tensor)
        told = {f"{i}.lse": lse}
        for key, statistic in found.items():
            told |= _parts(f"{i}.stat.{key}", statistic)
        copies = dict(zip(told, kept_ours([*told.values()]), strict=True))
        if query is not None:
            copies[f"{i}.query"] = kept(query, ours=True) if query.is_cuda else query
        self.tensors |= copies
        self.bytes += sum(copy.nbytes for copy in copies.values())
        if self.layer.has_qk:
            self._append(f"key.{version}", keys, new)
        self._append(f"value_norm.{version}", norms, new)
        self._values = value, new, _writes(value)
        self.is_cuda = keys.is_cuda
        self._last = keys  # to compare the next call with: where that will be, on the device
        self.added = self.bytes - before_bytes
        send()

    def add_output_norms(self, weight: Tensor) -> None:
        """‖v W_O‖ of the last call's values, unless they were written over since."""
        if self._values is None:
            return
        (value, new, written), self._values = self._values, None
        if _writes(value) == written:
            self.changes += 1
            version = self.layer.chunks[-1].version
            self._append(f"output_norm.{version}", output_norms(value, new, weight), new)

    def forget_values(self) -> None:
        """A pass begins: what comes now is no projection of the last one's output."""
        self._values = None

    def so_far(self) -> Layer:
        """The layer as it stands, its pieces laid together and its steps joined into one chunk.

        It goes on growing as before; what is large is shared, not copied. Where nothing has to be
        laid together, what is still on its way need not be waited for.
        """
        tensors = dict(self.tensors)
        if len(self.layer.chunks) > 1:
            settle()
        for name, pieces in self._pieces.items():
            if pieces:
                tensors[name] = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)
        layer = dataclasses.replace(self.layer, chunks=[*self.layer.chunks], tensors=tensors)
        _drop_half_norms(layer, tensors)
        join_steps(layer, tensors)
        return layer

    def finish(self) -> Layer:
        """The layer for good."""
        before = self._held()
        self.layer = self.so_far()
        self.tensors = dict(self.layer.tensors)
        self.layer.tensors = self.tensors
        self._pieces, self._last, self._values = {}, None, None
        mapped = {id(before[name]) for name in self._on_disk}
        self._on_disk = {name for name, tensor in self.tensors.items() if id(tensor) in mapped}
        self.bytes = sum(t.nbytes for name, t in self.tensors.items() if name not in self._on_disk)
        return self.layer

    def spill(self, folder: Path) -> None:
        """Move what is held in memory to a file, and have it mapped from there."""
        settle()
        held = {name: t for name, t in self._held().items() if name not in self._on_disk}
        if not held:
            return
        path = folder / f"layer{self.layer.index}-{len(os.listdir(folder))}.safetensors"
        mapped = moved_to_disk(path, held)
        for name, tensor in mapped.items():
            if name in self.tensors:
                self.tensors[name] = tensor
            else:
                piece, n = name.rsplit("/", 1)
                self._pieces[piece][int(n)] = tensor
        self._on_disk |= {*mapped}
        self.bytes = 0

    def _held(self) -> dict[str, Tensor]:
        pieces = {f"{n}/{i}": t for n, some in self._pieces.items() for i, t in enumerate(some)}
        return {**self.tensors, **pieces}

    def _related(self, key: Tensor, rows: int) -> tuple[int, int, Sequence[int]]:
        """(version of the keys, how many were dropped in front, the places of the new ones)."""
        last, count = self._last, key.shape[2]
        every = range(count)
        if last is None:
            return 0, 0, every
        version, known = self.layer.chunks[-1].version, self.layer.chunks[-1].keys
        if key.shape == last.shape:
            changed = (key != last).any(-1).any(0).any(0)  # (key,)
            # The same text looked at again, or a cache of fixed length with a few more rows filled.
            if not changed.any() or not last[:, :, changed].any():
                return version, known - count, changed.nonzero()[:, 0].tolist()
        if key.shape[:2] == last.shape[:2]:
            for new in _likely(count, last.shape[2], rows):
                same = count - new
                if same and torch.equal(key[:, :, :same], last[:, :, last.shape[2] - same :]):
                    return version, known - same, every[same:]
        # Reordered, as beams are: in empty places, or behind the others, where the first may drop.
        fills = self.layer.crosses or not bool(last[:, :, -1].any())
        return version + 1, 0 if fills else max(0, known + rows - count), every

    def _append(self, name: str, tensor: Tensor, new: Sequence[int]) -> None:
        """Lay new rows to those of that name: behind them, or in the places that were empty."""
        pieces = self._pieces.setdefault(name, [])
        if not len(new):
            return
        if self._fills and pieces:
            settle()
            pieces[0][:, :, new] = tensor[:, :, new].detach().cpu()
            return
        missing = self.layer.chunks[-1].keys - tensor.shape[2]
        if (
            missing and not pieces
        ):  # dropped before this version of the keys began: nobody sees them
            pieces.append(tensor.new_zeros(*tensor.shape[:2], missing, *tensor.shape[3:]).cpu())
        whole = len(new) == tensor.shape[2]
        if not whole or tensor.is_cuda:
            tensor = kept(tensor if whole else tensor[:, :, new[0] :], ours=True)
        pieces.append(tensor)
        self.bytes += pieces[-1].nbytes

    def _put(self, name: str, tensor: Tensor) -> None:
        self.tensors[name] = kept(tensor)
        self.bytes += tensor.nbytes


def _writes(tensor: Tensor) -> int:
    """How often it was written to, as far as PyTorch counts."""
    return -1 if tensor.is_inference() else tensor._version


def _parts(name: str, statistic: Any) -> dict[str, Tensor]:
    """A statistic by its names: most are one tensor, a map or the top keys are several."""
    if isinstance(statistic, Tensor):
        return {name: statistic}
    return {f"{name}.{field}": getattr(statistic, field) for field in statistic._fields}


def _drop_half_norms(layer: Layer, tensors: dict[str, Tensor]) -> None:
    """Leave out norms ‖v W_O‖ where the projection was not found at every call."""
    for version in {chunk.version for chunk in layer.chunks}:
        norms = tensors.get(f"output_norm.{version}")
        if norms is not None and norms.shape[2] != tensors[f"value_norm.{version}"].shape[2]:
            del tensors[f"output_norm.{version}"]


def _likely(now: int, before: int, rows: int) -> list[int]:
    """How many keys may be new: as many as there are more, or one a row in a cache that slides."""
    return [n for n in dict.fromkeys((now - before, rows)) if 0 < n < now]


def _moved(problem: Problem, first: int) -> Problem:
    """The same rows over the keys from the very first on, those that were dropped hidden."""
    mask, bias, pad = problem.mask, problem.bias, torch.nn.functional.pad
    if mask is not None:
        mask = mask.map(lambda t: pad(t, (first, 0)) if t.ndim == 4 and t.shape[3] > 1 else t)
    if isinstance(bias, Tensor) and bias.shape[-1] > 1:
        bias = pad(bias, (first, 0))
    return dataclasses.replace(
        problem,
        key=pad(problem.key, (0, 0, first, 0)),
        value=pad(problem.value, (0, 0, first, 0)),
        mask=~prefix(first) if mask is None else mask & ~prefix(first),
        bias=bias,
        offset=problem.offset + first,
    )
