"""A GGUF file of the llama family into a folder that transformers loads in a second.

The weights are kept in float32, bit for bit what the GGUF says: w = d·q + m with a 4-bit q. In
float16 the file would be half as large, 269 MB, but every fourth weight would be rounded: logits
move by 0.03 (their spread is 7), in bfloat16 by 0.16, and then a map is not that of the model.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # the token type of <|im_start|> and its like


def write(gguf: Path, folder: Path, report: Callable[[float], None]) -> None:
    """Write config, weights and tokenizer; `report` hears how much is done, 0 to 1."""
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    report(0.0)
    reader = GGUFReader(gguf)
    facts = {key: field.contents() for key, field in reader.fields.items()}
    weights = {}
    for done, tensor in enumerate(reader.tensors):
        name, weight = _weight(tensor.name, dequantize(tensor.data, tensor.tensor_type), facts)
        weights[name] = weight
        report(done / len(reader.tensors))
    config = _config(facts, tied="lm_head.weight" not in weights)
    _write_json(folder / "config.json", config)
    _write_tokenizer(facts, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    # safetensors makes a file that its owner alone may read; a cache may be shared.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
    report(1.0)


def _weight(name: str, values: np.ndarray, facts: dict[str, Any]) -> tuple[str, torch.Tensor]:
    """A tensor under the name that transformers has for it, and in its order of rows."""
    *place, kind, end = name.split(".")  # blk.3.attn_q.weight, or output_norm.weight
    if kind in ("attn_q", "attn_k"):
        count = "head_count" if kind == "attn_q" else "head_count_kv"
        values = half_split(values, facts[f"llama.attention.{count}"])
    ours = f"model.layers.{place[1]}.{IN_LAYER[kind]}" if place else TOP[kind]
    return f"{ours}.{end}", torch.from_numpy(np.array(values, dtype=np.float32))  # off the file


def half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a head from RoPE's interleaved order, GGUF's, to the half-split one.

    Which two rows turn together:   interleaved 0-1 2-3 4-5   half-split 0-3 1-4 2-5

    >>> half_split(np.array([[0], [1], [2], [3], [4], [5]]), heads=1)[:, 0]
    array([0, 2, 4, 1, 3, 5])
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])  # (heads, pairs, 2, in)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _config(facts: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """Spelled as the published ones are, which transformers 4 and 5 both read.

    What 5 writes itself, rope_parameters, 4 would pass over: it would turn with theta 10,000.
    """
    heads, width = facts["llama.attention.head_count"], facts["llama.embedding_length"]
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": width,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "max_position_embeddings": facts["llama.context_length"],
        "rope_theta": facts["llama.rope.freq_base"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(facts: dict[str, Any], folder: Path) -> None:
    """Byte-level BPE that takes digits one at a time, which is what `smollm` stands for."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = (facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ValueError(
            f"the tokenizer must be of the kind ('gpt2', 'smollm'), and this GGUF has {kind}; "
            "load the model by its transformers id instead."
        )
    tokens = facts["tokenizer.ggml.tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = facts["tokenizer.ggml.token_type"]
    control = [token for token, type in zip(tokens, types, strict=True) if type == CONTROL]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in control]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": facts["llama.context_length"],
            "clean_up_tokenization_spaces": False,  # transformers 4 would: "a ." to "a."
            "chat_template": facts["tokenizer.chat_template"],
            **{
                f"{n}_token": tokens[facts[f"tokenizer.ggml.{g}_token_id"]]
                for n, g in named.items()
            },
        },
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), "utf-8")
