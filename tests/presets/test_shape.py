"""A shape says what it is, refuses what cannot be, and builds a layer."""

from dataclasses import replace

import pytest
import torch
from preset_shapes import FEW, PLAIN

from multihead.layer import MultiHeadAttention
from multihead.presets import preset


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


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-1b", "pythia-160m", "bert-base"])
def test_the_arguments_build_a_layer_that_runs(name: str):
    shape = preset(name)
    attn = MultiHeadAttention(**shape.layer_arguments())
    x = torch.randn(2, FEW, shape.d_model)
    assert attn(x).shape == x.shape
    assert attn.mask == shape.mask_of(0)
    assert attn(x).isfinite().all()
