"""What is attention by hand and what is not: a product of activations that weighs activations."""

import gc

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import multihead as mh
from multihead.recording.watch import Hand, watching


class Beside(nn.Module):
    """A call to SDPA, and a function that is given what it gave, (batch, tokens, 4), beside it."""

    def __init__(self, function, apart):
        super().__init__()
        self.inner = Only(function) if apart else function

    def forward(self, x):
        y = nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
        return self.inner(y)


class Only(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, y):
        return self.function(y)


def scores(y, keys=7):
    """Of 5 queries and 7 keys."""
    return y @ y.new_ones(4, keys)


def heads(y):
    return y.unflatten(-1, (2, 2)).transpose(1, 2)


def written(y):
    cache = torch.zeros(y.shape)
    cache[:, :5].copy_(y)
    cache[:, 1:2] = y[:, 1:2]
    return cache


def by_head(scores):
    table = torch.zeros(1, 1, 5, 5)
    table[:, 0] = scores
    return table


SEVEN = torch.randn(1, 7, 4)
SCORE, QUERY, ROUTER = nn.Linear(4, 1), nn.Linear(4, 4), nn.Linear(4, 5)
LATENTS = nn.Parameter(torch.randn(3, 4))
BY_PRODUCTS = {
    "bmm": lambda y: torch.bmm(scores(y).softmax(-1), SEVEN),
    "@": lambda y: scores(y).softmax(-1) @ SEVEN,
    "matmul by name": lambda y: torch.matmul(input=scores(y).softmax(-1), other=SEVEN),
    "baddbmm": lambda y: torch.baddbmm(y, scores(y).softmax(-1), SEVEN),
    "einsum": lambda y: torch.einsum("b i j, b j d -> b i d", scores(y).softmax(-1), SEVEN),
    "einsum of a list": lambda y: torch.einsum("...ij,...jd", [scores(y).softmax(-1), SEVEN]),
    "turned around": lambda y: SEVEN.mT @ scores(y).softmax(-1).mT,
    "keys first": lambda y: scores(y).mT.softmax(1).mT @ SEVEN,
    "one text": lambda y: scores(y)[0].softmax(-1) @ SEVEN[0],
    "dropout": lambda y: nn.functional.dropout(scores(y).softmax(-1), 0.1) @ SEVEN,
    "other dtypes and shapes": lambda y: (
        scores(y).double().softmax(-1).float().masked_fill(y[..., :1] > 9, 0).view(1, 1, 5, 7)
        @ SEVEN[None]
    ),
    "four sizes": lambda y: (heads(y) @ heads(y).mT).softmax(-1) @ heads(y),
    "logarithms": lambda y: scores(y).log_softmax(-1).exp() @ SEVEN,
    "torch.special": lambda y: torch.special.softmax(scores(y), -1) @ SEVEN,
    "softmin": lambda y: nn.functional.softmin(-scores(y), -1) @ SEVEN,
    "torch._softmax": lambda y: torch._softmax(scores(y), -1, False) @ SEVEN,
    "aten": lambda y: torch.ops.aten._softmax(scores(y), -1, False) @ SEVEN,
    "an overload": lambda y: torch.ops.aten._softmax.default(scores(y), -1, False) @ SEVEN,
    "a sum": lambda y: ((y @ y.mT).softmax(-1)[..., None] * y[:, None]).sum(2),
    "a sum of values in columns": lambda y: (
        scores(y).softmax(-1)[:, :, None] * SEVEN.mT[:, None]
    ).sum(dim=-1),
    "less the logarithm of the sum": lambda y: (
        ((s := y @ y.mT) - s.logsumexp(-1, keepdim=True)).exp() @ y
    ),
    "exp over its sum": lambda y: (e := (y @ y.mT).exp()) / e.sum(-1, keepdim=True) @ y,
    "exp, divided afterwards": lambda y: (e := (y @ y.mT).exp()) @ y / e.sum(-1, keepdim=True),
    "sigmoid": lambda y: (y @ y.mT).sigmoid() @ y,
    "relu": lambda y: nn.functional.normalize((y @ y.mT).relu(), p=1, dim=-1) @ y,
    "in place": lambda y: torch.bmm(y, y.mT).div_(2).exp_() @ y,
    "inner": lambda y: torch.inner(torch.inner(y[0], SEVEN[0]).softmax(-1), SEVEN[0].mT),
    "one query": lambda y: torch.einsum(
        "bt,btd->bd", torch.einsum("bd,btd->bt", y[:, 0], y).softmax(-1), y
    ),
    "a query that was learnt, through a layer": lambda y: (QUERY(LATENTS) @ y.mT).softmax(-1) @ y,
    "keys in a cache": lambda y: (y @ written(y).mT).softmax(-1) @ y,
    "scores written into a table": lambda y: by_head(y @ y.mT).softmax(-1) @ y,
    "weights and scores": lambda y: ((s := y @ y.mT).softmax(-1) + s) @ y,
    "products written out": lambda y: (y[:, :, None] * y[:, None]).sum(-1).softmax(-1) @ y,
    "additive": lambda y: SCORE((y[:, :, None] + y[:, None]).tanh()).squeeze(-1).softmax(-1) @ y,
}


