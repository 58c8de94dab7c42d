"""The semantics table, a row a test: one answer to each question the field disagrees on."""

import math

import pytest
import torch
import zoo

import multihead as mh
from multihead.attention import answer, dense

NAN = float("nan")
every_backend = pytest.mark.parametrize("backend", zoo.ON_CPU)


@every_backend
def test_true_means_may_attend(backend):
    q, k, v = zoo.tensors()
    first = torch.zeros(zoo.QUERIES, zoo.KEYS, dtype=torch.bool)
    first[:, 0] = True
    if backend == "sdpa":
        with pytest.raises(ValueError, match="no mask but causal"):
            mh.attend(q, k, v, mask=first, backend=backend)
        return
    out = mh.attend(q, k, v, mask=first, backend=backend)
    value = v[:, :, :1].repeat_interleave(zoo.GROUP, 1)
    torch.testing.assert_close(out, value.expand_as(out))


@every_backend
def test_queries_are_the_last_positions_unless_said(backend):
    q, k, v = zoo.tensors()
    default = mh.attend(q, k, v, mask=mh.causal(), backend=backend)
    said = mh.attend(q, k, v, mask=mh.causal(), offset=zoo.KEYS - zoo.QUERIES, backend=backend)
    first = mh.attend(q, k, v, mask=mh.causal(), offset=0, backend=backend)
    assert torch.equal(default, said)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(first, sdpa(q, k, v, is_causal=True, enable_gqa=True))
    assert not torch.allclose(default, first)


def test_a_causal_window_of_w_sees_w_keys():
    q, k, v = zoo.tensors(dtype=torch.float64)
    weights = dense.steps(zoo.ask(q, k, v, mask=mh.causal() & mh.window(3), offset=4)).weights
    assert (weights > 0).sum(-1).eq(3).all()


