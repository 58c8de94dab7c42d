"""Attention modules of transformers, each inside a small model of its family that makes the masks.

A hook keeps what the model gives its attention modules and what they answer. Weights are random,
and large enough for masks and positions to matter.
"""

import torch
from transformers import AutoConfig, AutoModel

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
