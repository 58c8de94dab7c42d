"""What must hold of any attention, whatever the numbers: random shapes, masks and arguments."""

import pytest
import torch
import zoo
from hypothesis import given
from hypothesis import strategies as st
from zoo import ask

import multihead as mh
from multihead.attention import BACKENDS, answer
from multihead.attention.merge import merge

CLOSE = {"rtol": 0, "atol": 1e-12}


@st.composite
def problems(draw, most=6):
    """A random float64 problem: shapes, mask, and any of the arguments."""
    size = st.integers(1, most)
    batch, kv_heads, group, queries, keys, dim, value_dim = (draw(size) for _ in range(7))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    heads = kv_heads * group
    asked = {}
    masks = st.sampled_from(
        [
            None,
            mh.causal(),
            mh.causal() & mh.window(2),
            mh.window(2) | mh.prefix(1),
            ~mh.offset(0),
            mh.padding(torch.randint(0, keys + 1, (batch,), generator=random)),
            mh.causal() & mh.documents(torch.randint(0, 2, (batch, keys), generator=random)),
            mh.dense(normal(1, heads, queries, keys) > 0),
        ]
    )
    asked["mask"] = draw(masks)
    if draw(st.booleans()):
        asked["bias"] = draw(
            st.sampled_from([normal(batch, 1, queries, keys), mh.alibi(normal(heads).abs())])
        )
    if draw(st.booleans()):
        asked["sinks"] = normal(heads)
    if draw(st.booleans()):
        asked["softcap"] = 1.5
    if draw(st.booleans()):
        asked["offset"] = draw(st.integers(-most, 2 * most))
    tensors = (
        normal(batch, heads, queries, dim) * 3,
        normal(batch, kv_heads, keys, dim),
        normal(batch, kv_heads, keys, value_dim),
    )
    return tensors, asked


@given(problems())
def test_backends_agree(case):
    tensors, asked = case
    problem = ask(*tensors, **asked)
    expected = answer(problem, "dense")
    for name in ("sdpa", "tiled"):
        if BACKENDS[name].refuses(problem) is None:
            found = answer(problem, name)
            torch.testing.assert_close(found.out, expected.out, **CLOSE)
            torch.testing.assert_close(found.lse, expected.lse, **CLOSE)


@pytest.mark.parametrize("backend", ["dense", "tiled"])
@given(problems())
def test_grouped_heads_are_repeated_heads(backend, case):
    (q, k, v), asked = case
    group = q.shape[1] // k.shape[1]
    repeated = (t.repeat_interleave(group, dim=1) for t in (k, v))
    found = mh.attend(q, k, v, **asked, backend=backend)
    torch.testing.assert_close(found, mh.attend(q, *repeated, **asked, backend=backend), **CLOSE)


@pytest.mark.parametrize("backend", ["dense", "tiled"])
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(backend, case, random):
    """Said as a dense mask and bias, which move along with the keys."""
    (q, k, v), asked = case
    order = list(range(k.shape[2]))
    random.shuffle(order)
    bias = torch.randn(q.shape[2], k.shape[2], dtype=torch.float64)
    allowed = torch.rand(q.shape[2], k.shape[2]) > 0.4
    keep = {name: asked[name] for name in ("sinks", "softcap") if name in asked}
    one = mh.attend(q, k, v, mask=mh.dense(allowed), bias=bias, **keep, backend=backend)
    moved = {"mask": mh.dense(allowed[:, order]), "bias": bias[:, order]}
    two = mh.attend(q, k[:, :, order], v[:, :, order], **moved, **keep, backend=backend)
    torch.testing.assert_close(one, two, **CLOSE)


@pytest.mark.parametrize("backend", ["dense", "tiled"])
@given(problems())
def test_masked_keys_change_nothing(backend, case):
    """Keys after the length may hold anything, and may as well not be there."""
    (q, k, v), asked = case
    length = max(1, k.shape[2] // 2)
    wild = [torch.cat([t[:, :, :length], t[:, :, length:] * 1e6], dim=2) for t in (k, v)]
    keep = {name: asked[name] for name in ("sinks", "softcap") if name in asked}
    padded = mh.attend(q, *wild, mask=mh.padding(length), **keep, backend=backend)
    cut = mh.attend(q, k[:, :, :length], v[:, :, :length], **keep, backend=backend)
    torch.testing.assert_close(padded, cut, **CLOSE)


@given(problems(), st.integers(1, 5))
def test_two_halves_merged_by_lse_are_the_whole(case, cut):
    (q, k, v), asked = case
    keys = k.shape[2]
    if keys < 2:
        return
    cut = min(cut, keys - 1)
    allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    problem = ask(q, k, v, **{**asked, "sinks": None})
    if problem.mask is not None:
        rows = torch.arange(q.shape[2])
        allowed = problem.mask.allows(rows, torch.arange(keys), problem.offset)
    allowed = allowed.expand(-1, -1, -1, keys)
    softcap = asked.get("softcap")
    parts = [
        answer(
            ask(q, k[:, :, s], v[:, :, s], mask=mh.dense(allowed[..., s]), softcap=softcap), "dense"
        )
        for s in (slice(0, cut), slice(cut, keys))
    ]
    whole = answer(ask(q, k, v, mask=mh.dense(allowed), softcap=softcap), "dense")
    merged = merge(*parts)
    torch.testing.assert_close(merged.out, whole.out, **CLOSE)
    torch.testing.assert_close(merged.lse, whole.lse, **CLOSE)


@pytest.mark.parametrize("backend", zoo.ON_CPU)
@given(st.integers(1, 9), st.integers(0, 9))
def test_a_chunk_of_queries_is_that_part_of_the_whole(backend, chunk, before):
    """What a cache relies on: the last queries alone, over all keys, by the default offset."""
    tokens = chunk + before
    q, k, v = torch.randn(3, 2, 3, tokens, 4, dtype=torch.float64)
    whole = mh.attend(q, k, v, mask=mh.causal(), backend=backend)
    last = mh.attend(q[:, :, before:], k, v, mask=mh.causal(), backend=backend)
    torch.testing.assert_close(last, whole[:, :, before:], **CLOSE)
