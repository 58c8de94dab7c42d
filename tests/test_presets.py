"""Published shapes are as published, and what they cost is what torch counts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
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
from multihead.positions import Rope, alibi
from multihead.presets import PRESETS, AttentionShape, Figures, cost, preset
from multihead.presets.published import ALIASES

ROWS = pytest.mark.parametrize("shape", PRESETS.values(), ids=PRESETS)
PLAIN = AttentionShape("plain", 3, 13, 6, 6, 5, None, "none", "this test")
FEW = 11  # tokens, fewer than any window of the table, more than those of the tests below


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# ---- the table --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "d_model", "heads", "head_dim"),
    [
        ("transformer-base", 512, 8, 64),
        ("transformer-big", 1024, 16, 64),
        ("bert-base", 768, 12, 64),
        ("bert-large", 1024, 16, 64),
        ("gpt2-small", 768, 12, 64),
        ("gpt2-medium", 1024, 16, 64),
        ("gpt2-large", 1280, 20, 64),
        ("gpt2-xl", 1600, 25, 64),
        ("gpt3", 12288, 96, 128),
    ],
)
def test_the_classic_shapes(name: str, d_model: int, heads: int, head_dim: int):
    shape = preset(name)
    assert (shape.d_model, shape.num_heads, shape.head_dim) == (d_model, heads, head_dim)
    assert shape.num_kv_heads == heads  # before heads were grouped
    assert heads * head_dim == d_model


# Once more, as the configurations write them: a slip in the table has to be made twice.
# layers, d_model, heads, key heads, head_dim, context, rope_theta
CONFIGURED = {
    "pythia-160m": (12, 768, 12, 12, 64, 2048, 1e4),
    "falcon-7b": (32, 4544, 71, 1, 64, 2048, 1e4),
    "llama-2-7b": (32, 4096, 32, 32, 128, 4096, 1e4),
    "llama-2-70b": (80, 8192, 64, 8, 128, 4096, 1e4),
    "llama-3-8b": (32, 4096, 32, 8, 128, 8192, 5e5),
    "llama-3-70b": (80, 8192, 64, 8, 128, 8192, 5e5),
    "llama-3.1-405b": (126, 16384, 128, 8, 128, 131072, 5e5),
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 131072, 5e5),
    "mistral-7b-v0.1": (32, 4096, 32, 8, 128, 32768, 1e4),
    "qwen2.5-7b": (28, 3584, 28, 4, 128, 131072, 1e6),
    "qwen3-0.6b": (28, 1024, 16, 8, 128, 40960, 1e6),
    "qwen3-8b": (36, 4096, 32, 8, 128, 40960, 1e6),
    "gemma-2-9b": (42, 3584, 16, 8, 256, 8192, 1e4),
    "gemma-3-1b": (26, 1152, 4, 1, 256, 32768, 1e6),
    "smollm2-135m": (30, 576, 9, 3, 64, 8192, 1e5),
    "gpt-oss-20b": (24, 2880, 64, 8, 64, 131072, 1.5e5),
    "gpt-oss-120b": (36, 2880, 64, 8, 64, 131072, 1.5e5),
}


def test_the_rows_with_rope_are_as_configured():
    rows = [shape for shape in PRESETS.values() if isinstance(shape.positions, Rope)]
    ours = {
        s.name: (s.layers, s.d_model, s.num_heads, s.num_kv_heads, s.head_dim, s.context,
                 s.positions.base)
        for s in rows
    }  # fmt: skip
    assert ours == CONFIGURED


@ROWS
def test_a_row_is_consistent(shape: AttentionShape):
    assert PRESETS[shape.name] is preset(shape.name) is shape
    assert shape.name == shape.name.lower()
    assert not set(shape.name) - set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    assert shape.num_heads % shape.num_kv_heads == 0
    assert shape.head_dim in (64, 128, 256)
    assert "arXiv:" in shape.source or "Radford" in shape.source or "model card" in shape.source
    if shape.window is not None:
        assert shape.context is not None
        assert shape.window < shape.context
    if shape.full_every is not None:
        assert shape.window is not None
    if shape.window_rope is not None:
        assert shape.full_every is not None
    assert max(map(len, str(shape).splitlines())) <= 100
    assert shape.source in str(shape)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, "causal(); no bias"),
        ({"bias": True, "out_bias": True}, "causal(); bias"),
        ({"bias": True, "softcap": 30.0}, "causal(); bias of q, k, v, softcap 30"),
        ({"out_bias": True, "sinks": True}, "causal(); bias of the output, sinks"),
        ({"causal": False, "qk_norm": True}, "no mask; no bias, qk_norm"),
        ({"window": 4}, "causal() & window(4); no bias"),
        ({"window": 4, "full_every": 6}, "causal() & window(4), every 6th layer causal(); no bias"),
        ({"window": 4, "full_every": 1}, "causal(); no bias"),
        ({"window": 4, "causal": False}, "window(4); no bias"),
    ],
    ids=str,
)
def test_a_shape_says_its_masks_and_extras(change: dict, line: str):
    shape = replace(PLAIN, **change)
    assert str(shape).splitlines() == [
        "plain: 3 layers, d_model 13, 6 heads of 5, any context",
        f"  {line}",
        "  positions: none",
        "  this test",
    ]


# What transformers takes by default is a published model for these.
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("bert-base", transformers.BertConfig()),
        ("gpt2-small", transformers.GPT2Config()),
        ("mistral-7b-v0.1", transformers.MistralConfig()),
        ("gpt-oss-120b", transformers.GptOssConfig()),
        ("gpt-oss-20b", transformers.GptOssConfig(num_hidden_layers=24)),
    ],
)
def test_a_row_agrees_with_the_default_of_transformers(name: str, config):
    shape = preset(name)
    assert shape.layers == config.num_hidden_layers
    assert shape.d_model == config.hidden_size
    assert shape.num_heads == config.num_attention_heads
    assert shape.num_kv_heads == getattr(config, "num_key_value_heads", config.num_attention_heads)
    assert shape.window == getattr(config, "sliding_window", None)
    if name != "mistral-7b-v0.1":  # its default allows more positions than the model does
        assert shape.context == config.max_position_embeddings
    if isinstance(shape.positions, str):
        assert shape.positions == "learned"
        return
    assert shape.positions.base == config.rope_parameters["rope_theta"]
    if scaling := shape.positions.scaling:
        assert scaling.factor == config.rope_parameters["factor"]
        assert scaling.original_length == config.rope_parameters["original_max_position_embeddings"]
        assert scaling.truncate == config.rope_parameters["truncate"]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("gpt-oss-120b", transformers.GptOssConfig()),
        ("gemma-2-9b", transformers.Gemma2Config(num_hidden_layers=42)),
        ("gemma-3-1b", transformers.Gemma3TextConfig()),
        ("llama-3-8b", transformers.Qwen3Config(num_hidden_layers=32)),  # all alike
    ],
)
def test_the_layers_with_a_window_are_those_of_transformers(name: str, config):
    shape = preset(name)
    ours = [shape.window_of(layer) for layer in range(shape.layers)]
    theirs = {"full_attention": None, "sliding_attention": shape.window}
    assert ours == [theirs[kind] for kind in config.layer_types]


def test_the_local_layers_of_gemma_3_turn_faster():
    theirs = transformers.Gemma3TextConfig().rope_parameters
    local, full = (preset("gemma-3-1b").layer_arguments(layer)["rope"] for layer in (4, 5))
    assert local.base == theirs["sliding_attention"]["rope_theta"]
    assert full.base == theirs["full_attention"]["rope_theta"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("llama-8b", "llama-3-8b"), ("GPT2-Small", "gpt2-small"), ("bert", "bert-base")],
)
def test_an_unknown_name_lists_what_is_near_and_all_names(name: str, near: str):
    with pytest.raises(ValueError, match=f"no preset '{name}'; did you mean .*{near}") as caught:
        preset(name)
    listed = str(caught.value).partition("\n")[2]
    assert listed.replace("\n", " ").replace(",", "").split() == list(PRESETS)
    assert max(map(len, str(caught.value).splitlines())) <= 100


@pytest.mark.parametrize(
    "name", [None, 3, ["gpt3"], PRESETS["gpt3"]], ids=lambda x: type(x).__name__
)
def test_what_is_no_name_lists_all_names(name):
    said = rf"takes the name of a model, and {type(name).__name__} came; choose .*\n  transformer-"
    with pytest.raises(ValueError, match=said):
        preset(name)


def test_other_names_mean_one_row():
    assert preset("gpt-3") is PRESETS["gpt3"]
    assert cost("mistral-7b", 8) == cost("mistral-7b-v0.1", 8)
    assert not ALIASES.keys() & PRESETS.keys()
    assert set(ALIASES.values()) <= PRESETS.keys()
    for alias, name in ALIASES.items():  # one spelling or another, with nothing that misleads
        assert alias.replace("-", "")[:4] == name.replace("-", "")[:4]
    assert "gpt-2" not in ALIASES  # which of the four?


def test_a_name_near_to_nothing_lists_all_names():
    with pytest.raises(ValueError, match=r"no preset '\?'; choose one of these\.\n  transformer-"):
        cost("?", 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_kv_heads": 4},
        {"num_kv_heads": 0},
        {"layers": 0},
        {"window": 0},
        {"full_every": 0, "window": 1},
        {"context": 0},
    ],
    ids=str,
)
def test_a_shape_that_cannot_be_says_so(wrong: dict):
    name, size = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"num_heads a multiple of(.|\n)*  {name} {size}"):
        replace(PLAIN, **wrong)


def test_positions_of_another_name_are_refused():
    with pytest.raises(ValueError, match=r"positions must be a rope or one of (.|\n)*'rotary'"):
        replace(PLAIN, positions="rotary")


@pytest.mark.parametrize("layer", [-1, 3])
def test_a_layer_that_is_not_there_is_refused(layer: int):
    with pytest.raises(ValueError, match=f"plain has layers 0 to 2; .*\n  got {layer}"):
        PLAIN.layer_arguments(layer)


# ---- parameters -------------------------------------------------------------------------------


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


def test_the_arguments_carry_what_has_no_parameters():
    built = {
        name: MultiHeadAttention(**shape.layer_arguments(), device="meta")
        for name, shape in PRESETS.items()
    }
    assert {name for name, attn in built.items() if attn.alibi is not None} == {"bloom-176b"}
    assert built["bloom-176b"].alibi == alibi(112)
    assert {name: attn.softcap for name, attn in built.items() if attn.softcap} == {
        "gemma-2-9b": 50.0
    }
    assert {name for name, attn in built.items() if attn.rope is not None} == set(CONFIGURED)
    assert {name for name, attn in built.items() if attn.mask is None} == {
        "transformer-base", "transformer-big", "bert-base", "bert-large",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-1b", "pythia-160m", "bert-base"])
def test_the_arguments_build_a_layer_that_runs(name: str):
    shape = preset(name)
    attn = MultiHeadAttention(**shape.layer_arguments())
    x = torch.randn(2, FEW, shape.d_model)
    assert attn(x).shape == x.shape
    assert attn.mask == shape.mask_of(0)
    assert attn(x).isfinite().all()


# ---- operations -------------------------------------------------------------------------------

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


# ---- bytes ------------------------------------------------------------------------------------


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


# ---- the bill ---------------------------------------------------------------------------------


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
