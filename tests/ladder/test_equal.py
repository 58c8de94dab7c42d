"""One set of weights on every rung: the same context, and the same output where there is one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.ladder import RUNGS, Weights, carry

# batch, tokens, num_heads, head_dim, d_in: distinct primes, so that swapped axes cannot pass
SHAPES = [
    (2, 7, 3, 5, 11),
    (3, 11, 2, 7, 5),
    (1, 1, 5, 3, 2),
    (5, 2, 7, 1, 3),
    (2, 71, 3, 2, 5),  # more than one tile of the streaming rung
    (2, 13, 1, 11, 7),  # one head
    (2, 7, 3, 5, 15),  # d_in = d_out, which the full rung needs
    (3, 67, 5, 2, 10),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_rung = pytest.mark.parametrize("rung", RUNGS)
with_and_without_bias = pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])


def draw(shape, *, bias=False, seed=0, gain=1.0):
    """Weights and an x for them."""
    batch, tokens, num_heads, head_dim, d_in = shape
    weights = Weights.random(d_in, num_heads * head_dim, num_heads, bias=bias, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(batch, tokens, d_in, dtype=torch.float64, generator=generator)
    return weights, gain * x


def definition(w, x):
    """The context by the textbook, head after head, and the output."""
    project = torch.nn.functional.linear
    query = project(x, w.query, w.query_bias)
    key = project(x, w.key, w.key_bias)
    value = project(x, w.value, w.value_bias)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    contexts = []
    for h in range(w.num_heads):
        head = slice(h * w.head_dim, (h + 1) * w.head_dim)
        scores = torch.einsum("bid,bjd->bij", query[..., head], key[..., head]) / w.head_dim**0.5
        scores[:, future] = -torch.inf
        contexts.append(torch.einsum("bij,bjd->bid", scores.softmax(-1), value[..., head]))
    context = torch.cat(contexts, -1)
    return context, project(context, w.out, w.out_bias)


def fits(weights, rung):
    """The full rung has one width, and the scalar rung no biases (test_rungs.py has the errors)."""
    if rung == "full":
        return weights.d_in == weights.d_out
    return rung != "scalar" or not weights.biases


def close(found, expected, what="it"):
    torch.testing.assert_close(
        found, expected, rtol=0, atol=1e-12, msg=lambda text: f"{what}: {text}"
    )


@every_shape
@with_and_without_bias
@pytest.mark.parametrize("seed", [0, 1])
def test_every_rung_gives_the_same(shape, bias, seed):
    weights, x = draw(shape, bias=bias, seed=seed)
    context, output = definition(weights, x)
    for rung in (rung for rung in RUNGS if fits(weights, rung)):
        carried = carry(weights, rung)
        close(carried(x), context, f"the context of {rung}")
        if carried.output is not None:
            close(carried.output(x), output, f"the output of {rung}")


def test_which_rungs_project():
    weights, _ = draw((2, 7, 3, 5, 15))
    projecting = {rung for rung in RUNGS if carry(weights, rung).output is not None}
    assert projecting == {"scalar", "split", "full", "fused"}


@every_shape
@with_and_without_bias
def test_rung_two_head_by_head(shape, bias):
    weights, x = draw(shape, bias=bias)
    context, _ = definition(weights, x)
    heads = carry(weights, "one_head").rung
    assert len(heads) == weights.num_heads
    for h, head in enumerate(heads):
        close(head(x), context[..., h * weights.head_dim : (h + 1) * weights.head_dim])


@every_rung
def test_sharp_scores_stay_equal(rung):
    """Logits of hundreds: an exp without its origin would overflow or vanish here."""
    weights, x = draw((2, 7, 3, 5, 15), gain=30.0)
    scores = (x @ weights.query.mT) @ (x @ weights.key.mT).mT
    assert scores.abs().max() > 1000
    torch.testing.assert_close(
        carry(weights, rung)(x), definition(weights, x)[0], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("rung", ["one_head", "stacked", "split", "full", "fused"])
def test_gradients_are_equal_too(rung):
    weights, x = draw((2, 7, 3, 5, 15), bias=True)
    grad = torch.randn_like(x)
    x.requires_grad_()
    (expected,) = torch.autograd.grad(definition(weights, x)[0], x, grad)
    (found,) = torch.autograd.grad(carry(weights, rung)(x), x, grad)
    close(found, expected)


@every_rung
def test_the_past_does_not_see_the_future(rung):
    weights, x = draw((2, 7, 3, 5, 15))
    climbed = carry(weights, rung)
    changed = x.clone()
    changed[:, 4:] += 1.0
    close(climbed(changed)[:, :4], climbed(x)[:, :4])
    assert not torch.allclose(climbed(changed)[:, 4:], climbed(x)[:, 4:])


@settings(max_examples=40)
@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 9),
    num_heads=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    d_in=st.integers(1, 7),
    seed=st.integers(0, 1000),
)
def test_any_shape(batch, tokens, num_heads, head_dim, d_in, seed):
    weights, x = draw((batch, tokens, num_heads, head_dim, d_in), seed=seed)
    context, _ = definition(weights, x)
    for rung in (rung for rung in RUNGS if fits(weights, rung)):
        close(carry(weights, rung, context_length=tokens)(x), context, rung)
