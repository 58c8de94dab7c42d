"""Every differentiable path by finite differences, in float64."""

import pytest
import torch
import zoo

import multihead as mh
from multihead.attention import BACKENDS, answer

SMALL = {"batch": 2, "kv_heads": 1, "group": 2, "queries": 3, "keys": 5, "dim": 2, "value_dim": 3}


def arguments(kind):
    random = torch.Generator().manual_seed(2)
    bias = torch.randn(2, 1, 3, 5, generator=random).double()
    sinks = torch.randn(2, generator=random).double()
    slopes = torch.rand(2, generator=random).double()
    fixed = {
        "plain": {},
        "causal": {"mask": mh.causal()},
        "causal_ahead": {"mask": mh.causal(), "offset": -1},  # the first query is blind
        "window": {"mask": mh.causal() & mh.window(2)},
        "dead_rows": {"mask": mh.padding([0, 4])},
        "softcap": {"softcap": 1.1, "mask": mh.causal()},
        "offsets": {"mask": mh.causal(), "offset": torch.tensor([-1, 1])},
        "dropout": {"dropout": 0.4},
        "holes": {"bias": bias.masked_fill(bias > 0.4, -torch.inf)},
        "bias": {},
        "bias_row": {"mask": mh.causal()},
        "alibi": {"mask": mh.causal()},
        "sinks": {"mask": mh.causal()},
        "sinks_alone": {"mask": mh.padding([0, 4])},
        "all": {"mask": mh.causal(), "softcap": 1.2, "offset": 1},
    }[kind]
    free = {
        "bias": {"bias": bias},
        "bias_row": {"bias": bias[:1, :, :1]},
        "alibi": {"slopes": slopes},
        "sinks": {"sinks": sinks},
        "sinks_alone": {"sinks": sinks},
        "all": {"bias": bias, "sinks": sinks},
    }.get(kind, {})
    return fixed, free


KINDS = [
    "plain",
    "causal",
    "causal_ahead",
    "window",
    "dead_rows",
    "softcap",
    "offsets",
    "dropout",
    "holes",
    "bias",
    "bias_row",
    "alibi",
    "sinks",
    "sinks_alone",
    "all",
]


@pytest.mark.parametrize("backend", zoo.ON_CPU)
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(backend, kind):
    """Of out and lse together, to query, key, value and to whatever else is free."""
    fixed, free = arguments(kind)
    names = list(free)

    def run(query, key, value, *others):
        given = dict(zip(names, others, strict=True))
        if "slopes" in given:
            given["bias"] = mh.alibi(given.pop("slopes"))
        torch.manual_seed(0)  # dropout: the same weights drop each time
        problem = zoo.ask(query, key, value, **fixed, **given)
        out, lse = answer(problem, backend)
        return out, lse.masked_fill(lse == -torch.inf, 0.0)

    inputs = [t.requires_grad_() for t in (*zoo.tensors(1, torch.float64, **SMALL), *free.values())]
    problem = zoo.ask(*inputs[:3], **fixed, **{n: t for n, t in free.items() if n != "slopes"})
    if "slopes" in free:
        problem = zoo.ask(*inputs[:3], **fixed, bias=mh.alibi(inputs[3]))
    if BACKENDS[backend].refuses(problem):
        assert backend == "sdpa"
        return
    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.parametrize("backend", zoo.ON_CPU)
def test_gradients_of_one_input_alone(backend):
    """Nothing is asked twice: a leaf that wants no gradient gets none, the others are right."""
    q, k, v = zoo.tensors(1, torch.float64)
    for index in range(3):
        leaves = [t.clone() for t in (q, k, v)]
        leaves[index].requires_grad_()
        expected = [t.clone() for t in (q, k, v)]
        expected[index].requires_grad_()
        mh.attend(*leaves, mask=mh.causal(), backend=backend).square().sum().backward()
        mh.attend(*expected, mask=mh.causal(), backend="dense").square().sum().backward()
        torch.testing.assert_close(leaves[index].grad, expected[index].grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["sdpa", "tiled"])
def test_a_second_derivative_is_refused_not_wrong(backend):
    q, k, v = (t.requires_grad_() for t in zoo.tensors())
    out = mh.attend(q, k, v, backend=backend)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.square().sum().backward()