@pytest.mark.parametrize("apart", [True, False], ids=["a module of its own", "the same module"])
@pytest.mark.parametrize("name", BY_PRODUCTS)
def test_a_softmax_that_weighs_something_is_attention(name, apart):
    model = Beside(BY_PRODUCTS[name], apart)
    where = "inner" if apart else "Beside"
    with pytest.raises(ValueError, match=f"softmax of its own in {where}"), mh.record(model):
        model(torch.randn(1, 5, 4))


TABLE = nn.Parameter(torch.randn(7, 4))
NO_ATTENTION = {
    "a router over as many experts as tokens": lambda y: scores(y, 5).softmax(-1).topk(2),
    "its weights, on what experts gave": lambda y: scores(y, 5).softmax(-1)[..., :1] * y,
    "words": lambda y: scores(y).softmax(-1).argmax(-1),
    "words, read again": lambda y: scores(y).softmax(-1) @ TABLE,
    "the last product": lambda y: y.softmax(-1).mT @ y,  # over tokens, not what it was taken over
    "pooling": lambda y: torch.bmm(SCORE(y).softmax(1).mT, y),
    "pooling by einsum": lambda y: torch.einsum("bt,btd->bd", SCORE(y)[..., 0].softmax(-1), y),
    "experts, mixed": lambda y: torch.einsum(
        "bte,ebtd->btd", ROUTER(y).softmax(-1), torch.stack([y * n for n in range(5)])
    ),
    "bins": lambda y: ROUTER(y).softmax(-1) @ torch.arange(5.0),
    "classes": lambda y: ROUTER(y).softmax(-1) @ torch.eye(5),
    "where two pictures match": lambda y: (y @ y.mT).softmax(-1) @ torch.arange(5.0),
    "similarities": lambda y: (10 * y @ y.mT).softmax(-1),
    "a layer in other words": lambda y: (y @ QUERY.weight.T).relu() @ QUERY.weight,
    "its weights in another dtype": lambda y: (
        (y.double() @ QUERY.weight.double()).softmax(-1) @ (QUERY.weight.double() * 2)
    ),
    "a layer whose weights are made": lambda y: (
        (y @ (LATENTS.mT @ LATENTS)).softmax(-1) @ y.mT[0].mT[:4]
    ),
    "pixels": lambda y: y[None].softmax(1),
    "losses": lambda y: nn.functional.nll_loss(y[0].log_softmax(-1), torch.zeros(5).long()),
}


@pytest.mark.parametrize("apart", [True, False], ids=["a module of its own", "the same module"])
@pytest.mark.parametrize("name", NO_ATTENTION)
def test_softmaxes_that_are_no_attention_are_let_be(name, apart):
    model = Beside(NO_ATTENTION[name], apart)
    with mh.record(model) as rec:
        model(torch.randn(1, 5, 4))
    assert len(rec.layers) == 1


BIASES = {
    "of a table": lambda y: torch.einsum("bqd,kd->bqk", y, QUERY.weight[torch.arange(5) % 4]),
    "of activations": lambda y: (y @ y.mT).sigmoid(),
    "that are normalised": lambda y: (y @ y.mT).softmax(-1),
}


@pytest.mark.parametrize("name", BIASES)
def test_a_product_that_ends_as_a_bias_is_let_be(name):
    model = Only(lambda y: sdpa(y, y, y, attn_mask=BIASES[name](y)))
    with mh.record(model) as rec:
        model(torch.randn(1, 5, 4))
    assert len(rec.layers) == 1


class WithBuffers(nn.Module):
    """A call to SDPA, and a buffer beside it: a table, or a cache of keys."""

    def __init__(self, is_cache):
        super().__init__()
        self.is_cache = is_cache
        self.register_buffer("keys", torch.randn(1, 5, 4))

    def forward(self, y):
        y = sdpa(y, y, y)
        if self.is_cache:
            self.keys[:, 2:].copy_(y[:, 2:])
        return (y @ self.keys.mT).softmax(-1) @ y


@torch.no_grad()
def test_a_buffer_is_a_table_until_an_activation_is_written_into_it():
    with mh.record(model := WithBuffers(is_cache=False)):
        model(torch.randn(1, 5, 4))
    with (
        pytest.raises(ValueError, match="softmax of its own"),
        mh.record(model := WithBuffers(is_cache=True)),
    ):
        model(torch.randn(1, 5, 4))


def test_a_cache_inside_torch_func():
    def through_a_cache(y):
        kept = written(y)
        return sdpa(kept, kept, kept).sum()

    with mh.record(model := Only(through_a_cache)) as rec:
        torch.func.grad(model)(torch.randn(1, 5, 4))
    assert len(rec.layers) == 1


def test_what_died_is_forgotten():
    model = Only(lambda y: sdpa(*[(y @ y.mT).exp() @ torch.ones(5, 4)] * 3))
    with watching(model, Hand()) as watch:
        model(torch.randn(1, 5, 4))
        gc.collect()
        assert watch.unseen._marks == {}
        assert watch.unseen._own == {}
