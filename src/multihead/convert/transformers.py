"""Attention modules of transformers in; the package itself is never imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..layer import MultiHeadAttention
from ..masks import Mask, causal, window
from ..positions import Rope, Scaling, linear, llama3, rope, yarn
from .weights import give, load, projection, take


def from_transformers(module: nn.Module) -> MultiHeadAttention:
    """The layer that does what an attention module of transformers does, its weights copied.

        GPT2Attention                            c_attn, c_proj; its cross-attention too
        LlamaAttention, MistralAttention,        q_proj, k_proj, v_proj, o_proj; rope of the config,
        Qwen2Attention, Qwen3Attention,          q_norm and k_norm, sliding_window w as
        Gemma2Attention, GptOssAttention         causal() & window(w), softcap, sinks
        BertAttention                            self.query, self.key, self.value, output.dense

    The mask that the model around it would make is the layer's own: call it as `attn(x)`, with a
    mask for padding alone, `attn(x, mask=mh.padding(lengths))`, and `positions=` where tokens do
    not count from 0. Attention stays, what stands around it does not: the dropout after the
    projection out (GPT-2, BERT), BERT's residual and LayerNorm.

    >>> from transformers.models.llama import LlamaConfig, modeling_llama
    >>> config = LlamaConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=2)
    >>> from_transformers(modeling_llama.LlamaAttention(config, layer_idx=0))
    MultiHeadAttention(
      32, 4, num_kv_heads=2, head_dim=8, mask=causal(), rope=rope(10000)
      (qkv): Linear(in_features=32, out_features=64, bias=False)
      (out): Linear(in_features=32, out_features=32, bias=False)
    )
    """
    kind = type(module)
    family = FAMILIES.get(kind.__name__) if kind.__module__.startswith("transformers.") else None
    if family is None:
        raise _unknown(module)
    return family(module).train(module.training)


def _gpt2(module: Any) -> MultiHeadAttention:
    crosses = module.is_cross_attention
    layer = MultiHeadAttention(
        module.embed_dim, module.num_heads, d_context=module.embed_dim if crosses else None,
        dropout=module.attn_dropout.p, mask=None if crosses else _looking_back(module),
        scale=_scale(module, module.head_dim), device="meta",
    )  # fmt: skip
    if crosses:
        load(layer.q, module, "q_attn")
        load(layer.kv, module, "c_attn")
    else:
        load(layer.qkv, module, "c_attn")
    load(layer.out, module, "c_proj")
    return layer


def _llama(module: Any) -> MultiHeadAttention:
    head_dim = module.head_dim
    query, key = projection(module, "q_proj"), projection(module, "k_proj")
    layer = MultiHeadAttention(
        query.in_features, query.out_features // head_dim,
        num_kv_heads=key.out_features // head_dim, head_dim=head_dim,
        dropout=module.attention_dropout or 0.0, mask=_looking_back(module), rope=_rope(module),
        qk_norm=hasattr(module, "q_norm"), sinks=hasattr(module, "sinks"),
        softcap=getattr(module, "attn_logit_softcapping", None),
        scale=_scale(module, head_dim), device="meta",
    )  # fmt: skip
    load(layer.qkv, module, "q_proj", "k_proj", "v_proj")
    load(layer.out, module, "o_proj")
    for ours, name in ((layer.q_norm, "q_norm"), (layer.k_norm, "k_norm")):
        if ours is not None:
            theirs = getattr(module, name)
            give(ours, "weight", take(theirs, "weight"))
            ours.eps = theirs.variance_epsilon
    if layer.sinks is not None:
        give(layer, "sinks", take(module, "sinks"))
    return layer


def _bert(module: Any) -> MultiHeadAttention:
    inner = module.self
    _check_absolute(inner)
    crosses = module.is_cross_attention
    layer = MultiHeadAttention(
        inner.query.in_features, inner.num_attention_heads,
        d_context=inner.key.in_features if crosses else None, head_dim=inner.attention_head_size,
        dropout=inner.dropout.p, mask=_looking_back(inner) if inner.is_causal else None,
        scale=_scale(inner, inner.attention_head_size), device="meta",
    )  # fmt: skip
    if crosses:
        load(layer.q, inner, "query")
        load(layer.kv, inner, "key", "value")
    else:
        load(layer.qkv, inner, "query", "key", "value")
    load(layer.out, module.output, "dense")
    return layer


# A new family is one more line here, and one in the tests.
FAMILIES: dict[str, Callable[[Any], MultiHeadAttention]] = {
    "GPT2Attention": _gpt2,
    "LlamaAttention": _llama,
    "MistralAttention": _llama,
    "Qwen2Attention": _llama,
    "Qwen3Attention": _llama,
    "Gemma2Attention": _llama,
    "GptOssAttention": _llama,
    "BertAttention": _bert,
}


# ---- what the module and its config say ---------------------------------------------------------


def _scale(module: Any, head_dim: int) -> float | None:
    return None if module.scaling == head_dim**-0.5 else module.scaling


def _check_absolute(module: Any) -> None:
    """BERT's relative positions are added to the scores; absolute ones, before the first layer."""
    for owner, where in ((module, "module"), (getattr(module, "config", None), "config")):
        kind = getattr(owner, "position_embedding_type", None)
        if kind not in (None, "absolute"):
            raise ValueError(
                "position_embedding_type must be 'absolute': other kinds add learnt distances to "
                "the scores, which the layer does not; keep the module, or train one with "
                f"absolute positions.\n  {where}.position_embedding_type {kind!r}"
            )


