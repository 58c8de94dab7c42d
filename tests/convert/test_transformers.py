"""Attention modules of transformers, each inside a small model of its family that makes the masks.

A hook keeps what the model gives its attention modules and what they answer. The layer gets the
same hidden states and, where a text is padded, a mask for that: causality, windows and rope are its
own. Weights are random, and large enough for masks and positions to matter.
"""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.models.bert import modeling_bert
from transformers.models.phi import PhiConfig, modeling_phi

import multihead as mh
from multihead.convert import from_transformers
from multihead.convert.transformers import FAMILIES

BATCH, TOKENS, VOCABULARY, WINDOW = 2, 13, 23, 5

WIDE = {
    "vocab_size": VOCABULARY, "hidden_size": 18, "intermediate_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": 15, "n_head": 3, "n_layer": 2, "n_positions": 64,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 15, "num_attention_heads": 3, "num_hidden_layers": 2,
    "intermediate_size": 8, "max_position_embeddings": 64,
}  # fmt: skip
SLIDES = {"sliding_window": WINDOW, "layer_types": ["full_attention", "sliding_attention"]}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0}


def turned(**rope):
    return {**WIDE, "rope_parameters": {"rope_theta": 100.0, **rope}}


CASES = {
    "gpt2": ("gpt2", GPT2),
    "gpt2, scores not scaled": ("gpt2", {**GPT2, "scale_attn_weights": False}),
    "gpt2, scaled by layer": ("gpt2", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "gpt2, reordered": ("gpt2", {**GPT2, "reorder_and_upcast_attn": True}),
    "llama": ("llama", turned(rope_type="default")),
    "llama, biases": ("llama", {**turned(rope_type="default"), "attention_bias": True}),
    "llama, plain heads": (
        "llama", {**WIDE, "hidden_size": 36, "num_key_value_heads": 6, "head_dim": None}
    ),
    "llama, linear": ("llama", turned(rope_type="linear", factor=3.0)),
    "llama, llama3": (
        "llama",
        turned(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=32),
    ),
    "llama, yarn": ("llama", turned(**YARN, original_max_position_embeddings=32)),
    "llama, yarn, length of the config": ("llama", turned(**YARN, beta_fast=4, beta_slow=3)),
    "llama, yarn, factor of the config": (
        "llama", turned(**{**YARN, "factor": None}, original_max_position_embeddings=16)
    ),
    "llama, yarn, attention_factor": (
        "llama", turned(**YARN, attention_factor=1.25, mscale=1.0, mscale_all_dim=0.5)
    ),
    "llama, yarn, mscale": ("llama", turned(**YARN, mscale=1.0, mscale_all_dim=0.5)),
    "llama, yarn, not rounded": ("llama", turned(**YARN, truncate=False)),
    "mistral": ("mistral", {**WIDE, "sliding_window": WINDOW}),
    "mistral, no window": ("mistral", {**WIDE, "sliding_window": None}),
    "qwen2": ("qwen2", {**WIDE, "use_sliding_window": True, **SLIDES}),
    "qwen2, no window": ("qwen2", {**WIDE, "hidden_size": 60}),
    "qwen3": ("qwen3", {**WIDE, "use_sliding_window": True, **SLIDES, "rms_norm_eps": 1e-2}),
    "qwen3, biases": ("qwen3", {**WIDE, "attention_bias": True}),
    "gemma2": (
        "gemma2",
        {**WIDE, **SLIDES, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 1.5},
    ),
    "gemma2, no softcap": ("gemma2", {**WIDE, **SLIDES, "attn_logit_softcapping": None}),
    "gpt_oss": ("gpt_oss", {**WIDE, **EXPERTS, **SLIDES}),
    "bert": ("bert", BERT),
    "bert, decoder": ("bert", {**BERT, "is_decoder": True}),
}  # fmt: skip
EAGER_ALONE = ("gemma2", "gpt_oss")  # transformers has softcap and sinks in its eager attention


def build(case, implementation="eager", dtype=torch.float32, **more):
    family, options = CASES[case]
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **{**options, **more})
    experts = {"experts_implementation": "eager"} if family == "gpt_oss" else {}
    model = AutoModel.from_config(
        config, dtype=dtype, attn_implementation=implementation, **experts
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.normal_(std=0.5).add_("norm" in name.lower() or "ln_" in name)
    return model


def attention_modules(model):
    return [module for module in model.modules() if type(module).__name__ in FAMILIES]


class Call:
    """What an attention module got, and what its projection out gave."""

    def __init__(self, module):
        self.module = module
        out = {"GPT2Attention": "c_proj", "BertAttention": "output.dense"}
        self.hooks = [
            module.register_forward_pre_hook(self.enter, with_kwargs=True),
            module.get_submodule(out.get(type(module).__name__, "o_proj")).register_forward_hook(
                self.leave
            ),
        ]

    def enter(self, module, arguments, options):
        self.hidden = arguments[0] if arguments else options["hidden_states"]
        self.arguments, self.options = arguments, options

    def leave(self, module, arguments, out):
        self.out = out


def watch(model, **inputs):
    calls = [Call(module) for module in attention_modules(model)]
    with torch.no_grad():
        model(**inputs, use_cache=False)
    for call in calls:
        for hook in call.hooks:
            hook.remove()
    return calls


def texts():
    return torch.randint(VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(4))


def close(ours, theirs, atol):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


every_case = pytest.mark.parametrize(
    ("case", "implementation"),
    [(case, "eager") for case in CASES]
    + [(case, "sdpa") for case, (family, _) in CASES.items() if family not in EAGER_ALONE],
)


# ---- the same answers ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_case
def test_the_layer_answers_as_the_module_does(case, implementation, dtype):
    if (case, implementation, dtype) == ("gpt2, reordered", "eager", torch.float64):
        pytest.skip("transformers' reordered attention knows no float64")
    calls = watch(build(case, implementation, dtype), input_ids=texts())
    assert len(calls) == 2
    for call in calls:
        ours = from_transformers(call.module)
        # In float64 too, transformers takes cosines, norms and eager softmax in float32.
        close(ours(call.hidden), call.out, atol=5e-6)


@every_case
def test_padding_at_the_end(case, implementation):
    lengths = [TOKENS, 8]
    real = torch.arange(TOKENS) < torch.tensor(lengths)[:, None]
    for call in watch(build(case, implementation), input_ids=texts(), attention_mask=real.long()):
        out = from_transformers(call.module)(call.hidden, mask=mh.padding(lengths))
        close(out[real], call.out[real], atol=5e-6)


@every_case
def test_padding_at_the_start(case, implementation):
    real = torch.arange(TOKENS) >= torch.tensor([[0], [4]])
    positions = (real.cumsum(1) - 1).clamp(min=0)
    inputs = {"attention_mask": real.long(), "position_ids": positions}
    for call in watch(build(case, implementation), input_ids=texts(), **inputs):
        ours = from_transformers(call.module)
        places = {} if ours.rope is None else {"positions": positions}
        out = ours(call.hidden, mask=real[:, None, None, :], **places)
        close(out[real], call.out[real], atol=5e-6)


# Qwen3's norms are float32 always, and so is the softmax of Gemma 2's eager attention.
@pytest.mark.parametrize(
    "case", [case for case, (family, _) in CASES.items() if family not in ("qwen3", "gemma2")]
)
def test_with_exact_cosines_float64_agrees_to_the_last_digits(case):
    family = CASES[case][0]
    implementation = "eager" if family in EAGER_ALONE else "sdpa"
    for call in watch(build(case, implementation, torch.float64), input_ids=texts()):
        ours, out = from_transformers(call.module), call.out
        if ours.rope is not None:
            tables = ours.rope.tables(torch.arange(TOKENS)[None], ours.head_dim, torch.float64)
            if family != "gpt_oss":  # the others write each cosine twice
                tables = [torch.cat((t, t), -1) for t in tables]
            exact = {**call.options, "position_embeddings": tuple(tables)}
            out, _ = call.module(*call.arguments, **exact)
        close(ours(call.hidden), out, atol=1e-13)


@pytest.mark.parametrize(
    ("case", "more"), [("gpt2", {}), ("bert", {"is_decoder": True})], ids=["gpt2", "bert"]
)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_cross_attention(case, more, implementation):
    model = build(case, implementation, add_cross_attention=True, **more)
    context = torch.randn(BATCH, 7, 15)
    seen = torch.arange(7) < torch.tensor([[7], [4]])
    calls = watch(
        model, input_ids=texts(), encoder_hidden_states=context, encoder_attention_mask=seen.long()
    )
    crossing = [call for call in calls if call.module.is_cross_attention]
    assert (len(calls), len(crossing)) == (4, 2)
    for call in crossing:
        ours = from_transformers(call.module)
        assert ours.d_context == 15
        close(ours(call.hidden, context, mask=mh.padding([7, 4])), call.out, atol=5e-6)


def test_a_window_is_counted_as_transformers_counts_it():
    layer = from_transformers(attention_modules(build("mistral"))[0])
    assert layer.mask == mh.causal() & mh.window(WINDOW)
    module = attention_modules(build("mistral, no window"))[0]
    assert from_transformers(module).mask == mh.causal()


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "gemma2", "gpt_oss"])
def test_each_layer_has_the_mask_of_its_own_type(case):
    masks = [from_transformers(module).mask for module in attention_modules(build(case))]
    assert masks == [mh.causal(), mh.causal() & mh.window(WINDOW)]


