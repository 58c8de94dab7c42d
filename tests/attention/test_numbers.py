"""Every backend × mask × dtype against the float64 oracle, and the oracle against a hand count."""

import pytest
import torch
import zoo
from oracle import assert_by_the_rule, by_hand, gold, results

import multihead as mh
from multihead.attention import BACKENDS, answer, dense

MASKS = {"none": None, **zoo.every_mask(zoo.BATCH, zoo.HEADS, zoo.QUERIES, zoo.KEYS)}


def extras(dtype=torch.float32):
    """Arguments one at a time, then together."""
    random = torch.Generator().manual_seed(3)
    bias = torch.randn(1, zoo.HEADS, zoo.QUERIES, zoo.KEYS, generator=random).to(dtype)
    holes = torch.randn(zoo.BATCH, 1, 1, zoo.KEYS, generator=random)
    holes = holes.masked_fill(holes > 0.3, -torch.inf).to(dtype)
    sinks = torch.randn(zoo.HEADS, generator=random).to(dtype)
    return {
        "plain": {},
        "scale": {"scale": 0.37},
        "softcap": {"softcap": 1.3},
        "bias": {"bias": bias},
        "bias_with_holes": {"bias": holes},
        "alibi": {"bias": mh.alibi(zoo.HEADS)},
        "sinks": {"sinks": sinks},
        "offset": {"offset": -2},
        "offsets": {"offset": torch.tensor([3, -4])},
        "all": {"scale": 0.4, "softcap": 2.0, "bias": bias, "sinks": sinks, "offset": 1},
    }


def runs(backend, problem):
    """A backend that refuses says why; that it never refuses too much is tested elsewhere."""
    return BACKENDS[backend].refuses(problem) is None


CASES = [
    pytest.param(mask, extra, id=f"{name}-{kind}")
    for name, mask in MASKS.items()
    for kind, extra in extras().items()
]


@pytest.mark.parametrize(("mask", "extra"), CASES)
def test_the_oracle_counts_as_a_hand_does(mask, extra):
    q, k, v = zoo.tensors(batch=2, kv_heads=3, group=5, queries=7, keys=11, dim=2, value_dim=3)
    problem = gold(zoo.ask(q, k, v, mask=mask, **extra))
    out, lse = by_hand(problem)
    found = dense.run(problem)
    torch.testing.assert_close(found.out, out, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.lse, lse, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["sdpa", "tiled"])
@pytest.mark.parametrize(("mask", "extra"), CASES)
def test_backends_equal_the_oracle(backend, mask, extra):
    """Semantics, in float64, where nothing hides behind rounding: out and lse."""
    wide = {
        n: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for n, x in extra.items()
    }
    problem = zoo.ask(*zoo.tensors(dtype=torch.float64), mask=mask, **wide)
    if not runs(backend, problem):
        return
    found, expected = answer(problem, backend), dense.run(problem)
    torch.testing.assert_close(found.out, expected.out, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.lse, expected.lse, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", zoo.DTYPES, ids=str)
@pytest.mark.parametrize("backend", zoo.ON_CPU)
@pytest.mark.parametrize("mask", MASKS)
def test_every_backend_mask_and_dtype_by_the_rule(backend, mask, dtype):
    problem = zoo.ask(*zoo.tensors(5, dtype), mask=MASKS[mask])
    if not runs(backend, problem):
        return
    grad_out = torch.randn(zoo.BATCH, zoo.HEADS, zoo.QUERIES, zoo.VALUE_DIM).to(dtype)
    assert_by_the_rule(problem, results(BACKENDS[backend].run, problem, grad_out), grad_out)


@pytest.mark.parametrize("dtype", zoo.DTYPES, ids=str)
@pytest.mark.parametrize("backend", zoo.ON_CPU)
@pytest.mark.parametrize("extra", extras())
def test_every_backend_argument_and_dtype_by_the_rule(backend, extra, dtype):
    problem = zoo.ask(*zoo.tensors(6, dtype), mask=mh.causal(), **extras(dtype)[extra])
    if not runs(backend, problem):
        return
    grad_out = torch.randn(zoo.BATCH, zoo.HEADS, zoo.QUERIES, zoo.VALUE_DIM).to(dtype)
    assert_by_the_rule(problem, results(BACKENDS[backend].run, problem, grad_out), grad_out)


LONG = {"batch": 2, "kv_heads": 1, "group": 3, "dim": 19, "value_dim": 19}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["sdpa", "tiled"])
@pytest.mark.parametrize(("queries", "keys"), [(701, 701), (13, 1301), (701, 311), (1, 2049)])
def test_many_tiles_by_the_rule(backend, queries, keys, dtype):
    """Lengths that no tile divides, more queries than keys, one query over many keys."""
    tensors = zoo.tensors(7, dtype, queries=queries, keys=keys, **LONG)
    every = {"none": None, **zoo.every_mask(2, 3, queries, keys)}
    grad_out = torch.randn(2, 3, queries, 19).to(dtype)
    for mask in (
        "none",
        "causal",
        "causal_window",
        "causal_documents",
        "padding",
        "window_or_first",
    ):
        problem = zoo.ask(*tensors, mask=every[mask])
        if runs(backend, problem):
            found = results(BACKENDS[backend].run, problem, grad_out)
            assert_by_the_rule(problem, found, grad_out)


