"""Every statistic against its formula on the whole matrix, in float64."""

import pytest
import torch
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_map import close, matrix

import multihead as mh
from multihead.observation.statistics import STATISTICS, find


def every_statistic(batch, heads, keys):
    random = torch.Generator().manual_seed(5)
    feature = torch.randn(keys, generator=random).double()
    ids = torch.randint(0, 3, (batch, keys), generator=random)
    return (
        *STATISTICS,
        mh.mass(mh.offset(-1)),
        mh.mass(mh.prefix(2), name="first"),
        mh.mass(mh.same_token(ids), name="same"),
        mh.top(3),
        mh.heatmap(4),
        mh.heatmap(5),
        mh.expect(feature),
        mh.expect(torch.randn(batch, heads, keys, 3, generator=random).double(), name="columns"),
        mh.received(torch.rand(batch, keys, generator=random).double()),
    )


def check(tensors, asked, stats, rows=None, atol=1e-10):
    problem = zoo.ask(*tensors, **asked)
    seen = mh.observe(*tensors, **asked, stats=stats, rows=rows)
    whole = matrix(problem, rows)
    for statistic in map(find, stats):
        close(seen[statistic.key], statistic.dense(whole), statistic.key, atol)
    plain = mh.attend(*tensors, **asked, backend=seen.backend)
    assert torch.equal(seen.out, plain)
    return seen


MASKS = {"none": None, **zoo.every_mask(zoo.BATCH, zoo.HEADS, zoo.QUERIES, zoo.KEYS)}


def extras():
    random = torch.Generator().manual_seed(3)
    bias = torch.randn(1, zoo.HEADS, zoo.QUERIES, zoo.KEYS, generator=random).double()
    sinks = torch.randn(zoo.HEADS, generator=random).double()
    return {
        "plain": {},
        "softcap": {"softcap": 1.3, "scale": 0.9},
        "holes": {"bias": bias.masked_fill(bias > 0.5, -torch.inf)},
        "alibi": {"bias": mh.alibi(zoo.HEADS)},
        "sinks": {"sinks": sinks},
        "offsets": {"offset": torch.tensor([3, -4])},
        "all": {"softcap": 2.0, "bias": bias, "sinks": sinks, "offset": 1},
    }


@pytest.mark.parametrize("extra", extras())
@pytest.mark.parametrize("mask", MASKS)
def test_every_statistic_under_every_mask(mask, extra):
    stats = every_statistic(zoo.BATCH, zoo.HEADS, zoo.KEYS)
    check(zoo.tensors(dtype=torch.float64), {"mask": MASKS[mask], **extras()[extra]}, stats)


@pytest.mark.parametrize(
    "rows", [slice(0, 3), slice(None, None, 2), slice(5, 6), torch.tensor([0, 2, 6])], ids=str
)
def test_some_rows_alone(rows):
    stats = every_statistic(zoo.BATCH, zoo.HEADS, zoo.KEYS)
    tensors = zoo.tensors(dtype=torch.float64)
    for mask in (None, mh.causal(), MASKS["dense"], MASKS["padding"]):
        bias = torch.randn(zoo.QUERIES, zoo.KEYS, dtype=torch.float64)
        seen = check(tensors, {"mask": mask, "bias": bias}, stats, rows)
        assert seen.out.shape[2] == zoo.QUERIES


@pytest.mark.parametrize(
    "name", ["none", "causal", "causal_window", "padding", "causal_documents", "window_or_first"]
)
def test_many_tiles(name):
    sizes = {"batch": 2, "kv_heads": 1, "group": 3, "queries": 701, "keys": 803}
    mask = {"none": None, **zoo.every_mask(2, 3, 701, 803)}[name]
    stats = (*every_statistic(2, 3, 803), mh.heatmap(128))
    check(zoo.tensors(dtype=torch.float64, **sizes), {"mask": mask}, stats, atol=1e-9)
    check(zoo.tensors(dtype=torch.float64, **sizes), {"mask": mask}, stats, slice(3, None, 8), 1e-9)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**16))
@settings(max_examples=40)
def test_any_shape(queries, keys, group, seed):
    sizes = {"batch": 1, "kv_heads": 2, "group": group, "queries": queries, "keys": keys}
    tensors = zoo.tensors(seed, torch.float64, **sizes)
    for mask in (None, mh.causal() & mh.window(5)):
        check(tensors, {"mask": mask}, every_statistic(1, 2 * group, keys))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_inputs_give_float32_statistics(dtype):
    tensors = zoo.tensors(dtype=dtype, queries=300, keys=300)
    stats = ("entropy", "distance", "peak", "received", mh.heatmap(16), mh.mass(mh.prefix(1)))
    seen = mh.observe(*tensors, mask=mh.causal(), stats=stats)
    wide = [t.double() for t in tensors]
    whole = matrix(zoo.ask(*wide, mask=mh.causal()))
    for statistic in map(find, stats):
        found, expected = seen[statistic.key], statistic.dense(whole)
        size = max(1.0, expected.abs().max().item()) if isinstance(expected, torch.Tensor) else 16.0
        close(
            found,
            expected,
            statistic.key,
            (1 if dtype == torch.float32 else 10) * statistic.tolerance * size,
        )
    assert seen.entropy.dtype == torch.float32


