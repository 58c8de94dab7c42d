"""Cut and see: ablation and cut links against the same thing done by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from architectures import SEEN, build
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
)

import multihead as mh

IDS = torch.randint(0, 31, (2, 11), generator=torch.Generator().manual_seed(2))


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=31, hidden_size=24, intermediate_size=16, num_hidden_layers=3,
            num_attention_heads=6, num_key_value_heads=2,
        )
    ).eval()  # fmt: skip


@torch.no_grad()
def test_a_head_that_says_nothing():
    model = llama()
    weight = model.model.layers[1].self_attn.o_proj.weight
    kept = weight.clone()
    weight[:, 8:12] = 0.0  # head 2 of 6, four numbers each
    expected = model(IDS).logits
    weight.copy_(kept)
    with mh.ablate(model, [(1, 2)]):
        torch.testing.assert_close(model(IDS).logits, expected)
    with mh.ablate(model, [("model.layers.1.self_attn", 2)]):
        torch.testing.assert_close(model(IDS).logits, expected)
    assert not torch.allclose(model(IDS).logits, expected)


class One(nn.Module):
    """One head, its output as it is."""

    def forward(self, x):
        x = x[:, None]
        return F.scaled_dot_product_attention(x, x, x)[:, 0]


@torch.no_grad()
def test_a_mean_and_another_row():
    model, x = One(), torch.randn(3, 5, 4)
    plain = model(x)
    with mh.ablate(model, [(0, 0)], by="mean"):
        torch.testing.assert_close(model(x), plain.mean((0, 1)).expand(3, 5, 4))
    with mh.ablate(model, [(0, 0)], by="resample", seed=4):
        other = model(x)
    with mh.ablate(model, [(0, 0)], by="resample", seed=4):
        assert torch.equal(model(x), other)
    assert not torch.allclose(other, plain)
    assert torch.equal(other.flatten(0, 1).sort(0).values, plain.flatten(0, 1).sort(0).values)


@torch.no_grad()
@pytest.mark.parametrize("rows", [2, 3, 6])
def test_no_row_is_its_own_other_row(rows):
    model, x = One(), torch.randn(1, rows, 4)
    plain, drawn = model(x)[0], set()
    for seed in range(20):
        with mh.ablate(model, [(0, 0)], by="resample", seed=seed):
            other = model(x)[0]
        source = (other[:, None] == plain).all(-1).int().argmax(1)
        assert not (source == torch.arange(rows)).any()
        assert sorted(source.tolist()) == [*range(rows)]
        drawn.add(tuple(source.tolist()))
    assert len(drawn) > 1 or rows == 2  # of which there is one


@torch.no_grad()
def test_cut_links_are_gone_and_the_row_is_made_whole():
    model = llama()
    with mh.record(model) as before:
        model(IDS)
    with mh.record(model) as after, mh.cut(model, [(1, 2), (1, 4)], links=mh.offset(-1)):
        model(IDS)
    for head in range(6):
        old, new = before.weights(1, head), after.weights(1, head)
        if head in (2, 4):
            left = old * (1 - torch.diag(torch.ones(10), -1))
            torch.testing.assert_close(new, left / left.sum(-1, keepdim=True))
        else:
            torch.testing.assert_close(new, old)
    assert not torch.allclose(before.weights(2, 0), after.weights(2, 0))  # those behind it notice


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gpt2", "torch"])
def test_nothing_left_to_see_gives_nothing(family):
    links = mh.causal() | mh.offset(0) | ~mh.causal()
    if family == "torch":
        model = nn.MultiheadAttention(8, 2, batch_first=True).eval()
        x = torch.randn(1, 5, 8)
        with mh.cut(model, [(0, 0), (0, 1)], links=links):
            out, _ = model(x, x, x, need_weights=False)
        torch.testing.assert_close(out, model.out_proj.bias.expand(1, 5, 8))
        return
    if family == "llama":
        model, heads = llama(), 6
    else:
        config = GPT2Config(vocab_size=31, n_positions=16, n_embd=24, n_layer=2, n_head=4)
        model, heads = GPT2LMHeadModel(config).eval(), 4
    every = [(0, head) for head in range(heads)]
    with mh.ablate(model, every):
        silent = model(IDS).logits
    with mh.cut(model, every, links=links):
        torch.testing.assert_close(model(IDS).logits, silent)


@torch.no_grad()
@pytest.mark.parametrize("pairs", [
    [(np.int64(1), np.int64(2))], (np.int32(1), np.int32(2)), [[1, 2]], np.array([[1, 2]]),
    torch.tensor([[1, 2]]),
])  # fmt: skip
def test_heads_as_a_table_has_them(pairs):
    model = llama()
    with mh.ablate(model, [(1, 2)]):
        expected = model(IDS).logits
    with mh.ablate(model, pairs):
        assert torch.equal(model(IDS).logits, expected)


class Recomputed(torch.autograd.Function):
    """A checkpoint as other libraries write their own."""

    @staticmethod
    def forward(ctx, run, x):
        return run(x)

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError


CHECKPOINTS = {
    "reentrant": lambda run, x: checkpoint(run, x, use_reentrant=True),
    "not reentrant": lambda run, x: checkpoint(run, x, use_reentrant=False),
    "another's": Recomputed.apply,
}
SURGERIES = {
    "ablate": lambda m, x: mh.ablate(m, [(0, 0)]),
    "cut": lambda m, x: mh.cut(m, [(0, 0)], links=mh.offset(0)),
    "importance": lambda m, x: mh.head_importance(m, [x], lambda out, _: out.sum()),
}


class Checkpointed(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.attn, self.how = mh.MultiHeadAttention(8, 2, out_bias=False), CHECKPOINTS[how]

    def forward(self, x):
        return self.how(self.attn, x)


@pytest.mark.parametrize("kind", SURGERIES)
@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_checkpointed_module_is_refused_before_its_backward(how, kind):
    """Which may come after the with statement, when nothing is cut any more."""
    model, x = Checkpointed(how), torch.randn(1, 5, 8, requires_grad=True)
    with pytest.raises(ValueError, match="switch checkpointing off"), SURGERIES[kind](model, x):
        model(x)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_checkpoint_without_a_backward_is_let_be(how):
    model, x = Checkpointed(how), torch.randn(1, 5, 8)
    with torch.no_grad(), mh.ablate(model, [(0, 0), (0, 1)]):
        assert not model(x).any()


def test_saved_tensors_kept_elsewhere_are_no_checkpoint():
    model, x = mh.MultiHeadAttention(8, 2), torch.randn(1, 5, 8, requires_grad=True)
    with torch.autograd.graph.save_on_cpu(), mh.ablate(model, [(0, 0), (0, 1)]):
        model(x).sum().backward()
    assert not x.grad.any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: mh.ablate(m, [(9, 0)]), "no layer 9 was called"),
        (lambda m: mh.ablate(m, [(0, 9)]), "has heads 0 to 5, but head 9"),
        (lambda m: mh.ablate(m, [3]), "pairs of layer and head"),
        (lambda m: mh.ablate(m, None), "pairs of layer and head, but None came"),
        (lambda m: mh.ablate(m, 3), "pairs of layer and head, but 3 came"),
        (lambda m: mh.ablate(m, [(0, True)]), "pairs of layer and head, but \\(0, True\\) came"),
        (lambda m: mh.ablate(m, (False, 1)), "pairs of layer and head, but False came"),
        (lambda m: mh.ablate(m, [(0, 1.0)]), "pairs of layer and head, but \\(0, 1.0\\) came"),
        (lambda m: mh.ablate(m, [(0, 0, 0)]), "pairs of layer and head"),
        (lambda m: mh.ablate(m, "0.1"), "pairs of layer and head, but '0.1' came"),
        (lambda m: mh.cut(m, None, links=mh.offset(-1)), "pairs of layer and head, but None came"),
        (lambda m: mh.ablate(m, [(0, 0)], seed="a"), "seed is a whole number, but 'a' came"),
        (lambda m: mh.ablate(m, [(0, 0)], by=None), "by must be one of"),
        (lambda m: mh.ablate(m, [(0, 0)], by=["zero"]), "by must be one of"),
        (lambda m: mh.ablate(m, [(0, 0)], by="noise"), "'zero', 'mean', 'resample'"),
        (lambda m: mh.cut(m, [(0, 0)], links=3), "links are a mask"),
        (lambda m: mh.ablate("model", [(0, 0)]), "a model is an nn.Module"),
    ],
)
def test_bad_input(call, message):
    model = llama()
    with pytest.raises(ValueError, match=message), torch.no_grad(), call(model):
        model(IDS)
    torch.testing.assert_close(model(IDS).logits, model(IDS).logits)


@torch.no_grad()
def test_a_mean_over_a_single_step_is_refused():
    model = One()
    with pytest.raises(ValueError, match="needs other rows"), mh.ablate(model, [(0, 0)], by="mean"):
        model(torch.randn(1, 1, 4))


@pytest.mark.parametrize(
    "links", [mh.prefix(1), mh.prefix(9), mh.offset(-2), mh.window(2)], ids=str
)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
@torch.no_grad()
def test_links_stand_where_they_stand_whatever_the_cache(name, kind, links):
    """A cache that slides, or one of fixed length: the same as without any."""
    model, ids = build(SEEN[name]), torch.randint(3, 23, (1, 13))
    with mh.cut(model, [(0, 1)], links=links):
        expected = model(ids).logits[:, -1]
    fixed = {"max_cache_len": 21} if kind == "static" else {}
    cache = (StaticCache if fixed else DynamicCache)(config=model.config, **fixed)
    with mh.cut(model, [(0, 1)], links=links):
        for part in ids.split([11, 1, 1], dim=1):
            found = model(part, past_key_values=cache).logits[:, -1]
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    with mh.cut(model, [(0, 1)], links=links):  # another text, in the same with statement or not
        torch.testing.assert_close(model(ids).logits[:, -1], expected)
        for _ in range(2):  # and another again from an empty cache of the same kind
            cache = (StaticCache if fixed else DynamicCache)(config=model.config, **fixed)
            found = model(ids, past_key_values=cache).logits[:, -1]
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


class Watching(torch.nn.Module):
    """A model that looks at its own layer while it works."""

    def __init__(self):
        super().__init__()
        self.attn = mh.MultiHeadAttention(32, 4, mask=mh.causal())

    def forward(self, x):
        return self.attn.observe(x, stats=("entropy", mh.mass(mh.offset(-1), name="previous")))


@torch.no_grad()
def test_a_model_that_observes_is_cut_ablated_and_recorded_as_one_that_does_not():
    torch.manual_seed(0)
    model, x = Watching(), torch.randn(2, 9, 32)
    plain, seen = model(x)
    with mh.cut(model, [(0, 1)], links=mh.offset(-1)):
        out, cut = model(x)
        assert torch.equal(out, model.attn(x))
    assert not torch.allclose(out, plain)
    assert cut["previous"][:, 1].abs().max() == 0
    assert torch.allclose(cut["previous"][:, 2:], seen["previous"][:, 2:], atol=1e-6)
    with mh.ablate(model, [(0, 1)]):
        out, kept = model(x)
        assert torch.equal(out, model.attn(x))
    assert torch.equal(kept["previous"], seen["previous"])  # its weights are what they were
    with mh.record(model) as rec:
        out, again = model(x)
    assert [layer.name for layer in rec.layers] == ["attn"]
    assert torch.equal(out, plain)
    assert torch.equal(again.entropy, seen.entropy)
    assert torch.allclose(rec[0]["entropy"], seen.entropy, atol=1e-5)


class Latents(torch.nn.Module):
    """Three latents that read a text, in a layer whose name says nothing of it."""

    def __init__(self, queries):
        super().__init__()
        self.latents = torch.nn.Parameter(torch.randn(1, 2, queries, 8))

    def forward(self, x):
        keys = x.unflatten(-1, (2, 8)).transpose(1, 2)
        query = self.latents.expand(len(x), -1, -1, -1)
        return F.scaled_dot_product_attention(query, keys, keys)


@torch.no_grad()
@pytest.mark.parametrize("queries", [1, 3, 7])
def test_what_reads_another_text_is_cut_at_every_call(queries):
    torch.manual_seed(0)
    model, x = Latents(queries), torch.randn(2, 5, 16)
    without = model(x[:, 1:])
    with mh.cut(model, [(0, 0), (0, 1)], links=mh.prefix(1)):
        for _ in range(3):
            assert torch.allclose(model(x), without, atol=1e-6)


@torch.no_grad()
def test_observing_by_a_known_lse_is_refused_while_heads_are_cut():
    q = torch.randn(1, 2, 5, 8)

    class Known(torch.nn.Module):
        def forward(self, q):
            return mh.observe(q, q, q, lse=torch.zeros(1, 2, 5)).out

    model = Known()
    assert model(q).shape == q.shape
    with mh.cut(model, [(0, 0)], links=mh.prefix(1)), pytest.raises(ValueError, match="leave lse="):
        model(q)
