"""Inside torch.compile: the sweep is called as it is written, and no part of a graph."""

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend

import multihead as mh

STATS = ("entropy", "received", mh.top(3), mh.heatmap(8))


def ask(query, key, value):
    seen = mh.observe(query, key, value, mask=mh.causal(), stats=STATS)
    return seen.out, seen.entropy, seen.received, seen["heatmap(8)"].sum


def problem(tokens):
    random = torch.Generator().manual_seed(tokens)
    return [torch.randn(1, 2, tokens, 16, generator=random).requires_grad_() for _ in "qkv"]


@pytest.fixture(autouse=True)
def _afresh():
    torch._dynamo.reset()


def test_many_tiles_make_no_graphs():
    """700 tokens are ten tiles, of several sizes; a graph for each took three quarters of a minute."""
    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(ask, backend=counted)
    for tokens in (700, 701, 900):
        given = problem(tokens)
        found, expected = compiled(*given), ask(*given)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two)
        pulls = [torch.autograd.grad(some[1].sum(), given[0])[0] for some in (found, expected)]
        torch.testing.assert_close(*pulls)
    assert counted.frame_count <= 4  # before the sweep and after it, and once more for any length


def test_a_whole_graph_says_why_not():
    with pytest.raises(Unsupported, match="a sweep over the tiles of a map is no part of a graph"):
        torch.compile(ask, fullgraph=True, backend="eager")(*problem(40))
