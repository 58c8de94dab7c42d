"""What is asked of the kernels, and what they tell: plain records, no kernel in sight."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..band import Band, band_of
from ..problem import Problem

_LOG2E = 1.4426950408889634


class Question(NamedTuple):
    """A problem as kernels take it: its mask is a band."""

    query: Tensor
    key: Tensor
    value: Tensor
    band: Band
    offset: int
    offsets: Tensor | None  # one for each batch row
    scale: float
    softcap: float | None
    sinks: Tensor | None

    @property
    def group(self) -> int:
        return self.query.shape[1] // self.key.shape[1]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def in_sight(self) -> tuple[int, int]:
        """The first key that any row may see, and where the last ends, as far as the host knows."""
        offset, band, queries, keys = self.offset, self.band, self.query.shape[2], self.key.shape[2]
        end = min(keys, band.length)
        if self.offsets is not None:
            return 0, end
        first = min(max(offset - band.left, 0), end)
        return first, max(first, min(offset + queries + band.right, end))

    @property
    def numbers(self) -> dict:
        """What every kernel wants to know."""
        band, cap = self.band, self.softcap
        return {
            "lengths_at": band.lengths, "offsets_at": self.offsets, "group": self.group,
            "heads": self.query.shape[1], "queries": self.query.shape[2],
            "keys": self.key.shape[2], "left": band.left, "right": band.right,
            "length": band.length, "offset": self.offset, "scale": self.scale * _LOG2E,
            "cap": 0.0 if cap is None else cap * _LOG2E, "CAP": cap is not None,
            "LENGTHS": band.lengths is not None, "OFFSETS": self.offsets is not None,
        }  # fmt: skip


def question_of(p: Problem) -> Question:
    band = band_of(p.mask)
    assert band is not None
    if band.lengths is not None:
        lengths = band.lengths.to(p.query.device).expand(p.query.shape[0]).contiguous()
        band = band._replace(lengths=lengths)
    offset, offsets = p.offset, None
    if isinstance(offset, Tensor):
        offset, offsets = 0, offset.to(p.query.device).contiguous()
    return Question(p.query, p.key, p.value, band, offset, offsets, p.scale, p.softcap, p.sinks)


class Asked(NamedTuple):
    """What to tell of every row besides out and lse."""

    entropy: bool = False
    distance: bool = False
    peak: bool = False
    peak_key: bool = False
    masses: tuple[Band, ...] = ()
    together: bool = False  # whether numbers of rows may be parts of one block of memory

    @property
    def flags(self) -> dict[str, bool]:
        return {name.upper(): getattr(self, name) for name in self._fields[:4]}

    @property
    def by_tile(self) -> bool:
        """Whether something is added up at every tile: peaks and masses are told in the end."""
        return self.entropy or self.distance


class Told(NamedTuple):
    """What was told, (batch, heads, query) each; None where it was not asked."""

    out: Tensor
    lse: Tensor
    entropy: Tensor | None
    distance: Tensor | None
    peak: Tensor | None
    peak_key: Tensor | None
    masses: Tensor | None  # (mass, batch, heads, query)

    @staticmethod
    def empty(out: Tensor, asked: Asked) -> Told:
        """Room for what is going to be told."""
        rows = out.shape[:3]
        floats = 1 + sum(asked[:3]) + len(asked.masses)
        if asked.together and floats > 1 and rows.numel() % 4 == 0:  # each begins at 16 bytes
            return Told._in_one_block(out, asked, floats)

        def room(wanted: bool, *more: int, dtype: torch.dtype = torch.float32) -> Tensor | None:
            return out.new_empty(*more, *rows, dtype=dtype) if wanted else None

        return Told(
            out, out.new_empty(rows, dtype=torch.float32), room(asked.entropy),
            room(asked.distance), room(asked.peak), room(asked.peak_key, dtype=torch.int64),
            room(bool(asked.masses), len(asked.masses)),
        )  # fmt: skip

    @staticmethod
    def _in_one_block(out: Tensor, asked: Asked, floats: int) -> Told:
        rows, masses = out.shape[:3], len(asked.masses)
        block = out.new_empty(floats, *rows, dtype=torch.float32)
        lse, *told = block[: floats - masses].unbind()
        given = iter(told)
        entropy, distance, peak = (next(given) if wanted else None for wanted in asked[:3])
        peak_key = out.new_empty(rows, dtype=torch.int64) if asked.peak_key else None
        in_masses = block[floats - masses :] if masses else None
        return Told(out, lse, entropy, distance, peak, peak_key, in_masses)


class Pulls(NamedTuple):
    """Gradients of what was told, a number a row; `back` is what each row takes back."""

    back: Tensor
    entropy: Tensor | None
    distance: Tensor | None
    masses: Tensor | None
    bands: tuple[Band, ...]

    def contiguous(self) -> Pulls:
        back, *given = self[:4]
        told = (None if grad is None else grad.contiguous() for grad in given)
        entropy, distance, masses = told
        return Pulls(back.contiguous(), entropy, distance, masses, self.bands)
