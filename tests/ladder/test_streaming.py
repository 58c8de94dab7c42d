"""The streaming rung: the dense definition, tile after tile, without the matrix."""

import math
import tracemalloc

import numpy as np
import pytest
import torch

import multihead as mh
from multihead import ladder
from multihead.attention import answer, pose


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tile", [1, 2, 5, 64])
@pytest.mark.parametrize(("queries", "keys"), [(11, 11), (3, 11), (11, 3), (1, 7), (7, 1)])
def test_streaming_is_the_dense_definition(queries, keys, tile, causal):
    """Out and lse, for any tile; with more queries than keys the first may see nothing."""
    random = np.random.default_rng(0)
    query, key = random.normal(size=(3, queries, 5)), random.normal(size=(3, keys, 5))
    value = random.normal(size=(3, keys, 2))
    out, lse = ladder.stream(query, key, value, causal=causal, tile=tile)
    tensors = (torch.from_numpy(array)[None] for array in (query, key, value))
    problem = pose(
        *tensors, mask=mh.causal() if causal else None, bias=None, scale=None, softcap=None,
        sinks=None, dropout=0.0, offset=None,
    )  # fmt: skip
    expected = answer(problem, "dense")
    np.testing.assert_allclose(out, expected.out[0].numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(lse, expected.lse[0].numpy(), rtol=0, atol=1e-12)
    if causal and queries > keys:
        assert np.all(lse[:, : queries - keys] == -np.inf)


def test_lse_brings_any_weight_back():
    random = np.random.default_rng(0)
    query, key = random.normal(size=(2, 7, 3)), random.normal(size=(2, 7, 3))
    value = np.tile(np.eye(7), (2, 1, 1))  # these values make the context the weights themselves
    out, lse = ladder.stream(query, key, value, tile=3)
    scores = query @ key.swapaxes(1, 2) / math.sqrt(3)
    weights = np.tril(np.exp(scores - lse[..., None]))
    np.testing.assert_allclose(weights, out, rtol=0, atol=1e-12)


def test_streaming_never_holds_the_matrix():
    """One head of 4,096 tokens: its matrix is 134 MB, and the most held here is below 4 MB."""
    query = np.random.default_rng(0).normal(size=(1, 4096, 8))
    tracemalloc.start()
    ladder.stream(query, query, query)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4e6


def test_streaming_leaves_tiles_of_the_future_out():
    """A NaN there would reach every row that touched it, since 0 · NaN is NaN."""
    value = np.ones((1, 6, 1))
    value[:, 4:] = np.nan
    out, _ = ladder.stream(np.zeros((1, 6, 2)), np.zeros((1, 6, 2)), value, tile=2)
    assert np.all(out[:, :4] == 1)
    assert np.all(np.isnan(out[:, 4:]))


def test_a_tile_of_nothing():
    with pytest.raises(ValueError, match="at least 1 token; .*\n  tile 0"):
        ladder.stream(*(np.zeros((1, 2, 3)) for _ in range(3)), tile=0)
