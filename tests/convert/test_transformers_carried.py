"""What of a transformers module comes along into the layer: masks, dropout, norms and weights."""

import pytest
import torch
from small_models import BATCH, TOKENS, WINDOW, attention_modules, build

import multihead as mh
from multihead.convert import from_transformers


def test_a_window_is_counted_as_transformers_counts_it():
    layer = from_transformers(attention_modules(build("mistral"))[0])
    assert layer.mask == mh.causal() & mh.window(WINDOW)
    module = attention_modules(build("mistral, no window"))[0]
    assert from_transformers(module).mask == mh.causal()


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "gemma2", "gpt_oss"])
def test_each_layer_has_the_mask_of_its_own_type(case):
    masks = [from_transformers(module).mask for module in attention_modules(build(case))]
    assert masks == [mh.causal(), mh.causal() & mh.window(WINDOW)]


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "gpt_oss", "bert"])
def test_dtype_training_and_what_is_trained_come_along(family):
    model = build(family, dtype=torch.bfloat16)
    module = attention_modules(model)[0]
    assert not from_transformers(module).training
    ours = from_transformers(module.train())
    assert ours.training
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    assert all(p.requires_grad for p in ours.parameters())
    ours(torch.randn(BATCH, TOKENS, ours.d_model, dtype=torch.bfloat16)).sum().backward()
    module.requires_grad_(False)
    assert not any(p.requires_grad for p in from_transformers(module).parameters())
    with torch.no_grad():
        module.requires_grad_(True)
        assert all(p.requires_grad for p in from_transformers(module).parameters())


@pytest.mark.parametrize(
    ("case", "option"),
    [("gpt2", "attn_pdrop"), ("llama", "attention_dropout"), ("mistral", "attention_dropout"),
     ("bert", "attention_probs_dropout_prob")],
)  # fmt: skip
def test_dropout_comes_along(case, option):
    module = attention_modules(build(case, **{option: 0.375}))[0]
    assert from_transformers(module).dropout == 0.375


def test_norms_keep_their_epsilon():
    ours = from_transformers(attention_modules(build("qwen3"))[0])
    assert ours.q_norm.eps == ours.k_norm.eps == 1e-2


@pytest.mark.parametrize("case", ["gpt2", "llama", "bert"])
def test_weights_are_copied_and_no_random_number_is_drawn(case):
    module = attention_modules(build(case))[0]
    before, state = {k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()
    ours = from_transformers(module)
    assert torch.equal(state, torch.get_rng_state())
    for parameter in ours.parameters():
        parameter.data.zero_()
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
