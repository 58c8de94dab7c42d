"""A loss is told where it means something: of the next token, by a model that has not seen it."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import multihead as mh

IDS = torch.randint(0, 31, (2, 10), generator=torch.Generator().manual_seed(0))
SIZES = {"vocab_size": 37, "hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2}


@torch.no_grad()
def test_a_model_that_sees_the_next_token_has_none():
    model = BertForMaskedLM(BertConfig(**SIZES, num_hidden_layers=1)).eval()
    with mh.record(model) as rec:
        model(IDS)
    assert rec.loss is None


@torch.no_grad()
def test_tokens_of_the_encoder_are_not_the_decoders():
    config = T5Config(
        vocab_size=37, d_model=16, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).eval()
    with mh.record(model) as rec:
        model(input_ids=IDS, labels=IDS[:, :6].clone())
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
