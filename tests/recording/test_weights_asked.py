"""Weights that a model asks for with its output: as they became, while its heads are cut."""

import pytest
import torch
import torch.nn.functional as F
from architectures import SEEN, build, inputs, maps
from torch import nn

import multihead as mh

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gpt_oss", "t5", "bart", "bert"])
def test_eager_weights_of_transformers_are_those_that_were_cut(name):
    model, given = build(SEEN[name], "eager"), inputs(SEEN[name].kind)
    plain = maps(model, **given)
    with mh.ablate(model, [(0, 1)]):
        kept = maps(model, **given)
    assert len(kept) == len(plain)
    torch.testing.assert_close(kept[0], plain[0])
    with mh.cut(model, [(0, 1), (1, 0)], links=mh.offset(0)), mh.record(model) as rec:
        found = maps(model, **given)
    assert len(found) == len(plain)
    for layer, whole in zip(rec.layers, found, strict=True):
        for head in range(layer.heads):
            expected = rec.weights(layer.index, head, batch=1)
            torch.testing.assert_close(whole[1, head], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[0][:, 0], plain[0][:, 0])
    assert not found[0][:, 1].diagonal(dim1=-2, dim2=-1).any()


class Weighed(nn.Module):
    """Two layers, and each goes on with the weights of its heads too."""

    def __init__(self, **asked):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=asked.pop("zero", False))
            for _ in range(2)
        )
        self.asked, self.told = asked, []

    def forward(self, x):
        self.told = []
        for layer in self.layers:
            y, weights = layer(x, x, x, **self.asked)
            self.told.append(weights)
            if weights is not None:
                mean = weights if self.asked.get("average_attn_weights", True) else weights.mean(-3)
                y = y + mean[..., : x.shape[-2]] @ x
            x = x + y
        return x


class ByHand(nn.Module):
    """The same, with SDPA and a softmax."""

    def __init__(self, model):
        super().__init__()
        self.layers = model.layers

    def forward(self, x):
        for layer in self.layers:
            split = F.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
            q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in split)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + layer.out_proj(y) + (q @ k.mT / 2).softmax(-1).mean(1) @ x
        return x


@torch.no_grad()
@pytest.mark.parametrize("asked", [{}, {"average_attn_weights": False}, {"zero": True}], ids=str)
@pytest.mark.parametrize("x", [X, X[0]], ids=["batch", "one text"])
def test_weights_of_multihead_attention(asked, x):
    model = Weighed(**asked).eval()
    plain, own = model(x), model.told
    every = [(layer, head) for layer in (0, 1) for head in (0, 1)]
    with mh.cut(model, every, links=mh.offset(20)):  # which nobody has
        torch.testing.assert_close(model(x), plain)
        for one, other in zip(model.told, own, strict=True):
            torch.testing.assert_close(one, other)
    with mh.cut(model, [(0, 0), (0, 1)], links=mh.offset(0)):
        model(x)
    assert not model.told[0][..., :6].diagonal(dim1=-2, dim2=-1).any()
    torch.testing.assert_close(model.told[0].sum(-1), torch.ones_like(model.told[0].sum(-1)))
    with mh.ablate(model, [(0, 0)]):
        model(x)
    torch.testing.assert_close(model.told[0], own[0])


def test_weights_that_were_not_asked_for_are_not_given():
    model = Weighed(need_weights=False).eval()
    with torch.no_grad(), mh.ablate(model, [(0, 0)]):
        model(X)
    assert model.told == [None, None]


@pytest.mark.parametrize("each", [True, False], ids=["averaged", "each head"])
def test_the_loss_minds_heads_through_weights_too(each):
    model = Weighed(average_attn_weights=each).eval()
    found, expected = (
        [
            row["importance"]
            for row in mh.head_importance(one, [X], lambda out, _: out.square().mean())
        ]
        for one in (model, ByHand(model))
    )
    assert found == pytest.approx(expected, abs=1e-5)
