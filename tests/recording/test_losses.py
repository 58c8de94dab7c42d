"""A loss is told where it means something: of the next token, by a model that has not seen it."""

import pytest
import torch
import torch.nn.functional as F
from architectures import SEEN, build, inputs
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2ForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

import multihead as mh
from multihead.recording.losses import Losses

IDS = torch.randint(0, 31, (2, 10), generator=torch.Generator().manual_seed(0))
SIZES = {"vocab_size": 37, "hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2}


@torch.no_grad()
def test_a_model_that_sees_the_next_token_has_none():
    model = BertForMaskedLM(BertConfig(**SIZES, num_hidden_layers=1)).eval()
    with mh.record(model) as rec:
        model(IDS)
    assert rec.loss is None


def by_row(logits, targets):
    """−ln p of a target by its own row, (batch, row)."""
    return F.cross_entropy(logits.mT, targets, reduction="none")


@torch.no_grad()
@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
@pytest.mark.parametrize("given", ["decoder_input_ids", "labels", "both", "labels, some left out"])
def test_a_decoder_has_one_of_its_own_text(name, given):
    model, called = build(SEEN[name]), inputs(SEEN[name].kind)
    ids = called.pop("decoder_input_ids")
    labels = torch.cat([ids[:, 1:], ids[:, :1]], 1)
    if given != "labels" and "left out" not in given:
        called["decoder_input_ids"] = ids
    if given != "decoder_input_ids":
        called["labels"] = labels.clone()
        if "left out" in given:
            called["labels"][:, 2] = -100
    with mh.record(model) as rec:
        logits = model(**called).logits
    tokens = rec.ids
    assert tokens.shape == ids.shape
    assert torch.equal(tokens[:, 1:], labels[:, :-1]) or "left out" in given
    expected = by_row(logits[:, :-1], tokens[:, 1:])
    if "left out" in given:
        expected[:, 2] = torch.nan
    assert rec.loss[:, 0].isnan().all()
    torch.testing.assert_close(rec.loss[:, 1:], expected, equal_nan=True)


@torch.no_grad()
def test_a_masked_model_has_one_where_labels_are():
    model = BertForMaskedLM(BertConfig(**SIZES, num_hidden_layers=1)).eval()
    labels = torch.where(torch.arange(10) % 3 == 0, IDS, -100)
    real = torch.arange(10) < torch.tensor([[10], [7]])
    with mh.record(model) as rec:
        logits = model(IDS, labels=labels, attention_mask=real.long()).logits
    expected = by_row(logits, labels.clamp(min=0)).masked_fill((labels < 0) | ~real, torch.nan)
    torch.testing.assert_close(rec.loss, expected, equal_nan=True)


@torch.no_grad()
def test_labels_left_out_have_none():
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=1)).eval()
    labels = IDS.clone()
    labels[:, 3:5] = -100
    with mh.record(model) as rec:
        logits = model(IDS, labels=labels).logits
    expected = by_row(logits[:, :-1], IDS[:, 1:])
    expected[:, 2:4] = torch.nan
    torch.testing.assert_close(rec.loss[:, 1:], expected, equal_nan=True)


class Plain(nn.Module):
    """Ids in, a tensor out: logits, or no more than what is inside."""

    def __init__(self, width, head):
        super().__init__()
        self.tokens, self.places = nn.Embedding(37, width), nn.Embedding(16, width)
        self.head = nn.Linear(width, 37) if head else nn.Identity()

    def forward(self, ids):
        x = (self.tokens(ids) + self.places(torch.arange(ids.shape[1])))[:, None]
        return self.head(F.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0])


@torch.no_grad()
@pytest.mark.parametrize("width", [40, 16])  # as many as there are places, too
def test_a_tensor_is_logits_only_where_it_speaks_of_the_vocabulary(width):
    torch.manual_seed(0)
    hidden, model = Plain(width, head=False), Plain(width, head=True)
    with mh.record(hidden) as rec:
        hidden(IDS % 16)
    assert rec.loss is None
    with mh.record(model) as rec:
        logits = model(IDS)
    torch.testing.assert_close(rec.loss[:, 1:], by_row(logits[:, :-1], IDS[:, 1:]))


@torch.no_grad()
def test_logits_of_classes_are_none():
    model = GPT2ForTokenClassification(
        GPT2Config(vocab_size=37, n_embd=16, n_layer=1, n_head=2, num_labels=33, n_positions=16)
    ).eval()
    with mh.record(model) as rec:
        model(IDS)
    assert rec.loss is None


@torch.no_grad()
def test_a_causal_model_has_one():
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=1)).eval()
    with mh.record(model) as rec:
        logits = model(IDS).logits
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten(), reduction="none"
    )
    torch.testing.assert_close(rec.loss[:, 1:].flatten(), expected)


def test_what_is_asked_too_early_or_wrongly_is_told():
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=1)).eval()
    with torch.no_grad(), mh.record(model) as rec:
        model(IDS)
        with pytest.raises(ValueError, match="look after the with statement"):
            rec.weights(0, 0)
    with pytest.raises(ValueError, match="no layer 7 with a head 0"):
        mh.record_many(model, [IDS]).examples(7, 0)


@torch.no_grad()
def test_places_that_are_no_word_have_none():
    """As images stand among words, −200 say; and no text that has words beyond the last has one."""
    torch.manual_seed(0)
    logits = torch.randn(2, 4, 5)
    ids = torch.tensor([[1, -200, 2, 3], [1, 2, 3, 4]])
    losses = Losses()
    losses.add(ids, logits, None)
    found = losses.joined(None)
    assert found.isnan().tolist() == [[True, True, False, False], [True, False, False, False]]
    expected = F.cross_entropy(logits[0, 1:3], ids[0, 2:], reduction="none")
    torch.testing.assert_close(found[0, 2:], expected)
    losses = Losses()
    losses.add(ids.clamp(min=0) + 2, logits, None)
    assert losses.joined(None) is None
    losses.add(ids[:, :1].clamp(min=0), logits[:, :1], None)  # nor what comes behind them
    assert losses.joined(None) is None
