"""Tiles, pooled maps, shards merged, heads compared, the layer's own view."""

import math

import pytest
import torch
import zoo
from whole_map import close, matrix

import multihead as mh
from multihead.observation.statistics import find

MASKS = {"none": None, **zoo.every_mask(zoo.BATCH, zoo.HEADS, zoo.QUERIES, zoo.KEYS)}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_a_tile_is_exact(mask, known):
    q, k, v = zoo.tensors(dtype=torch.float64)
    asked = {
        "mask": MASKS[mask], "softcap": 2.0, "sinks": torch.randn(zoo.HEADS).double(),
        "bias": torch.randn(zoo.QUERIES, zoo.KEYS).double(),
    }  # fmt: skip
    whole = matrix(zoo.ask(q, k, v, **asked)).weights
    lse = mh.observe(q, k, v, **asked, stats=()).lse if known else None
    rows, keys = slice(2, 6), torch.tensor([0, 3, 4, 10])
    found = mh.weights(q, k, rows=rows, keys=keys, lse=lse, **asked)
    torch.testing.assert_close(found, whole[:, :, 2:6][..., keys], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cells", [4, 5, 16])
def test_a_pooled_map_and_its_pyramid(cells):
    q, k, v = zoo.tensors(dtype=torch.float64, queries=23, keys=29)
    whole = matrix(zoo.ask(q, k, v, mask=mh.causal()))
    levels = mh.pooled_weights(q, k, cells=cells, mask=mh.causal())
    close(levels[0], find(mh.heatmap(cells)).dense(whole), "pooled", 1e-12)
    assert levels[-1].sum.shape[-1] == 1
    for level in levels:
        torch.testing.assert_close(level.sum.sum((-1, -2)), whole.weights.sum((-1, -2)))
        assert level.pairs.sum((-1, -2)).eq(whole.allowed.sum((-1, -2))).all()
        torch.testing.assert_close(level.largest.amax((-1, -2)), whole.weights.amax((-1, -2)))
    mean = levels[-1].mean[..., 0, 0]
    torch.testing.assert_close(mean, whole.weights.sum((-1, -2)) / whole.allowed.sum((-1, -2)))


MERGED = (
    "entropy", "effective", "distance", "peak", "peak_key", "max_score", "value_norm",
    mh.mass(mh.window(3), name="near"), mh.top(3),
)  # fmt: skip


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("cut", [1, 4, 9])
def test_two_shards_of_the_keys_are_the_whole(cut, sinks):
    q, k, v = zoo.tensors(dtype=torch.float64)
    sink = torch.randn(zoo.HEADS).double() if sinks else None
    place = zoo.KEYS - zoo.QUERIES
    asked = {"mask": mh.causal() & mh.window(6), "stats": MERGED}
    whole = mh.observe(q, k, v, sinks=sink, **asked)
    one = mh.observe(q, k[:, :, :cut], v[:, :, :cut], offset=place, sinks=sink, **asked)
    two = mh.observe(q, k[:, :, cut:], v[:, :, cut:], offset=place - cut, **asked)
    merged = mh.merge([one, two], starts=[0, cut])
    torch.testing.assert_close(merged.out, whole.out, rtol=0, atol=1e-12)
    torch.testing.assert_close(merged.lse, whole.lse, rtol=0, atol=1e-12)
    for key in whole.keys():  # noqa: SIM118
        close(merged[key], whole[key], key, 1e-12)
    # Columns and maps of a shard, given the lse of all.
    shard = {"mask": asked["mask"], "offset": place - cut, "lse": merged.lse}
    column = mh.observe(q, k[:, :, cut:], v[:, :, cut:], stats="received", **shard).received
    every = mh.observe(q, k, v, mask=asked["mask"], sinks=sink, stats="received").received
    torch.testing.assert_close(column, every[..., cut:], rtol=0, atol=1e-12)


def test_what_cannot_be_merged_is_refused_with_the_way():
    q, k, v = zoo.tensors()
    one = mh.observe(q, k, v, stats=("received",))
    with pytest.raises(
        ValueError, match="received of shards cannot be merged.*observe each shard again"
    ):
        mh.merge([one, one])
    peak = mh.observe(q, k, v, stats=("peak", "peak_key"))
    with pytest.raises(ValueError, match="need to know where each shard's keys begin"):
        mh.merge([peak, peak])
    with pytest.raises(ValueError, match="same queries and statistics, but these differ"):
        mh.merge([one, peak])
    for wrong in ([], None, one, [3]):
        with pytest.raises(ValueError, match="merge takes a list of observations; give"):
            mh.merge(wrong)
    known = mh.observe(q, k, v, stats="entropy", lse=mh.observe(q, k, v, stats=()).lse)
    with pytest.raises(ValueError, match="made with lse= is part of a whole already"):
        mh.merge([known, known])
    sunk = mh.observe(q, k, v, stats="entropy", sinks=torch.zeros(zoo.HEADS))
    with pytest.raises(ValueError, match="a sink counts in one shard alone"):
        mh.merge([sunk, sunk])
    some = [mh.observe(q, k, v, stats="entropy", rows=rows) for rows in (slice(0, 3), slice(2, 5))]
    with pytest.raises(ValueError, match="same queries"):
        mh.merge(some)


def test_shards_of_some_rows():
    q, k, v = zoo.tensors(dtype=torch.float64)
    asked = {"stats": ("entropy", "distance"), "rows": slice(1, 6, 2)}
    whole = mh.observe(q, k, v, **asked, offset=0)
    one = mh.observe(q, k[:, :, :4], v[:, :, :4], **asked, offset=0)
    two = mh.observe(q, k[:, :, 4:], v[:, :, 4:], **asked, offset=-4)
    merged = mh.merge([one, two])
    for key in ("out", "lse", "entropy", "distance"):
        torch.testing.assert_close(merged[key], whole[key], rtol=0, atol=1e-12)


def test_merged_entropy_has_the_gradient_of_the_whole():
    q, k, v = (t.requires_grad_() for t in zoo.tensors(dtype=torch.float64))
    sinks = torch.randn(zoo.HEADS).double()
    whole = mh.observe(q, k, v, stats="entropy", sinks=sinks).entropy
    one = mh.observe(q, k[:, :, :4], v[:, :, :4], stats="entropy", sinks=sinks)
    two = mh.observe(q, k[:, :, 4:], v[:, :, 4:], stats="entropy")
    up = torch.randn_like(whole)
    found = torch.autograd.grad(mh.merge([one, two]).entropy, (q, k), up)
    torch.testing.assert_close(found, torch.autograd.grad(whole, (q, k), up), rtol=0, atol=1e-11)


def test_a_nan_query_is_seen_as_one():
    q, k, v = zoo.tensors()
    q[0, 0, 3] = torch.nan
    stats = ("entropy", "effective", "distance", "peak", "max_score")
    seen = mh.observe(q, k, v, mask=mh.causal(), stats=stats)
    for key in stats:
        assert seen[key][0, 0, 3].isnan(), key
        assert seen[key].isnan().sum() == 1, key
    assert seen.mean()["entropy"][0, 0].isnan()


def test_sharp_rows_stay_within_their_bounds():
    q, k, v = zoo.tensors(queries=200, keys=200)
    seen = mh.observe(q * 300, k, v, mask=mh.causal(), stats=("entropy", "peak"))
    assert seen.entropy.min() >= 0
    assert seen.peak.max() <= 1


def test_features_with_as_many_columns_as_keys():
    q, k, v = zoo.tensors(dtype=torch.float64)
    seen = mh.observe(q, k, v, stats=mh.expect(torch.eye(zoo.KEYS)))
    torch.testing.assert_close(seen.expect, mh.weights(q, k))


def test_nothing_is_a_tile_too():
    q, k, _ = zoo.tensors()
    assert mh.weights(q, k, rows=slice(50, 60)).shape == (zoo.BATCH, zoo.HEADS, 0, zoo.KEYS)
    assert not mh.weights(q.requires_grad_(), k).requires_grad
    levels = mh.pooled_weights(q, k, cells=2, lse=mh.observe(q, k, k, stats=()).lse.double())
    assert levels[0].sum.dtype == torch.float32


def test_how_alike_heads_are():
    q, k, v = zoo.tensors(dtype=torch.float64)
    whole = matrix(zoo.ask(q, k, v, mask=mh.causal())).weights
    found = mh.similarity(q, k, mask=mh.causal())
    middle = (whole[:, :, None] + whole[:, None]) / 2

    def entropy(p):
        return -torch.special.xlogy(p, p).sum(-1)

    expected = entropy(middle) - (entropy(whole)[:, :, None] + entropy(whole)[:, None]) / 2
    torch.testing.assert_close(found, expected.mean(-1), rtol=0, atol=1e-12)
    apart = torch.eye(2, dtype=torch.float64)[None, :, None] * 100  # two heads, two keys, one each
    keys = torch.eye(2, dtype=torch.float64)[None, None]
    unlike = mh.similarity(apart, keys)
    assert math.isclose(unlike[0, 0, 1].item(), math.log(2), rel_tol=1e-6)


def test_the_layer_sees_what_its_output_is_made_of():
    torch.manual_seed(0)
    attn = mh.MultiHeadAttention(
        24, 6, num_kv_heads=3, mask=mh.causal(), rope=mh.rope(100.0), head_gate=True
    )
    attn.head_gate = torch.rand(6)
    x = torch.randn(2, 9, 24)
    y, seen = attn.observe(
        x, stats=("entropy", "output_norm", "received_output", mh.mass(mh.prefix(1)))
    )
    assert torch.equal(y, attn(x))
    (q, k, v), _, _ = attn._ask(x, None, None, None, None, None)
    weights = mh.weights(q, k, mask=mh.causal())
    heads = attn.out.weight.unflatten(1, (6, -1))  # (d_out, heads, v_head_dim)
    moved = torch.einsum("bhkd,ohd->bhko", v.repeat_interleave(2, 1), heads).norm(dim=-1)
    moved = moved * attn.head_gate[:, None]
    torch.testing.assert_close(seen.output_norm, (weights * moved[:, :, None]).sum(-1))
    torch.testing.assert_close(seen.received_output, (weights * moved[:, :, None]).sum(-2))
    one, alone = attn.observe(x[0])
    torch.testing.assert_close(one, y[0])
    assert alone.entropy.shape == (1, 6, 9)


def test_an_observation_is_easy_to_use():
    q, k, v = zoo.tensors()
    seen = mh.observe(q, k, v, mask=mh.padding([0, 5]), stats=("entropy", "received", mh.top(2)))
    assert "entropy" in repr(seen)
    assert repr(seen).startswith("Observation of 7 rows, batch 2, 15 heads, by dense")
    means = seen.mean()
    assert set(means) == {"entropy"}
    torch.testing.assert_close(means["entropy"][1], seen.entropy[1].mean(-1))
    assert means["entropy"][0].eq(0).all()  # a batch row that saw nothing
    wide = seen.to(torch.float64)
    assert wide.entropy.dtype == torch.float64
    assert wide["top(2)"].keys.dtype == torch.int64
    with pytest.raises(AttributeError, match="has no 'distance'; it has entropy"):
        _ = seen.distance
    with pytest.raises(KeyError, match="has no 'distance'"):
        _ = seen["distance"]


def test_a_training_step_with_an_entropy_penalty():
    q, k, v = (t.requires_grad_() for t in zoo.tensors(queries=300, keys=300))
    seen = mh.observe(q, k, v, mask=mh.causal(), stats="entropy")
    (seen.out.square().mean() - 0.1 * seen.entropy.mean()).backward()
    expected = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    wide = zoo.ask(*expected, mask=mh.causal())
    from multihead.attention import dense

    steps = dense.steps(wide)
    entropy = -(steps.weights * steps.weights.clamp_min(1e-30).log()).sum(-1)
    (steps.out.square().mean() - 0.1 * entropy.mean()).backward()
    for one, two in zip((q, k, v), expected, strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-3, atol=1e-7)
