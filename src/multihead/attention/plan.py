"""Which tiles of the map are worth a visit: strips of queries × runs of keys, but EMPTY ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..masks import EMPTY, FULL
from .problem import Problem

_STRIPS = 64  # strips that a mask is asked for at a time


class Run(NamedTuple):
    """Consecutive keys; `full` when every query of the strip may see all of them."""

    keys: slice
    full: bool


class Strip(NamedTuple):
    """Consecutive queries and the keys that some of them may see."""

    queries: slice
    runs: list[Run]


class Size(NamedTuple):
    """How large a tile may be, in queries and keys."""

    queries: int  # in a strip, when its neighbours see other keys
    tallest: int  # in a strip that all its neighbours' runs fit
    block: int  # keys that a mask answers for at once
    partial_run: int
    full_run: int


def plan(
    problem: Problem, size: Size, rows_at_once: int, chosen: Tensor | None = None
) -> Iterator[tuple[slice, list[Strip]]]:
    """Batch rows, a few at a time, with their strips; rows share strips where the mask allows.

    The problem's queries may be some that were chosen out of more: `chosen` holds their indices,
    ascending, and strips count among the chosen.

    A mask is asked for a few strips at a time, so that for a million tokens too there is never a
    table of all blocks.
    """
    batch = problem.query.shape[0]
    row_edges = _edges(problem.query.shape[2], size.queries)
    query_edges = row_edges
    if chosen is not None:
        chosen = chosen.cpu()
        query_edges = torch.cat([chosen[row_edges[:-1]], chosen[-1:] + 1])
    key_edges = _edges(problem.key.shape[2], size.block)
    offset = problem.offset.cpu() if isinstance(problem.offset, Tensor) else problem.offset
    for first in range(0, len(row_edges) - 1, _STRIPS):
        edges = query_edges[first : first + _STRIPS + 1]
        rows = row_edges[first : first + _STRIPS + 1].tolist()
        if problem.mask is None:
            blocks = torch.full((1, 1, 1), FULL, dtype=torch.int8, device="cpu")
        else:
            blocks = problem.mask.blocks(edges, key_edges, offset)
        blocks = blocks.expand(-1, len(edges) - 1, len(key_edges) - 1)
        alike = bool((blocks == blocks[:1]).all())
        at_once = rows_at_once if alike else 1
        tables, keys = blocks.numpy(), key_edges.tolist()
        for row in range(0, batch, at_once):
            table = tables[0 if alike else row]
            strips = [
                Strip(slice(*rows[i : i + 2]), _runs(kinds, keys, size))
                for i, kinds in enumerate(table)
            ]
            yield slice(row, row + at_once), _join(strips, size)


def _runs(kinds: np.ndarray, edges: list[int], size: Size) -> list[Run]:
    """Neighbouring blocks of one kind as one run, none longer than its kind may be."""
    turns = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    spans = [
        (edges[one], edges[two], int(kinds[one]) == FULL)
        for one, two in itertools.pairwise(turns)
        if kinds[one] != EMPTY
    ]
    full = sum(last - first for first, last, is_full in spans if is_full)
    partial = sum(last - first for first, last, is_full in spans if not is_full)
    # So little is not worth a call of its own.
    if partial and full < 2 * size.block and full + partial <= size.partial_run:
        spans = [(first, last, False) for first, last, _ in spans]
    runs: list[Run] = []
    for first, last, is_full in spans:
        if runs and not is_full and not runs[-1].full and runs[-1].keys.stop == first:
            first = runs.pop().keys.start
        longest = size.full_run if is_full else size.partial_run
        runs += [
            Run(slice(start, min(start + longest, last)), is_full)
            for start in range(first, last, longest)
        ]
    return runs


def _join(strips: list[Strip], size: Size) -> list[Strip]:
    """Neighbouring strips that see the same keys as one: a kernel likes many queries at a time."""
    joined: list[Strip] = []
    for strip in strips:
        last = joined[-1] if joined else None
        if last is not None and last.runs == strip.runs:
            height = strip.queries.stop - last.queries.start
            partial = sum(run.keys.stop - run.keys.start for run in strip.runs if not run.full)
            if height <= size.tallest and height * partial <= size.queries * size.partial_run:
                joined[-1] = Strip(slice(last.queries.start, strip.queries.stop), strip.runs)
                continue
        joined.append(strip)
    return joined


class Piece(NamedTuple):
    """A tile to visit: some rows of a strip, or of several, and one run of keys."""

    rows: slice
    run: Run


def stack(strips: list[Strip], height: int) -> list[Piece]:
    """The runs of strips one upon another where they are the same keys, up to a height.

    By keys, then rows: so each row meets its keys in ascending order.
    """
    pieces: list[Piece] = []
    last: dict[tuple[int, int], int] = {}  # where the piece of these keys is
    for strip in strips:
        for run in strip.runs:
            keys = (run.keys.start, run.keys.stop)
            at = last.get(keys)
            if at is not None and pieces[at].rows.stop == strip.queries.start:
                rows = slice(pieces[at].rows.start, strip.queries.stop)
                if rows.stop - rows.start <= height:
                    pieces[at] = Piece(rows, Run(run.keys, pieces[at].run.full and run.full))
                    continue
            last[keys] = len(pieces)
            pieces.append(Piece(strip.queries, run))
    return sorted(pieces, key=lambda piece: (piece.run.keys.start, piece.rows.start))


def _edges(length: int, step: int) -> Tensor:
    return torch.tensor([*range(0, length, step), length], device="cpu")