@pytest.mark.parametrize("backend", ["dense", "tiled"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_row_that_may_see_nothing(backend, softcap):
    q, k, v = (t.requires_grad_() for t in zoo.tensors())
    problem = zoo.ask(q, k, v, mask=mh.padding([0, 5]), softcap=softcap)
    out, lse = answer(problem, backend)
    assert out[0].eq(0).all()
    assert lse[0].eq(-torch.inf).all()
    assert out[1].ne(0).all()
    out.sum().backward()
    for leaf in (q, k, v):
        assert leaf.grad[0].eq(0).all()
        assert leaf.grad.isfinite().all()


@every_backend
def test_a_blind_first_query(backend):
    """A causal offset below 0: the first queries stand before every key."""
    q, k, v = (t.requires_grad_() for t in zoo.tensors())
    out, lse = answer(zoo.ask(q, k, v, mask=mh.causal(), offset=-3), backend)
    assert out[:, :, :3].eq(0).all()
    assert lse[:, :, :3].eq(-torch.inf).all()
    assert lse[:, :, 3:].isfinite().all()
    out.sum().backward()
    assert q.grad[:, :, :3].eq(0).all()
    assert all(leaf.grad.isfinite().all() for leaf in (q, k, v))


@every_backend
def test_with_a_sink_no_row_is_empty(backend):
    q, k, v = zoo.tensors()
    sinks = torch.linspace(-2, 2, zoo.HEADS)
    out, lse = answer(zoo.ask(q, k, v, mask=mh.causal(), offset=-3, sinks=sinks), backend)
    assert out[:, :, :3].eq(0).all()
    torch.testing.assert_close(lse[:, :, 0], sinks.expand(zoo.BATCH, -1))


@every_backend
def test_a_bias_of_minus_infinity_forbids(backend):
    q, k, v = zoo.tensors()
    bias = torch.zeros(zoo.QUERIES, zoo.KEYS)
    bias[2], bias[:, 5:] = -torch.inf, -torch.inf
    out, lse = answer(zoo.ask(q, k, v, bias=bias), backend)
    assert out[:, :, 2].eq(0).all()
    assert lse[:, :, 2].eq(-torch.inf).all()
    cut = mh.attend(q, k[:, :, :5], v[:, :, :5], backend="dense")
    torch.testing.assert_close(out[:, :, 3:], cut[:, :, 3:])


def test_query_head_h_reads_key_head_h_over_group():
    q, k, v = zoo.tensors()
    out = mh.attend(q, k, v)
    for h in range(zoo.HEADS):
        g = h // zoo.GROUP
        alone = mh.attend(q[:, h : h + 1], k[:, g : g + 1], v[:, g : g + 1])
        torch.testing.assert_close(out[:, h : h + 1], alone)


@every_backend
def test_scale_is_of_the_query_dim_never_the_value_dim(backend):
    q, k, v = zoo.tensors()
    named = mh.attend(q, k, v, scale=1 / math.sqrt(zoo.DIM), backend=backend)
    assert torch.equal(mh.attend(q, k, v, backend=backend), named)


@pytest.mark.parametrize("backend", ["dense", "tiled"])
def test_softcap_comes_before_bias_and_mask(backend):
    q, k, v = zoo.tensors(dtype=torch.float64)
    bias = torch.randn(zoo.QUERIES, zoo.KEYS, dtype=torch.float64) * 5
    scores = q @ k.repeat_interleave(zoo.GROUP, 1).mT / math.sqrt(zoo.DIM)
    scores = 1.5 * torch.tanh(scores / 1.5) + bias
    expected = scores.softmax(-1) @ v.repeat_interleave(zoo.GROUP, 1)
    found = mh.attend(q, k, v, softcap=1.5, bias=bias, backend=backend)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@every_backend
@pytest.mark.parametrize("dtype", zoo.DTYPES, ids=str)
def test_out_has_the_dtype_that_came_and_lse_the_exact_one(backend, dtype):
    out, lse = answer(zoo.ask(*zoo.tensors(dtype=dtype), mask=mh.causal()), backend)
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@every_backend
@pytest.mark.parametrize("keys", [1, 3, 15, 16, 17, 40, 512, 530])
@pytest.mark.parametrize("mask", [None, mh.causal()], ids=str)
def test_a_nan_query_stays_in_its_row(backend, keys, mask):
    """PyTorch's kernel alone would call such a row 0 where there are fewer than 16 keys."""
    q, k, v = zoo.tensors(queries=7, keys=keys)
    clean = mh.attend(q, k, v, mask=mask, offset=keys - 1, backend=backend)
    q[1, 4, 2, 3] = NAN
    out, lse = answer(zoo.ask(q, k, v, mask=mask, offset=keys - 1), backend)
    assert out[1, 4, 2].isnan().all()
    assert lse[1, 4, 2].isnan()
    out[1, 4, 2] = clean[1, 4, 2]
    assert torch.equal(out, clean)


@pytest.mark.parametrize("backend", ["dense", "tiled"])
def test_a_nan_query_that_may_see_nothing_is_nothing(backend):
    q, k, v = zoo.tensors()
    q[:] = NAN
    assert mh.attend(q, k, v, mask=mh.prefix(0), backend=backend).eq(0).all()


@every_backend
def test_weights_are_before_dropout_and_out_after(backend):
    """Dropout leaves lse alone; the same seed drops the same weights on every backend."""
    q, k, v = zoo.tensors()
    if backend == "sdpa":
        with pytest.raises(ValueError, match="dropout"):
            mh.attend(q, k, v, dropout=0.5, backend=backend)
        return
    torch.manual_seed(11)
    out, lse = answer(zoo.ask(q, k, v, dropout=0.5), backend)
    torch.manual_seed(11)
    expected = answer(zoo.ask(q, k, v, dropout=0.5), "dense")
    plain = answer(zoo.ask(q, k, v), "dense")
    torch.testing.assert_close(out, expected.out)
    torch.testing.assert_close(lse, plain.lse)
    assert not torch.allclose(out, plain.out, atol=0.1)
    assert not torch.allclose(out, answer(zoo.ask(q, k, v, dropout=0.5), backend).out, atol=0.1)


def test_dropout_keeps_the_mean_and_the_share():
    q, k, v = torch.randn(3, 1, 2, 64, 8)
    torch.manual_seed(0)
    outs = torch.stack([mh.attend(q, k, v, dropout=0.3) for _ in range(300)])
    error = outs.mean(0) - mh.attend(q, k, v)
    assert error.abs().max() < 6 * outs.std(0).max() / math.sqrt(300)


def test_dropout_drops_each_weight_on_its_own():
    """Share, and no pattern along any axis: neighbours agree as often as chance says."""
    from multihead.attention.dropout import keep

    axes = [torch.arange(n) for n in (4, 5, 128, 128)]
    kept = keep(torch.tensor(3), 0.25, *axes)
    assert abs(kept.float().mean().item() - 0.75) < 0.005
    for axis in range(4):
        for step in (1, 2):
            near, far = (
                kept.narrow(axis, 0, len(axes[axis]) - step),
                kept.narrow(axis, step, len(axes[axis]) - step),
            )
            agree = (near == far).float().mean().item()
            assert abs(agree - (0.75**2 + 0.25**2)) < 0.01, (axis, step)
    rows = kept.float().mean(-1)
    assert abs(rows.std().item() - math.sqrt(0.25 * 0.75 / 128)) < 0.005
    other = keep(torch.tensor(4), 0.25, *axes)
    assert abs((other == kept).float().mean().item() - (0.75**2 + 0.25**2)) < 0.01