def _looking_back(module: Any) -> Mask:
    """causal(), and a window where this layer has one: w keys, itself among them."""
    config = module.config
    if not (module.is_causal and getattr(config, "is_causal", True)):
        raise ValueError(
            f"{type(module).__name__} looks back, but is_causal is False and transformers leaves "
            "it to the mask of each call what that means; convert it with is_causal=True, then "
            "set attn.mask.\n"
            f"  module.is_causal {module.is_causal}  "
            f"config.is_causal {getattr(config, 'is_causal', True)}"
        )
    # Mistral's layers all slide, as the config says; of the others each knows of itself.
    slides = config if type(module).__name__ == "MistralAttention" else module
    width = getattr(slides, "sliding_window", None)
    return causal() if width is None else causal() & window(width)


def _rope(module: Any) -> Rope:
    """The rope that the model of this config makes for its layers, half-split, over whole heads."""
    given = getattr(module.config, "rope_parameters", None) or {}
    kind = given.get("rope_type", "none")
    make = SCALINGS.get(kind)
    partial = given.get("partial_rotary_factor") or 1.0
    if make is None or partial != 1.0:
        raise ValueError(
            "rope_parameters of the config must turn whole heads and be of a type that rope has "
            f"({', '.join(SCALINGS)}), and these are not; build the layer by hand, with a rope of "
            f"your own.\n  {type(module).__name__}: rope_parameters {given}"
        )
    return rope(float(given["rope_theta"]), scaling=make(module.config, given))


def _yarn(config: Any, given: dict[str, Any]) -> yarn:
    length = _original_length(config, given)
    factor = given["factor"]
    scale = given.get("attention_factor")
    both = given.get("mscale") and given.get("mscale_all_dim") and scale is None
    return yarn(
        config.max_position_embeddings / length if factor is None else factor,
        original_length=length,
        beta_fast=given.get("beta_fast") or 32.0,
        beta_slow=given.get("beta_slow") or 1.0,
        attention_factor=scale,
        mscale=given["mscale"] if both else None,
        mscale_all_dim=given["mscale_all_dim"] if both else None,
        truncate=given.get("truncate", True),
    )


def _llama3(config: Any, given: dict[str, Any]) -> llama3:
    return llama3(
        given["factor"],
        low=given["low_freq_factor"],
        high=given["high_freq_factor"],
        original_length=_original_length(config, given),
    )


def _original_length(config: Any, given: dict[str, Any]) -> int:
    return given.get("original_max_position_embeddings") or config.max_position_embeddings


SCALINGS: dict[str, Callable[[Any, dict[str, Any]], Scaling | None]] = {
    "default": lambda config, given: None,
    "linear": lambda config, given: linear(given["factor"]),
    "yarn": _yarn,
    "llama3": _llama3,
}


def _unknown(module: nn.Module) -> ValueError:
    kind = type(module)
    if kind.__name__ in ("BertSelfAttention", "BertCrossAttention"):
        return ValueError(
            f"{kind.__name__} has no projection out, and attention here ends in one; "
            "pass the BertAttention around it, which has."
        )
    return ValueError(
        f"from_transformers takes an attention module of transformers, one of "
        f"{', '.join(FAMILIES)}; pass one, such as model.model.layers[0].self_attn, or copy the "
        "weights by hand:\n"
        "  attn = mh.MultiHeadAttention(d_model, num_heads, bias=False)  # or biases likewise\n"
        "  attn.qkv.weight.data = torch.cat([query.weight, key.weight, value.weight])\n"
        "  attn.out.weight.data = out.weight\n"
        f"  came: {kind.__module__}.{kind.__qualname__}"
    )