def test_a_converted_layer_decodes_through_its_cache():
    call = watch(build("mistral"), input_ids=texts())[1]
    ours = from_transformers(call.module)
    cache = ours.new_cache(BATCH, TOKENS)
    steps = [ours(call.hidden[:, t : t + 1], cache=cache) for t in range(TOKENS)]
    close(torch.cat(steps, 1), call.out, atol=5e-6)


# ---- what comes along ---------------------------------------------------------------------------


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


# ---- what cannot come along ---------------------------------------------------------------------


def test_each_family_is_tried_here():
    tried = {type(m).__name__ for case in CASES for m in attention_modules(build(case))}
    assert tried == set(FAMILIES)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 5, "long_factor": [2.0] * 5,
         "original_max_position_embeddings": 32},
        {"rope_type": "default", "partial_rotary_factor": 0.5},
    ],
    ids=["dynamic", "longrope", "partial"],
)  # fmt: skip
def test_a_rope_that_we_do_not_have_is_an_error(rope):
    given = {"rope_theta": 100.0, **rope}
    module = attention_modules(build("llama", rope_parameters=given))[0]
    with pytest.raises(ValueError, match="default, linear, yarn, llama3") as caught:
        from_transformers(module)
    assert str(rope["rope_type"]) in str(caught.value).splitlines()[-1]


