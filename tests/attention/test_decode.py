"""A few queries over many keys: however these are shared out, a row tells the same."""

import pytest
import torch
from kernels import DEVICE
from oracle import gold
from zoo import ask

import multihead as mh
from multihead.attention import dense, fused
from multihead.attention.fused import Asked, launch

EVERYTHING = Asked(entropy=True, distance=True, peak=True, peak_key=True)
KEYS = 1400


@pytest.fixture
def grids(monkeypatch):
    """How many programs each kernel was launched with."""
    counted, whole = [], launch.launch

    def counting(kernel, grid, *rest, **named):
        counted.append(grid[0])
        whole(kernel, grid, *rest, **named)

    monkeypatch.setattr(launch, "launch", counting)
    return counted


@pytest.fixture(params=[4, 5, 88])
def shares(request, monkeypatch):
    """So many shares at most; 4, 32 or 64 of them are merged in a turn."""
    monkeypatch.setattr(launch, "_SHARES", 1)
    monkeypatch.setattr(launch, "processors", lambda _: request.param)
    return request.param


def problem(heads=3, queries=2, kv_heads=1, **more):
    random = torch.Generator().manual_seed(5)
    shapes = ((1, heads, queries, 16), (1, kv_heads, KEYS, 16), (1, kv_heads, KEYS, 16))
    q, k, v = (torch.randn(s, generator=random).half().to(DEVICE) for s in shapes)
    return ask(3 * q, k, v, **more)


def told_by_definition(p):
    exact = gold(p)
    weights = dense.steps(exact).weights
    offset = p.offset.item() if isinstance(p.offset, torch.Tensor) else p.offset
    place = torch.arange(p.query.shape[2], device=DEVICE)[:, None] + offset
    ahead = torch.arange(KEYS, device=DEVICE) - place
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    distance = (weights * ahead.abs()).sum(-1)
    return (*dense.run(exact), entropy, distance, weights.amax(-1), weights.argmax(-1))


def check(p):
    found = fused.look(p, EVERYTHING)
    out, *expected = told_by_definition(p)
    torch.testing.assert_close(found.out.double(), out, rtol=0, atol=2e-3)
    for value, wanted in zip(found[1:5], expected[:4], strict=True):
        torch.testing.assert_close(value.double(), wanted, rtol=2e-5, atol=2e-5)
    assert torch.equal(found.peak_key, expected[4])


WINDOW = mh.causal() & mh.window(90)
OFFSETS = torch.tensor([KEYS - 2], device=DEVICE)  # which the host does not know


@pytest.mark.parametrize(
    ("tiles", "more"),
    [
        (88, {}),
        (7, {"mask": WINDOW}),  # those from key 1,309 on
        (88, {"mask": WINDOW, "offset": OFFSETS}),  # most shares are of nothing
        (32, {"mask": mh.causal(), "offset": 500}),
        (9, {"mask": mh.causal(), "offset": 127}),  # one key in the last tile
        (7, {"mask": mh.prefix(100)}),
        (88, {"mask": mh.padding([3])}),
        (88, {"sinks": torch.tensor([0.5, -1.0, 3.0], device=DEVICE)}),
        (88, {"heads": 10}),  # more rows than the smallest tile has
    ],
    ids=[
        "all",
        "window",
        "offsets",
        "behind",
        "one key more",
        "prefix",
        "padding",
        "sinks",
        "rows",
    ],
)
def test_however_many_shares_there_are(shares, grids, tiles, more):
    check(problem(**more))
    if DEVICE == "cpu":  # where a tile has 16 keys, in so many shares as divide them evenly
        assert grids[0] == -(-tiles // -(-tiles // shares))


@pytest.mark.parametrize(
    ("heads", "queries", "mask"), [(4, 50, mh.causal()), (8, 17, None), (2, 130, WINDOW)]
)
def test_more_rows_than_a_tile_has(grids, monkeypatch, heads, queries, mask):
    """Where they are too few to keep a device busy; two heads of keys."""
    monkeypatch.setattr(launch, "_SHARES", 1)
    monkeypatch.setattr(launch, "_LONG_CACHE", 1000)
    monkeypatch.setattr(launch, "processors", lambda _: 32)
    check(problem(heads, queries, 2, mask=mask))
    tiles = -(-heads * queries // 2 // 64)
    assert len(grids) == 2  # shared out, and merged
    assert grids[0] % tiles == 0
    assert grids[0] > tiles or mask == WINDOW


@pytest.mark.parametrize(("mask", "lowest"), [(None, 0), (mh.window(90), KEYS - 2 - 89)])
def test_of_equal_keys_the_lowest_is_the_peak(shares, mask, lowest):
    p = problem(mask=mask)
    p.query.zero_()
    found = fused.look(p, EVERYTHING)
    assert found.peak_key[0, :, 0].tolist() == [lowest] * 3


@pytest.mark.parametrize(
    "more", [{"mask": mh.padding([0])}, {"mask": WINDOW, "offset": -1000}], ids=["padding", "far"]
)
def test_a_row_that_sees_nothing(shares, more):
    found = fused.look(problem(**more), EVERYTHING)
    assert found.peak_key.eq(-1).all()
    assert found.lse.isneginf().all()
    for value in (found.out, found.entropy, found.distance, found.peak):
        assert value.eq(0).all()
