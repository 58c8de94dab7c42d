"""Rope for longer texts: each scaling turns as transformers does, with published settings."""

import pytest
import torch
from heads import BATCH, HEADS, TOKENS, heads
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import modeling_llama

from multihead.positions import linear, llama3, ntk, rope, yarn


def llama_config(base, head_dim, **parameters):
    parameters.setdefault("rope_type", "default")
    return LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=131_072,
        rope_parameters={"rope_theta": base, **parameters},
    )


def hf_yarn(factor, length, **more):
    names = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    return names | more


LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
DEEPSEEK = {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.707}
PUBLISHED = {
    "Llama 2": (128, rope(), {}),
    "linear": (128, rope(scaling=linear(4)), {"rope_type": "linear", "factor": 4.0}),
    "Llama 3.1": (128, rope(500_000, scaling=llama3(8)), LLAMA31),
    "Llama 3.2": (64, rope(500_000, scaling=llama3(32)), LLAMA31 | {"factor": 32.0}),
    "Qwen 2.5": (
        128,
        rope(1_000_000, scaling=yarn(4, original_length=32_768)),
        hf_yarn(4.0, 32_768),
    ),
    "DeepSeek": (
        64,
        rope(scaling=yarn(40, original_length=4096, mscale=1.0, mscale_all_dim=0.707)),
        hf_yarn(40.0, 4096, **DEEPSEEK),
    ),
    "gpt-oss": (
        64,
        rope(150_000, scaling=yarn(32, original_length=4096, truncate=False)),
        hf_yarn(32.0, 4096, truncate=False),
    ),
    "yarn, own betas and factor": (
        64,
        rope(
            scaling=yarn(8, original_length=2048, beta_fast=16, beta_slow=2, attention_factor=1.25)
        ),
        hf_yarn(8.0, 2048, beta_fast=16, beta_slow=2, attention_factor=1.25),
    ),
    "yarn, all pairs fast": (
        8,
        rope(100, scaling=yarn(4, original_length=100_000)),
        hf_yarn(4.0, 100_000),
    ),
    "yarn, shorter than a turn": (8, rope(scaling=yarn(2, original_length=4)), hf_yarn(2.0, 4)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_frequencies_and_amplitude_are_those_of_transformers(name):
    head_dim, turn, parameters = PUBLISHED[name]
    config = llama_config(turn.base, head_dim, **parameters)
    embedding = modeling_llama.LlamaRotaryEmbedding(config)
    assert_close(turn.frequencies(head_dim).float(), embedding.inv_freq, rtol=1e-6, atol=0)
    amplitude = turn.scaling.amplitude if turn.scaling else 1.0
    assert amplitude == pytest.approx(embedding.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("name", PUBLISHED)
def test_rotation_is_that_of_transformers(name):
    head_dim, turn, parameters = PUBLISHED[name]
    x = heads(BATCH, HEADS, TOKENS, head_dim, dtype=torch.float32)
    positions = torch.tensor([[0, 1, 2, 30, 31], [7, 5, 6, 100, 9]])
    embedding = modeling_llama.LlamaRotaryEmbedding(llama_config(turn.base, head_dim, **parameters))
    expected, _ = modeling_llama.apply_rotary_pos_emb(x, x, *embedding(x, positions))
    assert_close(turn(x, positions), expected, rtol=1e-5, atol=2e-5)  # theirs has float32 angles


def test_ntk_is_the_dynamic_one_of_transformers_at_a_fixed_length():
    config = llama_config(10_000.0, 64, rope_type="dynamic", factor=1.0)
    longer = int(2.5 * config.max_position_embeddings)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=longer)
    got = rope(scaling=ntk(2.5)).frequencies(64)
    assert_close(got.float(), expected, rtol=1e-6, atol=0)
    assert_close(got, rope(10_000 * 2.5 ** (64 / 62)).frequencies(64), rtol=1e-12, atol=0)


def test_a_single_pair_turns_under_every_scaling():
    for scaling in (linear(2), ntk(2), yarn(2, original_length=64), llama3(2)):
        assert rope(scaling=scaling).frequencies(2).isfinite().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear(0.5), r"factor must be 1 or more; give .*\n  got linear\(0.5\)"),
        (lambda: ntk(0), "factor must be 1 or more"),
        (lambda: yarn(0.5, original_length=64), "factor must be 1 or more"),
        (lambda: yarn(2, original_length=0), "original_length must be above 0"),
        (lambda: yarn(2, original_length=64, beta_fast=1, beta_slow=32), "beta_fast must be above"),
        (
            lambda: yarn(2, original_length=64, mscale=1.0),
            "mscale_all_dim must come together; give",
        ),
        (
            lambda: yarn(
                2, original_length=64, mscale=1.0, mscale_all_dim=1.0, attention_factor=1.0
            ),
            "both set the amplitude; give one",
        ),
        (lambda: llama3(8, low=4, high=1), "high must be above low"),
        (lambda: llama3(8, original_length=0), "original_length must be above 0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
