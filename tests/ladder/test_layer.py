"""The layer with a rung's weights gives what the rung gives."""

import pytest
import torch

import multihead as mh
from multihead.ladder import RUNGS, Weights, carry


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(
    ("batch", "tokens", "width", "heads"), [(2, 7, 6, 2), (3, 11, 10, 5), (1, 5, 3, 1)]
)
def test_the_layer_and_every_rung(rung, batch, tokens, width, heads):
    weights = Weights.random(width, width, heads, seed=tokens)
    attn = mh.MultiHeadAttention(width, heads, bias=False, mask=mh.causal(), dtype=torch.float64)
    with torch.no_grad():
        attn.qkv.weight.copy_(torch.cat([weights.query, weights.key, weights.value]))
        attn.out.weight.copy_(weights.out)
    x = torch.randn(batch, tokens, width, dtype=torch.float64)
    carried = carry(weights, rung)
    # Through the layer, the context before its last projection is what an identity there leaves.
    with torch.no_grad():
        mixed = attn(x)
        attn.out.weight.copy_(torch.eye(width))
        torch.testing.assert_close(carried(x).detach(), attn(x), rtol=0, atol=1e-12)
    if carried.output is not None:
        torch.testing.assert_close(carried.output(x).detach(), mixed, rtol=0, atol=1e-12)