def test_half_of_bert_is_an_error_that_names_the_whole():
    module = attention_modules(build("bert"))[0]
    for half in (module.self, modeling_bert.BertCrossAttention(module.self.config)):
        with pytest.raises(ValueError, match="no projection out.* pass the BertAttention"):
            from_transformers(half)


@pytest.mark.parametrize("where", ["module", "config"])
@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_positions_of_bert_are_an_error(kind, where):
    module = attention_modules(build("bert"))[0]
    owner = module.self if where == "module" else module.self.config
    owner.position_embedding_type = "absolute"
    from_transformers(module)
    owner.position_embedding_type = kind
    with pytest.raises(
        ValueError, match=f"'absolute': .*; keep .*\n  {where}.position_embedding_type '{kind}'"
    ):
        from_transformers(module)


def test_another_module_is_an_error_that_says_which_there_are():
    config = PhiConfig(hidden_size=12, num_attention_heads=3, num_key_value_heads=3)

    class LlamaAttention(nn.Module):
        """Of the same name, but from somewhere else."""

    for module in (modeling_phi.PhiAttention(config, 0), build("llama"), LlamaAttention()):
        with pytest.raises(ValueError, match="by hand") as caught:
            from_transformers(module)
        assert all(name in str(caught.value) for name in FAMILIES)
        assert str(caught.value).endswith(type(module).__qualname__)


@pytest.mark.parametrize("where", ["module", "config"])
@pytest.mark.parametrize("case", ["gpt2", "llama", "bert, decoder"])
def test_a_decoder_told_to_look_both_ways_is_an_error(case, where):
    module = attention_modules(build(case))[0]
    inner = getattr(module, "self", module)
    if where == "module":
        inner.is_causal = False
    else:
        inner.config.is_causal = False
    if case == "bert, decoder" and where == "module":
        assert from_transformers(module).mask is None
        return
    with pytest.raises(ValueError, match="is_causal False"):
        from_transformers(module)


def test_parts_that_become_one_must_be_alike():
    module = attention_modules(build("llama, biases"))[0]
    module.k_proj.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"k_proj.weight: .* requires_grad False"):
        from_transformers(module)
    module.k_proj.weight.requires_grad_(True)
    module.v_proj.bias = None
    with pytest.raises(ValueError, match="one bias must be there"):
        from_transformers(module)


def test_a_projection_that_is_more_than_its_weight_is_an_error():
    class Adapted(nn.Linear):
        """Something is added to its output."""

    module = attention_modules(build("llama"))[0]
    module.v_proj = Adapted(18, 30)
    with pytest.raises(ValueError, match="v_proj must be a plain linear map.*\n.*Adapted"):
        from_transformers(module)
