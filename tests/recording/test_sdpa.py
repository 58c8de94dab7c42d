"""SDPA in its rarer words: causal biases, one text beside many, nested tensors, overflow."""

import pytest
import torch
from dense_maps import close
from torch import nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as sdpa

import multihead as mh


def made(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Asks(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return sdpa(q, k, v, **self.options)


def compare(model, *given):
    before = model(*given)
    with mh.record(model) as rec:
        during = model(*given)
    torch.testing.assert_close(during, before, rtol=0, atol=2e-6, equal_nan=True)
    return rec


BIASES = {
    "upper left": (5, 5, causal_upper_left, 0),
    "upper left, more keys": (3, 5, causal_upper_left, 0),
    "lower right": (3, 5, causal_lower_right, 2),
    "lower right, square": (5, 5, causal_lower_right, 0),
}


@pytest.mark.parametrize("name", BIASES)
def test_a_causal_bias_is_the_rule_it_stands_for(name):
    queries, keys, make, diagonal = BIASES[name]
    q, k, v = made(2, 3, queries, 8), made(2, 3, keys, 8, seed=1), made(2, 3, keys, 8, seed=2)
    rec = compare(Asks(attn_mask=make(queries, keys)), q, k, v)
    scores = (q @ k.mT * 8**-0.5).double()
    allowed = torch.ones(queries, keys, dtype=torch.bool).tril(diagonal)
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    for head in range(3):
        close(rec.weights(0, head, batch=1), expected[1, head], 1e-5)
    assert rec.layers[0].chunks[0].mask == "causal()"


def test_a_causal_bias_of_another_size_is_refused():
    q, k = made(1, 2, 3, 8), made(1, 2, 5, 8)
    model = Asks(attn_mask=causal_lower_right(2, 5))
    with pytest.raises(ValueError, match="of 2 queries and 5 keys, but 3"), mh.record(model):
        model(q, k, k)


def test_a_mask_of_unknown_kind_is_refused():
    class Strange(torch.Tensor):
        pass

    q = made(1, 2, 3, 8)
    model = Asks(attn_mask=torch.zeros(3, 3).as_subclass(Strange))
    with pytest.raises(ValueError, match="attn_mask is a Strange"), mh.record(model):
        model(q, q, q)


SHAPES = {
    "one text of keys": ((2, 4, 5, 8), (1, 4, 7, 8), (2, 4)),
    "one text of queries": ((1, 4, 5, 8), (2, 4, 7, 8), (2, 4)),
    "one head of keys": ((2, 4, 5, 8), (2, 1, 7, 8), (2, 4)),
    "one head of queries": ((2, 1, 5, 8), (2, 4, 7, 8), (2, 4)),
    "keys of no batch": ((2, 4, 5, 8), (4, 7, 8), (2, 4)),
    "three sizes": ((3, 5, 8), (1, 7, 8), (3, 1)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_one_text_or_head_beside_many(name):
    asked, keys, size = SHAPES[name]
    q, k, v = made(*asked), made(*keys, seed=1), made(*keys, seed=2)
    rec = compare(Asks(), q, k, v)
    layer = rec.layers[0]
    assert (layer.batch, layer.heads) == size
    expected = (q @ k.mT * 8**-0.5).softmax(-1).reshape(*size, 5, 7)
    close(rec.weights(0, size[1] - 1, batch=1), expected[1, -1], 1e-5)


def test_grouped_heads_over_one_text_of_keys():
    rec = compare(Asks(enable_gqa=True), made(2, 4, 5, 8), *(made(1, 2, 7, 8),) * 2)
    assert (rec.layers[0].batch, rec.layers[0].heads, rec.layers[0].kv_heads) == (2, 4, 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_refused(layout):
    ragged = torch.nested.nested_tensor([made(3, 2, 8), made(5, 2, 8)], layout=layout)
    q = ragged.transpose(1, 2)
    model = Asks()
    with pytest.raises(ValueError, match="nested tensors cannot be recorded"), mh.record(model):
        model(q, q, q)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["layer", "encoder", "attention"])
@torch.no_grad()
def test_nested_tensors_are_refused_by_the_modules_of_torch_too(kind):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    models = {
        "layer": layer, "attention": layer.self_attn, "encoder": torch.nn.TransformerEncoder(layer, 2)
    }  # fmt: skip
    ragged = torch.nested.nested_tensor([made(3, 8), made(5, 8)])
    given = [ragged] * (3 if kind == "attention" else 1)
    model = models[kind].eval()
    model(*given)  # alone it may
    with pytest.raises(ValueError, match="nested tensors cannot be recorded"), mh.record(model):
        model(*given)


def test_scores_that_overflow_give_what_they_give():
    q, k = made(1, 2, 5, 8) * 1e30, made(1, 2, 5, 8, seed=1) * 1e30
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.ones(5, 5).tril().bool()}):
        compare(Asks(**options), q, k, made(1, 2, 5, 8, seed=2))
