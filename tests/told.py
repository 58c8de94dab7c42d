"""What our kernels tell of a problem, held against the whole matrix in float64."""

from __future__ import annotations

import dataclasses

import torch
from kernels import DEVICE
from oracle import gold
from whole_map import close, matrix

import multihead as mh
from multihead.observation.fused import Looked, look, swept
from multihead.observation.statistics import find
from multihead.observation.view import View

ON_THE_WAY = (
    "entropy", "effective", "distance", "peak", "peak_key", "max_score", mh.mass(mh.offset(-1)),
    mh.mass(mh.prefix(2)), mh.mass(mh.window(3) & mh.causal(), name="near"),
)  # fmt: skip
SWEPT = (
    "received", "received_mean", mh.heatmap(4), mh.heatmap(19), mh.mass(mh.window(4)),
    mh.mass(mh.window(150), name="far"),  # whole tiles, of wide ones too
)  # fmt: skip


def assert_told(p, statistics=ON_THE_WAY) -> Looked:
    """On the way through attention."""
    asked = tuple(map(find, statistics))
    seen = look(p, asked, "fused")
    assert seen.backend == "fused"
    assert {*seen.found} == {s.key for s in asked}
    for statistic in asked:
        assert_close(seen.found[statistic.key], statistic, p)
    return seen


def assert_swept(p, statistics=SWEPT) -> None:
    """In a sweep of their own."""
    asked = [find(s) for s in statistics]
    found = swept(view_of(p), asked)
    assert {*found} == {s.key for s in asked}
    for statistic in asked:
        assert_close(found[statistic.key], statistic, p)


def assert_a_nan_stays_in_its_row(p) -> None:
    """In out and in what is told; whatever the others are, they are the same bits."""
    asked = tuple(map(find, ("entropy", "distance", "peak", "max_score")))
    whole = look(p, asked, "fused")
    query, row = p.query.clone(), p.query.shape[2] // 3
    query[0, 1, row, 3] = torch.nan
    found = look(dataclasses.replace(p, query=query), asked, "fused")
    expected = {"out": whole.out, "lse": whole.lse, **whole.found}
    for key, value in {"out": found.out, "lse": found.lse, **found.found}.items():
        assert value[0, 1, row].isnan().all(), key
        value[0, 1, row] = expected[key][0, 1, row]
        assert torch.equal(value, expected[key]), key


def view_of(p) -> View:
    queries = p.query.shape[2]
    return View(p, look(p, (), "fused").lse, torch.arange(queries, device=DEVICE), queries)


def assert_close(found, statistic, p) -> None:
    close(moved(found), expected(statistic, p), statistic.key, slack(statistic, p))


def expected(statistic, p):
    """Its formula on the matrix, worked out on the CPU."""
    wide = gold(p)
    moved = {n: t.cpu() if isinstance(t, torch.Tensor) else t for n, t in wide.__dict__.items()}
    return statistic.dense(matrix(type(wide)(**moved)))


def moved(value):
    return tuple(map(moved, value)) if isinstance(value, tuple) else value.cpu()


def slack(statistic, p):
    """As each statistic states it: relative to the largest it can be, more for large scores."""
    scores = float(
        (p.query.float().norm(dim=-1).max() * p.key.float().norm(dim=-1).max()) * p.scale
    )
    size = p.key.shape[2] if statistic.key in ("distance", "effective") else 1
    if statistic.key == "distance" and not isinstance(p.offset, torch.Tensor):
        size = max(size, p.query.shape[2] + p.offset)  # from the last row to the first key
    size = p.query.shape[2] if statistic.key.startswith(("received", "heatmap")) else size
    return (statistic.tolerance + 8 * 2**-23 * scores) * max(1.0, size)
