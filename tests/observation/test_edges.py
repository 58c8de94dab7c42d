"""Where numbers are hard: rows far from 0, autocast, NaN, sinks that take all, shards unlike."""

import math

import pytest
import torch
from whole_map import close

import multihead as mh

STATS = ("entropy", "distance", "received", "max_score", mh.mass(mh.window(99), name="all"))


def qkv(tokens=6, dim=8, heads=2):
    torch.manual_seed(3)
    return torch.randn(3, 1, heads, tokens, dim).unbind(0)


@pytest.mark.parametrize("least", [torch.finfo(torch.float32).min, -1e9, -1e4])
def test_a_row_forbidden_by_numbers_is_even_over_all_keys(least):
    q, k, v = qkv()
    seen_by = torch.ones(6, 6).tril().bool()
    seen_by[:, :2] = False  # a text padded in front: its first rows see nothing but forbidden keys
    bias = torch.zeros(6, 6).masked_fill(~seen_by, least)
    seen = mh.observe(q, k, v, bias=bias, stats=STATS)
    whole = (q.double() @ k.double().mT / math.sqrt(8) + bias.double()).softmax(-1)
    if least < -1e8:  # beside such a number float32 has no room for a score
        whole = (q @ k.mT / math.sqrt(8) + bias).double().softmax(-1)
    close(seen.received, whole.sum(2), "received", 1e-5)
    close(seen.all, torch.ones(1, 2, 6).double(), "mass", 1e-5)
    close(seen.entropy, -torch.special.xlogy(whole, whole).sum(-1), "entropy", 1e-5)
    close(mh.weights(q, k, bias=bias), whole, "weights", 1e-5)
    close(
        mh.pooled_weights(q, k, cells=1, bias=bias)[0].sum[..., 0, 0],
        whole.sum((2, 3)),
        "map",
        1e-4,
    )
    scores = (q @ k.mT / math.sqrt(8) + bias).amax(-1)
    torch.testing.assert_close(seen.max_score, scores, rtol=1e-5, atol=1e-3)


def test_autocast_gives_what_the_same_dtype_gives():
    q, k, v = qkv(64, 64)
    stats = ("entropy", mh.mass(mh.window(999), name="all"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = mh.observe(3 * q, k, v, stats=stats)
        tile = mh.weights(3 * q, k)
    low = mh.observe(*((3 * q).bfloat16(), k.bfloat16(), v.bfloat16()), stats=stats)
    assert torch.equal(seen.entropy, low.entropy)
    torch.testing.assert_close(tile.sum(-1), torch.ones(1, 2, 64), rtol=0, atol=1e-4)


def test_a_nan_stays_among_the_keys_of_its_row():
    q, k, v = qkv(600)
    q[0, 0, 1] = torch.nan
    seen = mh.observe(q, k, v, mask=mh.causal(), stats=("received", mh.heatmap(3)))
    assert seen.received[0, 0].isnan().nonzero().flatten().tolist() == [0, 1]
    assert seen["heatmap(3)"].sum[0, 0].isnan().nonzero().tolist() == [[0, 0]]


def shards(stats, **asked):
    q, k, v = qkv()
    one = mh.observe(q, k[:, :, :3], v[:, :, :3], offset=0, stats=stats, **asked)
    return one, mh.observe(q, k[:, :, 3:], v[:, :, 3:], offset=-3, stats=stats)


def test_a_nan_row_of_shards_is_no_dead_row():
    q, k, v = qkv()
    q[0, 0, 1] = torch.nan
    parts = [
        mh.observe(q, k[:, :, s], v[:, :, s], stats="entropy") for s in (slice(0, 3), slice(3, 6))
    ]
    assert mh.merge(parts).lse[0, 0, 1].isnan()


def test_a_sink_that_takes_all_hides_no_score():
    q, k, v = qkv()
    merged = mh.merge(shards("max_score", sinks=torch.tensor([60.0, 60.0])))
    whole = mh.observe(q, k, v, offset=0, stats="max_score", sinks=torch.tensor([60.0, 60.0]))
    torch.testing.assert_close(merged.max_score, whole.max_score)


def test_what_counts_from_a_shards_own_first_key_is_refused():
    with pytest.raises(ValueError, match="counts keys from the first of each shard"):
        mh.merge(shards(mh.mass(mh.prefix(2))))


def test_one_name_for_two_statistics_is_refused():
    one, _ = shards(mh.top(2, name="t"))
    _, two = shards(mh.top(3, name="t"))
    with pytest.raises(ValueError, match="not the same statistic"):
        mh.merge([one, two], starts=[0, 3])


def test_shards_in_any_order():
    q = torch.zeros(1, 1, 2, 4)  # every key ties
    parts = [
        mh.observe(q, torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), stats=("peak", "peak_key"))
    ] * 2
    assert mh.merge(parts, starts=[2, 0]).peak_key.tolist() == [[[0, 0]]]


def test_the_lse_of_chosen_rows_serves_for_these():
    q, k, v = qkv()
    seen = mh.observe(q, k, v, rows=[1, 4], stats="received")
    again = mh.observe(q, k, v, rows=[1, 4], lse=seen.lse, stats="received")
    assert torch.equal(seen.received, again.received)
    torch.testing.assert_close(
        mh.weights(q, k, rows=[1, 4], lse=seen.lse), mh.weights(q, k, rows=[1, 4])
    )


def test_changing_a_query_in_place_is_told_in_backward():
    q, k, v = qkv()
    leaf = q.clone().requires_grad_()
    moved = leaf * 1
    seen = mh.observe(moved, k, v, stats="entropy")
    moved.mul_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        seen.entropy.sum().backward()


def test_a_row_without_an_lse_has_no_weight():
    q, k, v = qkv()
    lse = mh.observe(q, k, v, stats="lse").lse.clone()
    lse[..., 0] = -torch.inf
    seen = mh.observe(q, k, v, lse=lse, stats=mh.mass(mh.window(99), name="all"))
    assert seen.all[0, 0].round(decimals=4).tolist() == [0, 1, 1, 1, 1, 1]


def test_norms_of_a_half_precision_layer_are_exact():
    torch.manual_seed(1)
    attn, x = mh.MultiHeadAttention(16, 2).bfloat16(), torch.randn(1, 7, 16).bfloat16()
    _, low = attn.observe(x, stats="output_norm")
    _, high = attn.double().observe(x.double(), stats="output_norm")
    torch.testing.assert_close(low.output_norm.double(), high.output_norm, rtol=2e-2, atol=0)
    assert low.output_norm.dtype == torch.float32
