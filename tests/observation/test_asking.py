"""What may be asked, and in which words: rows, names, means; and what needs no sweep."""

import pytest
import torch
import zoo
from whole_map import close

import multihead as mh
from multihead import observation
from multihead.observation.sweep import tiles
from multihead.observation.view import View


def problem(tokens=23):
    torch.manual_seed(7)
    return torch.randn(3, 2, 3, tokens, 5).double().unbind(0)


@pytest.mark.parametrize("rows", [[1, 4, 5], range(2, 20, 3), (0, 22)])
def test_rows_as_numbers(rows):
    seen = mh.observe(*problem(), mask=mh.causal(), rows=rows)
    assert torch.equal(seen.queries, torch.tensor(list(rows)))
    whole = mh.observe(*problem(), mask=mh.causal())
    close(seen.entropy, whole.entropy[:, :, list(rows)], "entropy", 1e-12)


def test_rows_as_a_choice():
    chosen = torch.arange(23) % 4 == 1
    seen = mh.observe(*problem(), rows=chosen, stats="peak")
    close(seen.peak, mh.observe(*problem(), stats="peak").peak[:, :, chosen], "peak", 1e-12)


@pytest.mark.parametrize("distance", [0, -1, -30, 2])
def test_one_key_a_row_needs_no_sweep(distance, monkeypatch):
    q, k, v = problem()
    mask, stats = mh.causal() | mh.offset(2), (mh.mass(mh.offset(distance), name="there"),)
    whole = mh.weights(q, k, mask=mask)
    monkeypatch.setattr(observation, "sweep", None)
    seen = mh.observe(q, k, v, mask=mask, stats=stats)
    expected = torch.zeros(2, 3, 23).double()
    for i in range(23):
        if 0 <= i + distance < 23:
            expected[:, :, i] = whole[:, :, i, i + distance]
    close(seen.there, expected, "mass", 1e-12)


def test_two_tops_by_name():
    seen = mh.observe(*problem(), stats=(mh.top(2), mh.top(2, name="again")))
    assert torch.equal(seen["top(2)"].keys, seen.again.keys)


def test_a_mean_of_every_column():
    q, k, v = problem()
    seen = mh.observe(q, k, v, stats=mh.expect(torch.randn(23, 4).double(), name="four"))
    assert torch.equal(seen.mean()["four"], seen.four.mean(2))


def test_features_for_every_batch():
    q, k, v = problem()
    feature = torch.rand(1, 3, 23).double()
    one = mh.observe(q, k, v, stats=mh.expect(feature, name="f")).f
    assert torch.equal(
        one, mh.observe(q, k, v, stats=mh.expect(feature.repeat(2, 1, 1), name="f")).f
    )


def test_pairs_are_counted_in_whole_numbers():
    seen = mh.observe(*problem(), mask=mh.causal(), stats=mh.heatmap(1))
    assert seen["heatmap(1)"].pairs.dtype == torch.int64
    assert seen["heatmap(1)"].pairs.unique().tolist() == [23 * 24 // 2]


def test_buffers_serve_with_and_without_gradients():
    q, k, v = problem()
    with torch.inference_mode():
        first = mh.observe(q, k, v, stats="entropy").entropy.clone()
    leaf = q.clone().requires_grad_()
    seen = mh.observe(leaf, k, v, stats="entropy")
    seen.entropy.sum().backward()
    assert leaf.grad is not None
    close(seen.entropy, first, "entropy", 1e-12)


def test_whoever_comes_while_buffers_are_lent_gets_others():
    q, k, v = problem()
    whole = mh.observe(q, k, v, stats="lse")
    view = View(zoo.ask(q, k, v), whole.lse, torch.arange(23), 23)
    one, two = tiles(view), tiles(view)
    a, b = next(one), next(two)
    assert a.weights.data_ptr() != b.weights.data_ptr()
