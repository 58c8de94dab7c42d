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


@pytest.fixture(params=[4, 5, 88])
def shares(request, monkeypatch):
    """So many shares at most; 4, 32 or 64 of them are merged in a turn."""
    monkeypatch.setattr(launch, "_SHARES", 1)
    monkeypatch.setattr(launch, "processors", lambda _: request.param)
    counted, whole = [], launch.launch

    def counting(kernel, grid, *rest, **named):
        counted.append(grid[0])
        whole(kernel, grid, *rest, **named)

    monkeypatch.setattr(launch, "launch", counting)
    yield request.param
    if DEVICE == "cpu":  # where a tile has 16 keys, in so many shares as divide them evenly
        tiles = -(-KEYS // 16)
        assert counted[0] == -(-tiles // -(-tiles // request.param))


def problem(heads=3, **more):
    random = torch.Generator().manual_seed(5)
    shapes = ((1, heads, 2, 16), (1, 1, KEYS, 16), (1, 1, KEYS, 16))
    q, k, v = (torch.randn(s, generator=random).half().to(DEVICE) for s in shapes)
    return ask(3 * q, k, v, **more)


def told_by_definition(p):
    exact = gold(p)
    weights = dense.steps(exact).weights
    ahead = torch.arange(KEYS, device=DEVICE) - torch.arange(2, device=DEVICE)[:, None] - p.offset
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    distance = (weights * ahead.abs()).sum(-1)
    return (*dense.run(exact), entropy, distance, weights.amax(-1), weights.argmax(-1))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"mask": mh.causal() & mh.window(90)},  # most shares are of nothing
        {"mask": mh.padding([3])},
        {"sinks": torch.tensor([0.5, -1.0, 3.0], device=DEVICE)},
        {"heads": 10},  # more rows than the smallest tile has
    ],
    ids=["all", "window", "padding", "sinks", "rows"],
)
def test_however_many_shares_there_are(shares, more):
    p = problem(**more)
    found = fused.look(p, EVERYTHING)
    out, *expected = told_by_definition(p)
    torch.testing.assert_close(found.out.double(), out, rtol=0, atol=2e-3)
    for value, wanted in zip(found[1:5], expected[:4], strict=True):
        torch.testing.assert_close(value.double(), wanted, rtol=2e-5, atol=2e-5)
    assert torch.equal(found.peak_key, expected[4])


@pytest.mark.parametrize(("mask", "lowest"), [(None, 0), (mh.window(90), KEYS - 2 - 89)])
def test_of_equal_keys_the_lowest_is_the_peak(shares, mask, lowest):
    p = problem(mask=mask)
    p.query.zero_()
    found = fused.look(p, EVERYTHING)
    assert found.peak_key[0, :, 0].tolist() == [lowest] * 3


def test_a_row_that_sees_nothing(shares):
    found = fused.look(problem(mask=mh.padding([0])), EVERYTHING)
    assert found.peak_key.eq(-1).all()
    assert found.lse.isneginf().all()
    for value in (found.out, found.entropy, found.distance, found.peak):
        assert value.eq(0).all()
