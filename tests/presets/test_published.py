"""Published shapes are as published, and are found by name."""

import pytest
import transformers
from preset_shapes import ROWS

from multihead.layer import MultiHeadAttention
from multihead.positions import Rope, alibi
from multihead.presets import PRESETS, AttentionShape, cost, preset
from multihead.presets.published import ALIASES

# ---- the table -----------------------------------------------------------------------------------


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


# ---- names ---------------------------------------------------------------------------------------


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
