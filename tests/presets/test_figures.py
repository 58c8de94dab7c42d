"""What a shape costs is what torch counts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from preset_shapes import FEW, PLAIN, ROWS
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.models import (
    bert,
    bloom,
    falcon,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    gpt_oss,
    llama,
    mistral,
    qwen2,
    qwen3,
)

from multihead.layer import MultiHeadAttention
from multihead.presets import PRESETS, AttentionShape, Figures, cost

# ---- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layer", "total"),
    [
        ("transformer-base", 4 * 512**2, 6 * 4 * 512**2),
        ("gpt2-small", 4 * 768**2 + 4 * 768, 28_348_416),
        ("gpt3", 4 * 12288**2 + 4 * 12288, 96 * 604_028_928),
        ("llama-3-8b", 2 * 4096**2 + 2 * 4096 * 1024, 32 * 41_943_040),
        ("qwen3-0.6b", 2 * 1024 * 2048 + 2 * 1024 * 1024 + 2 * 128, 28 * 6_291_712),
        ("qwen2.5-7b", 2 * 3584**2 + 2 * 3584 * 512 + 3584 + 2 * 512, 28 * 29_364_736),
        ("gpt-oss-20b", 2 * 2880 * 4096 + 2 * 2880 * 512 + 5120 + 2880 + 64, 24 * 26_550_144),
    ],
)
def test_parameters_by_hand(name: str, layer: int, total: int):
    bill = cost(name, 1)
    assert {figures.parameters for figures in bill.layers} == {layer}
    assert bill.total.parameters == total


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def transformers_attention(shape: AttentionShape) -> nn.Module:
    """The attention module of transformers of this shape, on the meta device."""
    heads, groups, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    usual = {"hidden_size": shape.d_model, "num_attention_heads": heads}
    grouped = usual | {"num_key_value_heads": groups, "head_dim": dim}
    t = transformers
    match shape.name.split("-")[0]:
        case "transformer":
            return nn.MultiheadAttention(shape.d_model, heads, bias=False)
        case "bert":
            whole = bert.modeling_bert.BertAttention(t.BertConfig(**usual))
            whole.output.LayerNorm = nn.Identity()  # it belongs to the block
            return whole
        case "gpt2" | "gpt3":
            config = t.GPT2Config(n_embd=shape.d_model, n_head=heads)
            return gpt2.modeling_gpt2.GPT2Attention(config)
        case "gpt":
            return gpt_oss.modeling_gpt_oss.GptOssAttention(t.GptOssConfig(**grouped), 0)
        case "bloom":
            config = t.BloomConfig(hidden_size=shape.d_model, n_head=heads)
            return bloom.modeling_bloom.BloomAttention(config, 0)
        case "pythia":
            return gpt_neox.modeling_gpt_neox.GPTNeoXAttention(t.GPTNeoXConfig(**usual), 0)
        case "falcon":
            return falcon.modeling_falcon.FalconAttention(t.FalconConfig(**usual), 0)
        case "llama" | "smollm2":
            return llama.modeling_llama.LlamaAttention(t.LlamaConfig(**grouped), 0)
        case "mistral":
            return mistral.modeling_mistral.MistralAttention(t.MistralConfig(**grouped), 0)
        case "qwen2.5":
            return qwen2.modeling_qwen2.Qwen2Attention(t.Qwen2Config(**grouped), 0)
        case "qwen3":
            return qwen3.modeling_qwen3.Qwen3Attention(t.Qwen3Config(**grouped), 0)
        case "gemma":
            if shape.name.startswith("gemma-2"):
                return gemma2.modeling_gemma2.Gemma2Attention(t.Gemma2Config(**grouped), 0)
            return gemma3.modeling_gemma3.Gemma3Attention(t.Gemma3TextConfig(**grouped), 0)
    raise AssertionError(f"say which module of transformers {shape.name} is")


@ROWS
def test_parameters_are_those_of_transformers(shape: AttentionShape):
    with torch.device("meta"):
        theirs = transformers_attention(shape)
    assert cost(shape, 1).layers[0].parameters == parameters(theirs)


@ROWS
def test_parameters_are_those_of_our_layer(shape: AttentionShape):
    for layer, figures in enumerate(cost(shape, 1).layers):
        ours = MultiHeadAttention(**shape.layer_arguments(layer), device="meta")
        assert parameters(ours) == figures.parameters


# ---- operations ----------------------------------------------------------------------------------


# On the meta device scaled_dot_product_attention is two products, which the counter sees; the
# CPU's fused kernel it does not know.
SMALL = [
    PLAIN,
    replace(PLAIN, name="grouped", num_kv_heads=2),
    replace(PLAIN, name="one key head", num_kv_heads=1, bias=True, out_bias=True),
    replace(PLAIN, name="encoder", causal=False, qk_norm=True, sinks=True),
    replace(PLAIN, name="window", window=4, full_every=2),
    replace(PLAIN, name="encoder window", causal=False, window=4),
]
EACH = pytest.mark.parametrize("shape", SMALL, ids=lambda shape: shape.name)


@pytest.mark.parametrize("shape", [*SMALL, *PRESETS.values()], ids=lambda shape: shape.name)
def test_operations_are_what_the_counter_counts(shape: AttentionShape):
    heads, groups, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    with torch.device("meta"):
        x = torch.empty(2, FEW, shape.d_model)
        into = nn.Linear(shape.d_model, (heads + 2 * groups) * dim, bias=shape.bias)
        out = nn.Linear(heads * dim, shape.d_model, bias=shape.out_bias)
        with FlopCounterMode(display=False) as counter:
            qkv = into(x).unflatten(-1, (-1, dim)).transpose(1, 2)
            q, k, v = qkv.split((heads, groups, groups), dim=1)
            y = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            out(y.transpose(1, 2).flatten(2))
    bill = cost(shape, FEW, batch=2)
    assert {figures.operations for figures in bill.layers} == {counter.get_total_flops()}
    assert bill.total.operations == shape.layers * counter.get_total_flops()


@EACH
def test_operations_are_those_of_our_layer_with_the_matrix(shape: AttentionShape):
    attn = MultiHeadAttention(**shape.layer_arguments(), backend="dense")
    with FlopCounterMode(display=False) as counter:
        attn(torch.randn(2, FEW, shape.d_model))
    assert cost(shape, FEW, batch=2).layers[0].operations == counter.get_total_flops()


@EACH
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, FEW])
def test_visible_operations_count_the_pairs_of_the_mask(shape: AttentionShape, tokens: int):
    index = torch.arange(tokens)
    for layer, figures in enumerate(cost(shape, tokens, batch=2).layers):
        mask = shape.mask_of(layer)
        allowed = torch.ones(tokens, tokens) if mask is None else mask.allows(index, index)
        pair = 2 * 2 * 2 * shape.num_heads * shape.head_dim  # two products, of two rows
        hidden = tokens**2 - int(allowed.sum())
        assert figures.operations - figures.visible_operations == pair * hidden


def test_causal_sees_half_the_pairs_and_the_diagonal():
    n, figures = 1024, cost("gpt2-small", 1024).layers[0]
    projections = 2 * n * 4 * 768**2
    assert figures.operations == projections + 4 * 768 * n**2
    assert figures.visible_operations == projections + 4 * 768 * (n * (n + 1) // 2)


# ---- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tokens", "bytes_"),
    [
        ("llama-3-8b", 1, 131_072),  # 2 · 8 · 128 · 2 bytes · 32 layers
        ("llama-3-8b", 8192, 2**30),
        ("gpt2-small", 1024, 2 * 768 * 2 * 12 * 1024),
        ("mistral-7b-v0.1", 4096, 2**29),
        ("mistral-7b-v0.1", 32_768, 2**29),  # a window keeps no more
        ("gpt-oss-20b", 131_072, 2 * 8 * 64 * 2 * (12 * 128 + 12 * 131_072)),
        ("bert-base", 512, 0),  # it reads all at once
    ],
)
def test_cache_by_hand(name: str, tokens: int, bytes_: int):
    assert cost(name, tokens, dtype=torch.bfloat16).total.cache_bytes == bytes_
    assert cost(name, tokens, batch=3, dtype=2).total.cache_bytes == 3 * bytes_


def test_cache_is_that_of_our_layer():
    shape = replace(PLAIN, num_kv_heads=2)
    cache = MultiHeadAttention(**shape.layer_arguments()).new_cache(batch=2, length=FEW)
    held = sum(tensor.nbytes for tensor in vars(cache).values() if torch.is_tensor(tensor))
    assert held == cost(shape, FEW, batch=2).layers[0].cache_bytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_map_and_what_is_kept_instead_by_real_tensors(dtype: torch.dtype):
    shape = replace(PLAIN, num_kv_heads=2)
    q = torch.randn(3, 6, FEW, 5, dtype=dtype)
    k = torch.randn(3, 2, FEW, 5, dtype=dtype)
    scores = q @ k.repeat_interleave(3, dim=1).mT
    lse = scores.to(torch.promote_types(dtype, torch.float32)).logsumexp(-1)
    figures = cost(shape, FEW, batch=3, dtype=dtype).layers[0]
    assert figures.map_bytes == scores.softmax(-1).nbytes
    assert figures.kept_bytes == q.nbytes + k.nbytes + lse.nbytes


# ---- the bill ------------------------------------------------------------------------------------


@ROWS
@pytest.mark.parametrize("tokens", [1, 1_000_000])
def test_a_bill_is_of_whole_numbers_and_prints_in_80_columns(shape: AttentionShape, tokens: int):
    bill = cost(shape, tokens, batch=64)
    assert bill == cost(shape.name, tokens, batch=64, dtype=4)
    assert len(bill.layers) == shape.layers
    for figures in (*bill.layers, bill.total):
        assert all(type(number) is int for number in figures)
    for place, name in enumerate(Figures._fields):
        assert getattr(bill.total, name) == sum(figures[place] for figures in bill.layers)
    assert max(map(len, str(bill).splitlines())) <= 80
    assert ("more than its context" in str(bill)) == (tokens > (shape.context or tokens))


def test_a_bill_tells_the_kinds_of_layers_apart():
    lines = str(cost("gemma-3-1b", 4096, dtype=2)).splitlines()
    assert lines[1].split("  ")[-1].strip() == "all 26"
    assert "window 512 × 22" in lines[1]
    assert "full × 4" in lines[1]
    assert (
        lines[5]
        == f"cache of keys and values  {'524,288 B':>18}{'4,194,304 B':>18}{'28.31 MB':>18}"
    )


@pytest.mark.parametrize("name", ["tokens", "batch", "dtype"])
@pytest.mark.parametrize("size", [0, -1, 1.5, "8", "x", True, None], ids=repr)
def test_a_bill_for_no_number_is_refused(name: str, size):
    asked = {"tokens": 8, name: size}
    with pytest.raises(
        ValueError, match=f"{name} must be .*1 or more; change it.\n  {name} {size!r}"
    ):
        cost("gpt2-small", **asked)


def test_numbers_of_numpy_do_not_overflow():
    whole = cost("gpt3", 2**20, batch=2**10)
    assert cost("gpt3", np.int32(2**20), batch=np.int32(2**10)).total == whole.total


@pytest.mark.parametrize("config", [None, nn.Linear(2, 2), 3, ["gpt3"]], ids=repr)
def test_a_bill_for_something_else_is_refused(config):
    kind = type(config).__name__
    with pytest.raises(ValueError, match=f"takes an AttentionShape .*; give .*\n  came {kind}"):
        cost(config, 8)
