"""Cut and see: ablation, cut links and importance against the same thing done by hand."""

import pytest
import torch
import torch.nn.functional as F
from puppets import VOCAB, Puppet
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

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


def test_importance_by_hand():
    model = Puppet(("induction", "even"), ("induction", "previous"))
    ids = torch.cat([torch.arange(9), torch.arange(9)])[None]

    def loss(output, batch):
        return F.cross_entropy(output[0, :-1], batch[0, 1:])

    rows = mh.head_importance(model, [ids], loss)
    found = {(row["layer"], row["head"]): row["importance"] for row in rows}
    assert found[0, 0] == pytest.approx(1, abs=1e-6)  # the only one of its layer that speaks
    assert found[0, 1] == 0
    assert found[1, 0] == pytest.approx(1, abs=1e-6)


def test_importance_is_the_gradient_of_a_gate():
    attn = mh.MultiHeadAttention(12, 3, mask=mh.causal(), head_gate="trained")
    x = torch.randn(1, 7, 12)
    attn(x).square().sum().backward()
    expected = attn.head_gate.grad.abs()
    rows = mh.head_importance(attn, [x], lambda out, _: out.square().sum())
    found = torch.tensor([row["importance"] for row in rows])
    torch.testing.assert_close(found, expected / expected.norm())


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = mh.MultiHeadAttention(8, 2)

    def forward(self, x):
        return checkpoint(self.attn, x, use_reentrant=False)


def test_a_checkpointed_module_is_refused():
    model, x = Checkpointed(), torch.randn(1, 5, 8, requires_grad=True)
    with pytest.raises(ValueError, match="switch checkpointing off"), mh.ablate(model, [(0, 0)]):
        model(x).sum().backward()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: mh.ablate(m, [(9, 0)]), "no layer 9 was called"),
        (lambda m: mh.ablate(m, [(0, 9)]), "has heads 0 to 5, but head 9"),
        (lambda m: mh.ablate(m, [3]), "pairs of layer and head"),
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


def test_importance_of_nothing_is_refused():
    with pytest.raises(ValueError, match="batches are empty"):
        mh.head_importance(llama(), [], lambda out, _: out.logits.sum())


@pytest.mark.parametrize(
    ("loss", "came"),
    [
        (lambda out, _: 0.3, "a float came"),
        (lambda out, _: out, "a Tensor|shape \\(1, 5, 8\\)"),
        (lambda out, _: out.detach().sum(), "no gradient"),
    ],
)
def test_a_loss_that_is_no_number_is_refused(loss, came):
    attn = mh.MultiHeadAttention(8, 2)
    with pytest.raises(ValueError, match=f"must give a tensor of one number.*({came})"):
        mh.head_importance(attn, [torch.randn(1, 5, 8)], loss)


@pytest.mark.parametrize("one", [IDS, {"input_ids": IDS}, "a text"])
def test_one_batch_in_place_of_a_list_is_refused(one):
    with pytest.raises(ValueError, match="put it into a list"):
        mh.record_many(llama(), one)
    with pytest.raises(ValueError, match="put it into a list"):
        mh.head_importance(llama(), one, lambda out, _: out.logits.sum())


@torch.no_grad()
def test_many_texts():
    model = Puppet(("previous", "random"))
    texts = [torch.randint(0, VOCAB, (2, 13)), torch.randint(0, VOCAB, (1, 17))]
    told = []
    corpus = mh.record_many(model, texts, examples=3, progress=told.append)
    assert told == [1, 2]
    assert corpus.texts == 3
    row = corpus.heads()[1]
    single = []
    for batch in texts:
        for one in batch:
            with mh.record(model) as rec:
                model(one[None])
            single.append(rec.heads()[1]["entropy"])
    single = torch.tensor(single, dtype=torch.float64)
    assert row["entropy"] == pytest.approx(float(single.mean()), rel=1e-5)
    half = 1.96 * float(single.std()) / 3**0.5
    assert row["entropy_high"] - row["entropy"] == pytest.approx(half, rel=1e-3)
    best = corpus.examples(0, 0)
    assert len(best) == 3
    assert all(one.key == one.query - 1 and one.weight > 0.9 for one in best)
    with pytest.raises(ValueError, match="batches are empty"):
        mh.record_many(model, [])
