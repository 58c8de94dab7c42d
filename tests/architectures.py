"""Small random models of transformers, one an architecture, and what to call them on.

Weights are random and large enough for masks and positions to matter. `maps` gives a model's own
weights in the order in which its layers run.
"""

import dataclasses

import torch
import transformers

BATCH, TOKENS, VOCABULARY, WINDOW = 2, 13, 37, 5

WIDE = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
PLAIN = {
    **WIDE,
    "num_attention_heads": 3,
    "hidden_size": 24,
    "num_key_value_heads": 3,
    "head_dim": 8,
}
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2,
    "intermediate_size": 8, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
SLIDES = {"sliding_window": WINDOW, "layer_types": ["full_attention", "sliding_attention"]}
BART = {
    "vocab_size": VOCABULARY, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
IMAGES = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 8,
    "image_size": 12, "patch_size": 4, "num_channels": 3,
}  # fmt: skip
SPEECH = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 8,
    "conv_dim": (8, 8), "conv_stride": (3, 2), "conv_kernel": (5, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": VOCABULARY,
}  # fmt: skip
WHISPER = {**BART, "num_mel_bins": 5, "max_source_positions": 11, "max_target_positions": 32}
DEEPSEEK = {
    **WIDE, "num_key_value_heads": 6, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 4, "v_head_dim": 7, "head_dim": None, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip


@dataclasses.dataclass
class Architecture:
    family: str
    options: dict
    kind: str = "decoder"  # decoder, encoder, both, images, speech, clip
    eager_alone: bool = False  # transformers has softcap and sinks in its eager attention
    left: bool = True  # whether it takes a text that is padded on the left


DECODERS = {
    "gpt2": Architecture("gpt2", {
        "vocab_size": VOCABULARY, "n_embd": 24, "n_head": 3, "n_layer": 2, "n_positions": 64,
        "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}),
    "gpt_neox": Architecture("gpt_neox", PLAIN),
    "llama": Architecture("llama", WIDE),
    "mistral": Architecture("mistral", {**WIDE, "sliding_window": WINDOW}),
    "qwen2": Architecture("qwen2", {**WIDE, "use_sliding_window": True, **SLIDES}),
    "qwen3": Architecture("qwen3", WIDE),
    "gemma2": Architecture("gemma2", {
        **WIDE, **SLIDES, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 1.5,
    }, eager_alone=True),
    "gemma3": Architecture("gemma3_text", {**WIDE, **SLIDES, "query_pre_attn_scalar": 5}),
    "phi": Architecture("phi", PLAIN),
    "phi3": Architecture("phi3", {**WIDE, "sliding_window": WINDOW}),
    "olmo2": Architecture("olmo2", WIDE),
    "gpt_oss": Architecture("gpt_oss", {
        **WIDE, **SLIDES, "num_local_experts": 2, "num_experts_per_tok": 1,
    }, eager_alone=True),
    "deepseek_v3": Architecture("deepseek_v3", DEEPSEEK),
    "opt": Architecture("opt", {**PLAIN, "ffn_dim": 8, "word_embed_proj_dim": 24}),
    "stablelm": Architecture("stablelm", {**WIDE, "head_dim": None}),
    "cohere": Architecture("cohere", WIDE),
    "granite": Architecture("granite", {**WIDE, "attention_multiplier": 0.3}),
    "starcoder2": Architecture("starcoder2", {**WIDE, "sliding_window": WINDOW}),
    "mixtral": Architecture("mixtral", {**WIDE, "num_local_experts": 2, "num_experts_per_tok": 1}),
}  # fmt: skip
ENCODERS = {
    "bert": Architecture("bert", BERT, "encoder"),
    "roberta": Architecture("roberta", BERT, "encoder", left=False),
    "distilbert": Architecture("distilbert", {
        "vocab_size": VOCABULARY, "dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 8,
        "max_position_embeddings": 64, "pad_token_id": 0}, "encoder"),
    "electra": Architecture("electra", {**BERT, "embedding_size": 8}, "encoder"),
    "albert": Architecture("albert", {**BERT, "embedding_size": 8}, "encoder"),
    "modernbert": Architecture("modernbert", {
        **BERT, "local_attention": 4, "layer_types": ["full_attention", "sliding_attention"],
        "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2,
    }, "encoder"),
}  # fmt: skip
BOTH = {
    "t5": Architecture("t5", {
        "vocab_size": VOCABULARY, "d_model": 24, "d_kv": 5, "d_ff": 8, "num_layers": 2,
        "num_heads": 3, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 11}, "both"),
    "bart": Architecture("bart", BART, "both"),
    "pegasus": Architecture("pegasus", BART, "both"),
    "marian": Architecture("marian", {**BART, "decoder_vocab_size": VOCABULARY}, "both"),
}  # fmt: skip
OTHERS = {
    "whisper": Architecture("whisper", WHISPER, "whisper"),
    "vit": Architecture("vit", IMAGES, "images"),
    "dinov2": Architecture("dinov2", IMAGES, "images"),
    "clip": Architecture("clip", {
        "text_config": {**BERT, "eos_token_id": 2}, "vision_config": IMAGES}, "clip"),
    "siglip": Architecture("siglip", {
        "text_config": {**BERT, "projection_size": 24}, "vision_config": IMAGES}, "clip"),
    "wav2vec2": Architecture("wav2vec2", SPEECH, "speech"),
    "hubert": Architecture("hubert", SPEECH, "speech"),
}  # fmt: skip
SEEN = {**DECODERS, **ENCODERS, **BOTH, **OTHERS}

_CLASSES = {
    "decoder": transformers.AutoModelForCausalLM,
    "encoder": transformers.AutoModel,
    "both": transformers.AutoModelForSeq2SeqLM,
    "whisper": transformers.AutoModelForSpeechSeq2Seq,
}


def build(architecture, implementation="sdpa", **more):
    torch.manual_seed(3)
    options = {**architecture.options, **more}
    config = transformers.AutoConfig.for_model(architecture.family, **options)
    kind = _CLASSES.get(architecture.kind, transformers.AutoModel)
    model = kind.from_config(config, attn_implementation=implementation).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                width = parameter[0].numel() if "embed" not in name else parameter.shape[-1]
                parameter.normal_(std=1.5 * width**-0.5)
            else:
                scales = "norm" in name.lower() or "ln_" in name
                parameter.normal_(std=0.3).add_(scales)
    return model


def implementations(architecture):
    return ["eager"] if architecture.eager_alone else ["sdpa", "eager"]


def inputs(kind, batch=BATCH, tokens=TOKENS):
    made = torch.Generator().manual_seed(4)
    ids = torch.randint(3, VOCABULARY, (batch, tokens), generator=made)
    images = torch.randn(batch, 3, 12, 12, generator=made)
    sound = torch.randn(batch, 101, generator=made)
    match kind:
        case "decoder" | "encoder":
            return {"input_ids": ids}
        case "both":
            return {"input_ids": ids, "decoder_input_ids": ids[:, :7].flip(1)}
        case "whisper":
            mel = torch.randn(batch, 5, 22, generator=made)
            return {"input_features": mel, "decoder_input_ids": ids[:, :7]}
        case "images":
            return {"pixel_values": images}
        case "speech":
            return {"input_values": sound}
        case "clip":
            return {"input_ids": ids, "pixel_values": images}


def maps(model, **given):
    """The model's own weights, (batch, heads, query, key) each, in the order of its layers."""
    model.set_attn_implementation("eager")
    for part in model.modules():
        if hasattr(part, "config"):  # some versions leave the copies of an encoder as they are
            part.config._attn_implementation = "eager"
    with torch.no_grad():
        out = model(**given, output_attentions=True)
    if hasattr(out, "vision_model_output"):
        return [*out.vision_model_output.attentions, *out.text_model_output.attentions]
    if out.get("encoder_attentions") is None:
        return list(out.attentions)
    pairs = zip(out.decoder_attentions, out.cross_attentions, strict=True)
    return [*out.encoder_attentions, *(one for pair in pairs for one in pair)]


def outputs(out):
    """Every tensor of numbers that a model gave."""
    found = []
    for value in out.to_tuple() if hasattr(out, "to_tuple") else (out,):
        if hasattr(value, "to_tuple"):
            found += outputs(value)
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            found.append(value)
    return found
