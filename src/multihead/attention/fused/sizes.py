"""Sizes of tiles by device and width of a head: small tables, and nothing to tune.

A width takes the first row of a table that is wide enough. Hopper's rows of 64 and 128 were chosen
on an H200 with benchmarks/gpu.py; those of 32 and 256 by what fits into registers and shared
memory, and measured there. Elsewhere tiles are small enough for the shared memory of any GPU.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from ..problem import capability
from .again import INTERPRETED


class Sizes(NamedTuple):
    """A tile, and the warps and stages that work on it."""

    rows: int
    keys: int
    warps: int
    stages: int


class Ring(NamedTuple):
    """Tiles that arrive on Hopper one after the other, as many as shared memory has room for."""

    keys: int  # of a tile: registers hold its scores beside what a row carries
    stages: int
    turns: bool = True  # whether groups of warps take turns at the tensor cores,
    plain_turns: bool = True  # and where nobody looks
    laps: bool = False  # whether there is room for the next queries too
    sweep: tuple[int, int] = (64, 2)  # rows and stages of a program that sweeps
    groups: int = 2  # of four warps that compute, 64 rows each: two, or three of fewer registers
    outruns: bool = False  # cuDNN's kernel, where there are rows enough to share out

    def by_two(self) -> Ring:
        """The same by two groups, whose threads have more registers, and blocks fewer rows."""
        return self if self.groups == 2 else self._replace(groups=2, turns=False, plain_turns=False)


# By width, and whether each row sees about half of the keys.
_FORWARD = {
    (64, False): Sizes(64, 128, 4, 3),
    (64, True): Sizes(64, 64, 4, 3),
    (128, False): Sizes(128, 128, 8, 3),
    (128, True): Sizes(64, 64, 4, 3),
    (256, False): Sizes(128, 64, 8, 2),
    (256, True): Sizes(128, 64, 8, 2),
}
# Widths of which Hopper has kernels of its own. Keys of wide heads had better serve more rows.
_RINGS = {
    32: Ring(128, 4, laps=True, groups=3, outruns=True),
    64: Ring(128, 3, plain_turns=False, laps=True, groups=3, outruns=True),
    128: Ring(128, 3, sweep=(128, 2), outruns=True),
    256: Ring(32, 4),
}
_SWEEP = {64: Sizes(64, 128, 4, 3), 256: Sizes(64, 64, 4, 2)}  # where Hopper has none of its own
_BACKWARD = {
    64: Sizes(64, 64, 4, 3),
    128: Sizes(64, 64, 4, 2),
    256: Sizes(64, 64, 8, 2),
}
_DECODE = {64: Sizes(16, 128, 4, 3), 128: Sizes(16, 64, 4, 3), 256: Sizes(16, 64, 4, 2)}
_ELSEWHERE = {64: Sizes(64, 64, 4, 3), 128: Sizes(64, 32, 4, 2), 256: Sizes(32, 32, 4, 2)}
_BACKWARD_ELSEWHERE = {64: Sizes(64, 64, 4, 3), 128: Sizes(64, 64, 4, 2), 256: Sizes(32, 32, 4, 1)}
_DECODE_ELSEWHERE = {64: Sizes(16, 128, 4, 3), 128: Sizes(16, 64, 4, 3), 256: Sizes(16, 32, 4, 2)}
_SMALL = Sizes(16, 16, 4, 1)  # under the interpreter many tiles make a better test than wide ones


def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and capability(device)[0] == 9


def ring_of(device: torch.device, dims: int) -> Ring | None:
    """How tiles of that width arrive, where heads of it have kernels of their own."""
    return _RINGS.get(dims) if is_hopper(device) else None


@functools.cache
def processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def _first(table: dict[int, Sizes], dim: int) -> Sizes:
    return next(tile for wide, tile in table.items() if dim <= wide)


def forward_sizes(device: torch.device, dim: int, *, causal: bool = False) -> Sizes:
    if INTERPRETED:
        return _SMALL
    if not is_hopper(device):
        return _first(_ELSEWHERE, dim)
    return _first({wide: tile for (wide, half), tile in _FORWARD.items() if half == causal}, dim)


def sweep_sizes(device: torch.device, dim: int) -> Sizes:
    """Sweeps have one product where the forward kernel has two."""
    return _SMALL if INTERPRETED else _first(_SWEEP if is_hopper(device) else _ELSEWHERE, dim)


def cell_stages(dim: int) -> int:
    """Of tiles as large as cells may be: fewer of them find room on an AMD GPU (64 KB)."""
    if dim <= 128:
        return 3
    return 1 if torch.version.hip else 2


def backward_sizes(device: torch.device, dim: int) -> Sizes:
    if INTERPRETED:
        return _SMALL
    return _first(_BACKWARD if is_hopper(device) else _BACKWARD_ELSEWHERE, dim)


def decode_sizes(device: torch.device, dim: int) -> Sizes:
    """Its rows are 16, for a few queries: those of all heads of a group."""
    tile = _first(_DECODE if is_hopper(device) else _DECODE_ELSEWHERE, dim)
    return tile._replace(keys=_SMALL.keys) if INTERPRETED else tile