@pytest.mark.parametrize("softcap", [None, 20.0])
def test_many_plain_tiles_by_the_rule(softcap):
    """The same without the fused kernel: softcap and a bias gradient keep tiles in plain torch."""
    tensors = zoo.tensors(8, queries=701, keys=803, **LONG)
    grad_out = torch.randn(2, 3, 701, 19)
    for mask in (None, mh.causal(), mh.causal() & mh.window(200)):
        bias = torch.randn(1, 3, 1, 803)
        problem = zoo.ask(*tensors, mask=mask, softcap=softcap, bias=bias.requires_grad_())
        found = results(BACKENDS["tiled"].run, problem, grad_out)
        assert_by_the_rule(
            zoo.ask(*tensors, mask=mask, softcap=softcap, bias=bias.detach()), found, grad_out
        )


@pytest.mark.parametrize("backend", zoo.ON_CPU)
def test_logits_beyond_a_hundred(backend):
    q, k, v = zoo.tensors(9, queries=31, keys=31)
    problem = zoo.ask(q * 30, k * 30, v, mask=mh.causal())
    assert dense.steps(problem).scaled.abs().max() > 1000
    grad_out = torch.randn(zoo.BATCH, zoo.HEADS, 31, zoo.VALUE_DIM)
    assert_by_the_rule(problem, results(BACKENDS[backend].run, problem, grad_out), grad_out)


@pytest.mark.parametrize("backend", zoo.ON_CPU)
def test_one_key_gets_everything(backend):
    q, k, v = zoo.tensors(keys=1)
    out = mh.attend(q, k, v, backend=backend)
    torch.testing.assert_close(out, v.repeat_interleave(zoo.GROUP, 1).expand_as(out))


@pytest.mark.parametrize("backend", zoo.ON_CPU)
def test_tensors_as_they_come(backend):
    """Strides that are not (batch, heads, tokens, dim): views of a projection, expanded heads."""
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in zoo.tensors())
    expected = mh.attend(*zoo.tensors(), mask=mh.causal(), backend="dense")
    torch.testing.assert_close(mh.attend(q, k, v, mask=mh.causal(), backend=backend), expected)
    one, same = k[:, :1].expand(-1, zoo.KV_HEADS, -1, -1), k[:, :1].repeat(1, zoo.KV_HEADS, 1, 1)
    torch.testing.assert_close(
        mh.attend(q, one, v, backend=backend), mh.attend(q, same, v, backend="dense")
    )


GAPS = {
    "columns first": lambda t: t.mT.contiguous().mT,
    "every third column": lambda t: t.repeat_interleave(3, dim=-1)[..., ::3],
    "tokens reversed in memory": lambda t: t.flip(2).contiguous().flip(2),
    "heads last": lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1),
}


@pytest.mark.parametrize("backend", zoo.ON_CPU)
@pytest.mark.parametrize("gap", GAPS)
def test_any_strides(backend, gap):
    """The kernel reads past the end where a last axis has gaps: it must never see one."""
    plain = zoo.tensors(3, torch.float64, dim=17, queries=40, keys=40)
    leaves = [GAPS[gap](t).requires_grad_() for t in plain]
    expected = [t.clone().requires_grad_() for t in plain]
    out = mh.attend(*leaves, mask=mh.causal(), backend=backend)
    gold_out = mh.attend(*expected, mask=mh.causal(), backend="dense")
    torch.testing.assert_close(out, gold_out, rtol=0, atol=1e-12)
    up = GAPS[gap](torch.randn_like(gold_out))
    found = torch.autograd.grad(out, leaves, up)
    torch.testing.assert_close(
        found, torch.autograd.grad(gold_out, expected, up), rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [0.0, -1.0, -0.3, 1e-46])
def test_a_scale_of_any_sign(scale, dtype):
    """The kernel masks before it scales: with a causal mask it must be left out here."""
    tensors = zoo.tensors(3, dtype, queries=64, keys=64)
    for mask in (None, mh.causal(), mh.causal() & mh.window(9)):
        expected = mh.attend(*tensors, mask=mask, scale=scale, backend="dense")
        found = mh.attend(*tensors, mask=mask, scale=scale)
        atol = 1e-12 if dtype == torch.float64 else 2e-6
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)
