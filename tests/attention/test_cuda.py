"""The same numbers on a GPU; without one these tests are skipped, and say so."""

import dataclasses

import pytest
import torch
import zoo
from oracle import assert_by_the_rule, gold, results

import multihead as mh
from multihead.attention import BACKENDS, choose

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

MASKS = {"none": None, **zoo.every_mask(zoo.BATCH, zoo.HEADS, zoo.QUERIES, zoo.KEYS)}


@pytest.mark.parametrize("dtype", zoo.DTYPES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_and_dtype_by_the_rule(mask, dtype):
    """Masks stay where they are, on the CPU: what they answer goes where the tensors are."""
    here = zoo.ask(*zoo.tensors(5, dtype), mask=MASKS[mask])
    there = zoo.ask(*(t.cuda() for t in zoo.tensors(5, dtype)), mask=MASKS[mask])
    grad_out = torch.randn(zoo.BATCH, zoo.HEADS, zoo.QUERIES, zoo.VALUE_DIM).to(dtype)
    for room in BACKENDS.values():
        if room.refuses(there) is None:
            found = results(room.run, there, grad_out.cuda())
            assert_by_the_rule(here, {n: t.cpu() for n, t in found.items()}, grad_out)


@pytest.mark.parametrize("extra", ["softcap", "bias", "alibi", "sinks", "offsets", "dropout"])
def test_every_argument(extra):
    q, k, v = zoo.tensors(dtype=torch.float64)
    asked = {
        "softcap": {"softcap": 1.3},
        "bias": {"bias": torch.randn(zoo.QUERIES, zoo.KEYS, dtype=torch.float64)},
        "alibi": {"bias": mh.alibi(zoo.HEADS)},
        "sinks": {"sinks": torch.randn(zoo.HEADS, dtype=torch.float64)},
        "offsets": {"offset": torch.tensor([3, -4])},
        "dropout": {"dropout": 0.3},
    }[extra]
    moved = {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in asked.items()}
    there = zoo.ask(q.cuda(), k.cuda(), v.cuda(), mask=mh.causal(), **moved)
    here = zoo.ask(q, k, v, mask=mh.causal(), **asked)
    there = dataclasses.replace(there, seed=torch.tensor(7, device="cuda"))
    here = dataclasses.replace(here, seed=torch.tensor(7))
    expected = BACKENDS["dense"].run(here)
    for name in ("dense", "tiled"):
        found = BACKENDS[name].run(there)
        torch.testing.assert_close(found.out.cpu(), expected.out, rtol=0, atol=1e-12)
        torch.testing.assert_close(found.lse.cpu(), expected.lse, rtol=0, atol=1e-12)


def test_many_tiles():
    tensors = zoo.tensors(7, queries=701, keys=803, kv_heads=1, group=3)
    for mask in (mh.causal(), mh.causal() & mh.window(200), mh.padding([100, 700])):
        here = mh.attend(*tensors, mask=mask, backend="dense")
        there = mh.attend(*(t.cuda() for t in tensors), mask=mask, backend="tiled")
        torch.testing.assert_close(there.cpu(), here, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("keys", "dim", "sizes"),
    [(700, 64, {}), (1, 64, {}), (4099, 128, {"group": 4, "kv_heads": 2}), (333, 80, {"batch": 3}),
     (97, 256, {"group": 7})],
)  # fmt: skip
def test_one_query_over_a_cache(keys, dim, sizes, dtype):
    """PyTorch's flash kernel: out by the rule, lse, and a NaN that stays where it is."""
    given = zoo.tensors(2, dtype, queries=1, keys=keys, dim=dim, value_dim=dim, **sizes)
    for mask in (None, mh.causal()):
        p = zoo.ask(*(t.cuda() for t in given), mask=mask)
        with torch.no_grad():
            assert choose(p).backend == "sdpa"
            found = BACKENDS["sdpa"].run(p)
            first = mh.attend(p.query, p.key, p.value, mask=mask)
        assert torch.equal(found.out, first)
        assert_by_the_rule(
            zoo.ask(*given, mask=mask), {"out": found.out.cpu()}, torch.zeros(first.shape)
        )
        expected = BACKENDS["dense"].run(gold(p)).lse
        torch.testing.assert_close(found.lse.double(), expected, rtol=1e-6, atol=4e-6)
        query = p.query.clone()
        query[0, 1, 0, 3] = torch.nan
        out = mh.attend(query, p.key, p.value, mask=mask)
        assert out[0, 1].isnan().all()
        out[0, 1] = first[0, 1]
        assert torch.equal(out, first)


def test_one_query_while_a_graph_is_captured():
    q, k, v = (
        t.cuda() for t in zoo.tensors(2, torch.bfloat16, queries=1, keys=999, dim=64, value_dim=64)
    )
    with torch.no_grad():
        expected = mh.attend(q, k, v, backend="fused")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = mh.attend(q, k, v)
        out.zero_()
        graph.replay()
    assert torch.equal(out, expected)
