"""The RotaryEmbedding cases of ONNX, through `rotate` and `rope`."""

import pytest
import torch
from onnx.reference.ops.op_rotary_embedding import rotary_embedding
from onnx_cases import collect
from torch.testing import assert_close

from multihead.positions import rope, rotate

CASES = collect("rotaryembedding", "RotaryEmbedding")


def test_onnx_has_eight_cases():
    assert len(CASES) == 8


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
    inputs, settings, outputs = CASES[name]
    (expected,) = outputs.values()
    assert_close(onnx_rotary(*inputs.values(), **settings), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_case_with_real_angles(name):
    """ONNX's tables are random numbers; with those of `rope` instead, all of `rope` agrees."""
    inputs, settings, _ = CASES[name]
    x, *_ = inputs.values()
    heads = by_head(x, settings.get("num_heads"))
    turn = rope(
        dim=settings.get("rotary_embedding_dim"), interleaved=bool(settings.get("interleaved", 0))
    )
    positions = torch.tensor([[3, 1, 49], [0, 20, 7]])
    cos, sin = turn.tables(torch.arange(50), heads.shape[-1])
    tables = (t.numpy() for t in (x, cos, sin, positions))
    expected = torch.from_numpy(rotary_embedding(*tables, **settings))
    assert_close(as_it_came(turn(heads, positions), x), expected, rtol=1e-6, atol=1e-6)
