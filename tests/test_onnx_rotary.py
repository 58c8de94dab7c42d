"""The RotaryEmbedding cases of ONNX, through `rotate` and `rope`."""

import importlib.util
from unittest import mock

import numpy as np
import onnx.backend.test.case.node as onnx_node
import pytest
import torch
from onnx.helper import get_attribute_value
from onnx.reference.ops.op_rotary_embedding import rotary_embedding
from torch.testing import assert_close

from multihead.positions import rope, rotate


def collect(module: str) -> dict[str, tuple]:
    """Every case of one module of ONNX: its node, inputs and outputs by name.

    A fresh copy of the module runs against our own `expect`: `collect_testcases(op)` imports each
    module once in a process, so that it would find nothing for a second operator.
    """
    cases = {}

    def expect(node, inputs, outputs, name, **_):
        cases[name] = (node, inputs, outputs)

    spec = importlib.util.find_spec(f"{onnx_node.__name__}.{module}")
    with mock.patch.object(onnx_node, "expect", expect):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return cases


CASES = collect("rotaryembedding")


def test_onnx_has_eight_cases():
    assert len(CASES) == 8


def attributes(node) -> dict:
    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}


def by_head(x: torch.Tensor, num_heads: int | None = None) -> torch.Tensor:
    """ONNX's (batch, tokens, heads · dim) as (batch, heads, tokens, dim)."""
    return x if x.ndim == 4 else x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def as_it_came(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return out if x.ndim == 4 else out.transpose(1, 2).flatten(-2)


def onnx_rotary(
    x, cos, sin, ids=None, *, interleaved=0, rotary_embedding_dim=0, num_heads=None
) -> torch.Tensor:
    cos, sin = (cos, sin) if ids is None else (cos[ids], sin[ids])
    assert rotary_embedding_dim in (0, 2 * cos.shape[-1])  # for us the tables say it
    return as_it_came(rotate(by_head(x, num_heads), cos, sin, interleaved=bool(interleaved)), x)


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    node, inputs, (expected,) = CASES[name]
    out = onnx_rotary(*map(torch.from_numpy, inputs), **attributes(node))
    assert_close(out, torch.from_numpy(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_case_with_real_angles(name):
    """ONNX's tables are random numbers; with those of `rope` instead, all of `rope` agrees."""
    node, (x, *_), _ = CASES[name]
    options = attributes(node)
    heads = by_head(torch.from_numpy(x), options.get("num_heads"))
    turn = rope(
        dim=options.get("rotary_embedding_dim"), interleaved=bool(options.get("interleaved", 0))
    )
    positions = torch.tensor([[3, 1, 49], [0, 20, 7]])
    cos, sin = turn.tables(torch.arange(50), heads.shape[-1])
    expected = rotary_embedding(x, cos.numpy(), sin.numpy(), positions.numpy(), **options)
    out = as_it_came(turn(heads, positions), torch.from_numpy(x))
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6, atol=1e-6)
