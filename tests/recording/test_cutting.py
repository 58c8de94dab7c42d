"""Links cut where a model hides by numbers, −10⁹ or the least float: as where it hides by bits."""

import pytest
import torch
import torch.nn.functional as F
from architectures import SEEN, VOCABULARY, build, inputs
from torch import nn
from transformers import DynamicCache, StaticCache

import multihead as mh

IDS = torch.randint(3, VOCABULARY, (2, 13), generator=torch.Generator().manual_seed(2))
DECODERS = ["llama", "gpt2", "gemma2", "gpt_oss", "mistral"]


def heads(model, layer=0):
    with torch.no_grad(), mh.record(model) as rec:
        model(IDS)
    return [(layer, head) for head in range(rec[layer].heads)]


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "bart", "mistral"])
@pytest.mark.parametrize("links", [mh.offset(0), mh.prefix(3), mh.causal()], ids=str)
def test_what_is_left_is_the_same_however_a_model_hides(name, links):
    given, found = inputs(SEEN[name].kind), []
    for implementation in ("sdpa", "eager"):
        model = build(SEEN[name], implementation)
        with mh.record(model) as plain:
            model(**given)
        own = [layer.index for layer in plain.layers if not layer.crosses][-2:]
        chosen = [(layer, head) for layer in own for head in (0, 2)]
        with mh.cut(model, chosen, links=links), mh.record(model) as rec:
            found.append((model(**given).logits, rec, own[0]))
    (sdpa, bits, at), (eager, numbers, _) = found
    torch.testing.assert_close(eager, sdpa, atol=2e-5, rtol=1e-4)
    weights = numbers.weights(at, 0)
    torch.testing.assert_close(weights, bits.weights(at, 0), atol=2e-5, rtol=1e-4)
    assert not weights[0].any()  # its first row saw itself alone
    for one, other in zip(numbers.heads(), bits.heads(), strict=True):
        for key in ("entropy", "distance", "peak", "first", "received_top_share"):
            assert one[key] == pytest.approx(other[key], abs=1e-4), (one["name"], key)
    pairs = [rec.heatmap(at, 0, cells=4).pairs for rec in (numbers, bits)]
    assert name == "t5" or torch.equal(*pairs)


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_a_cut_lets_no_row_see_what_comes_after_it(name):
    model, other = build(SEEN[name], "eager"), IDS.clone()
    other[:, 8:] = (IDS[:, 8:] + 5) % VOCABULARY
    for links in (mh.prefix(3), mh.offset(0), mh.window(3)):
        with mh.cut(model, heads(model), links=links):
            torch.testing.assert_close(model(other).logits[:, :8], model(IDS).logits[:, :8])


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_heads_that_lose_every_link_say_nothing(name):
    model = build(SEEN[name], "eager")
    with mh.ablate(model, heads(model)):
        silent = model(IDS).logits
    with mh.cut(model, heads(model), links=mh.causal()):
        torch.testing.assert_close(model(IDS).logits, silent)


@torch.no_grad()
@pytest.mark.parametrize("links", [mh.prefix(3), mh.window(3), mh.offset(0)], ids=str)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2", "gpt2"])
def test_a_cut_text_padded_in_front_goes_on_from_a_cache_as_without_one(name, kind, links):
    model = build(SEEN[name], "eager")
    mask = (torch.arange(13) >= torch.tensor([[0], [4]])).long()
    places = (mask.cumsum(1) - 1).clamp(min=0)
    with mh.cut(model, [(0, 1), (1, 0)], links=links):
        expected = model(IDS, attention_mask=mask, position_ids=places).logits[:, -1]
    fixed = {"max_cache_len": 21} if kind == "static" else {}
    cache = (StaticCache if fixed else DynamicCache)(config=model.config, **fixed)
    with mh.cut(model, [(0, 1), (1, 0)], links=links):
        for first, end in ((0, 11), (11, 12), (12, 13)):
            given = {"attention_mask": mask[:, :end], "position_ids": places[:, first:end]}
            found = model(IDS[:, first:end], past_key_values=cache, **given).logits[:, -1]
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=1e-4)


class Hidden(nn.Module):
    """Two heads and numbers that are added to their scores."""

    def __init__(self, bias):
        super().__init__()
        self.bias = bias

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.bias)


AHEAD = torch.ones(7, 7, dtype=torch.bool).triu(1)


@torch.no_grad()
@pytest.mark.parametrize("number", [-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf])
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_numbers_that_hide_beside_numbers_that_do_not(number, slope):
    """Places as ALiBi counts them, say, and what is forbidden in the same tensor."""
    x = torch.randn(2, 2, 7, 8, generator=torch.Generator().manual_seed(0))
    near = -slope * (torch.arange(7)[:, None] - torch.arange(7)).abs()
    model = Hidden(near + torch.zeros(7, 7).masked_fill(AHEAD, number))
    with mh.cut(model, [(0, 1)], links=mh.prefix(2)), mh.record(model) as rec:
        out = model(x)
    expected = mh.attend(x, x, x, mask=mh.causal() & ~mh.prefix(2), bias=near)
    torch.testing.assert_close(out[:, 1], expected[:, 1])
    assert not out[:, 1, :2].any()
    torch.testing.assert_close(out[:, 0], model(x)[:, 0])
    assert not rec.weights(0, 1, rows=[0, 1]).any()


@torch.no_grad()
def test_a_row_that_a_model_leaves_nothing_keeps_the_model_s_own_answer():
    """Padding in front: a softmax over the least float alone is uniform, and nobody reads it."""
    x = torch.randn(1, 2, 7, 8, generator=torch.Generator().manual_seed(0))
    hides = AHEAD | (torch.arange(7) < 2)
    model = Hidden(torch.zeros(7, 7).masked_fill(hides, torch.finfo(torch.float32).min))
    plain = model(x)
    with mh.cut(model, [(0, 1)], links=mh.offset(-1)):
        out = model(x)
    torch.testing.assert_close(out[:, 0], plain[:, 0])
    torch.testing.assert_close(out[:, 1, 0], plain[:, 1, 0])  # no link of it was cut
    assert not torch.allclose(out[:, 1, 3], plain[:, 1, 3])


@torch.no_grad()
def test_bits_and_numbers_that_hide_together():
    """Two masks, as nn.MultiheadAttention takes them: bits for padding, numbers for order."""
    torch.manual_seed(0)
    x, padding = torch.randn(1, 2, 7, 8), mh.dense(torch.arange(7) >= 2)
    numbers = torch.zeros(7, 7).masked_fill(AHEAD, -1e9)

    class Both(nn.Module):
        def forward(self, x):
            return mh.attend(x, x, x, mask=padding, bias=numbers)

    model = Both()
    with mh.cut(model, [(0, 0)], links=mh.offset(0)):
        out = model(x)
    expected = mh.attend(x, x, x, mask=mh.causal() & padding & ~mh.offset(0))
    torch.testing.assert_close(out[:, 0, 2:], expected[:, 0, 2:])
    torch.testing.assert_close(out[:, 0, :2], model(x)[:, 0, :2])  # nothing was there to be cut
