"""Which tiles of the map are worth a visit: strips of queries × runs of keys, but EMPTY ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..masks import EMPTY, FULL
from .problem import Problem


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


def plan(problem: Problem, size: Size, rows_at_once: int) -> Iterator[tuple[slice, list[Strip]]]:
    """Batch rows, a few at a time, with their strips; rows share strips where the mask allows."""
    batch = problem.query.shape[0]
    query_edges = _edges(problem.query.shape[2], size.queries)
    key_edges = _edges(problem.key.shape[2], size.block)
    if problem.mask is None:
        blocks = torch.full((1, 1, 1), FULL, dtype=torch.int8)
    else:
        offset = problem.offset
        offset = offset.cpu() if isinstance(offset, Tensor) else offset
        blocks = problem.mask.blocks(query_edges, key_edges, offset)
    blocks = blocks.expand(-1, len(query_edges) - 1, len(key_edges) - 1)
    if bool((blocks == blocks[:1]).all()):
        blocks = blocks[:1]
    else:
        rows_at_once = 1
    answers, queries, keys = blocks.tolist(), query_edges.tolist(), key_edges.tolist()
    for first in range(0, batch, rows_at_once):
        table = answers[first if len(answers) > 1 else 0]
        strips = [
            Strip(slice(*queries[i : i + 2]), _runs(row, keys, size)) for i, row in enumerate(table)
        ]
        yield slice(first, first + rows_at_once), _join(strips, size)


def _runs(row: list[int], edges: list[int], size: Size) -> list[Run]:
    """Neighbouring blocks of one kind as one run, none longer than its kind may be."""
    full_keys = sum(edges[j + 1] - edges[j] for j, kind in enumerate(row) if kind == FULL)
    few = full_keys < 2 * size.block  # so little is not worth a call of its own
    runs: list[Run] = []
    for j, kind in enumerate(row):
        if kind == EMPTY:
            continue
        first, last = edges[j], edges[j + 1]
        full = kind == FULL and not (few and full_keys < sum(k != EMPTY for k in row) * size.block)
        longest = size.full_run if full else size.partial_run
        previous = runs[-1] if runs else None
        if (
            previous is not None
            and previous.full == full
            and previous.keys.stop == first
            and last - previous.keys.start <= longest
        ):
            runs[-1] = Run(slice(previous.keys.start, last), full)
        else:
            runs.append(Run(slice(first, last), full))
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


def _edges(length: int, step: int) -> Tensor:
    return torch.tensor([*range(0, length, step), length])