def test_uniform_causal_attention_by_hand():
    """Row i sees i + 1 keys alike: entropy ln(i+1), key 0 gets Hₙ, the previous token (Hₙ − 1)/n."""
    n = 100
    q = k = v = torch.zeros(1, 1, n, 4, dtype=torch.float64)
    stats = (
        "entropy",
        "effective",
        "received",
        "received_mean",
        mh.mass(mh.offset(-1)),
        "peak_key",
    )
    seen = mh.observe(q, k, v, mask=mh.causal(), stats=stats)
    rows = torch.arange(1, n + 1, dtype=torch.float64)
    harmonic = (1 / rows).sum()
    torch.testing.assert_close(seen.entropy[0, 0], rows.log())
    torch.testing.assert_close(seen.effective[0, 0], rows)
    torch.testing.assert_close(seen.received_mean[0, 0, 0], harmonic / n)
    previous = seen["mass:offset(-1)"].mean()
    torch.testing.assert_close(previous, (harmonic - 1) / n)
    assert seen.peak_key.eq(0).all()  # of equal weights, the lowest key


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda q: mh.observe(q, q, q, stats=("entrpy",)),
            "no statistic 'entrpy'; .*entropy, effective",
        ),
        (lambda q: mh.observe(q, q, q, rows=torch.tensor([9])), "rows must lie from 0 to 6"),
        (lambda q: mh.observe(q, q, q, rows=torch.tensor([2, 1])), "rows must ascend"),
        (lambda q: mh.observe(q, q, q, rows=3), "rows must be a slice, indices"),
        (lambda q: mh.observe(q, q, q, lse=torch.zeros(3)), r"lse \(3,\)  expected \(2, 3, 7\)"),
        (lambda q: mh.observe(q, q, q, stats=("peak", "peak")), "two statistics are called 'peak'"),
        (lambda q: mh.observe(q, q, q, stats=(mh.expect(torch.ones(3)),)), "shape does not fit"),
        (lambda q: mh.observe(q, q, q, stats=None), "stats must be names and statistics"),
        (
            lambda q: mh.observe(q, q, q, rows=slice(None, None, -1)),
            "slice of whole numbers that ascends",
        ),
        (
            lambda q: mh.observe(q, q, q, stats=mh.mass(mh.dense(torch.ones(3, 3).bool()))),
            "does not broadcast",
        ),
        (
            lambda q: mh.observe(q, q, q, stats=mh.mass(mh.same_token([1, 2]))),
            "carries 2 tokens but",
        ),
        (
            lambda q: mh.observe(q, q, q, stats=mh.mass(mh.causal(), name="out")),
            "cannot be called 'out'",
        ),
        (
            lambda q: mh.observe(q, q, q, stats=mh.received(torch.ones(7, 2))),
            "2 columns came; ask for one",
        ),
        (
            lambda q: mh.observe(q, q, q, stats=mh.expect(torch.ones(7, requires_grad=True))),
            r"feature.detach\(\)",
        ),
        (lambda q: mh.weights(q, q, keys=torch.tensor([9])), "keys must lie from 0 to 6"),
        (lambda q: mh.top(0), "whole number from 1 on"),
        (lambda q: mh.heatmap(2.5), "whole number from 1 on"),
        (lambda q: mh.mass(3), "takes a mask, but a int came"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call(torch.randn(2, 3, 7, 4))


GRADIENTS = (
    "entropy",
    "effective",
    "distance",
    mh.mass(mh.prefix(2), name="first"),
    mh.expect(torch.rand(5).double()),
    mh.expect(torch.rand(5, 2).double(), name="columns"),
)


@pytest.mark.parametrize(
    "kind", ["plain", "causal", "window", "dead", "softcap", "sinks", "bias", "all"]
)
def test_gradcheck(kind):
    small = {
        "batch": 2,
        "kv_heads": 1,
        "group": 2,
        "queries": 3,
        "keys": 5,
        "dim": 2,
        "value_dim": 3,
    }
    sinks, bias = torch.randn(2).double(), torch.randn(3, 5).double()
    asked = {
        "plain": {}, "causal": {"mask": mh.causal()}, "window": {"mask": mh.causal() & mh.window(2)},
        "dead": {"mask": mh.padding([0, 4])}, "softcap": {"softcap": 1.1}, "sinks": {"sinks": sinks},
        "bias": {"bias": bias}, "all": {"mask": mh.causal(), "softcap": 1.5, "sinks": sinks, "bias": bias},
    }[kind]  # fmt: skip

    def run(q, k, v, *sinks):
        given = {**asked, "sinks": sinks[0]} if sinks else asked
        seen = mh.observe(q, k, v, **given, stats=GRADIENTS)
        lse = seen.lse.masked_fill(seen.lse == -torch.inf, 0.0)
        return seen.out, lse, *(seen[key] for key in seen.keys())  # noqa: SIM118

    inputs = [*zoo.tensors(1, torch.float64, **small), *([sinks] if "sinks" in asked else [])]
    assert torch.autograd.gradcheck(run, [t.requires_grad_() for t in inputs])
