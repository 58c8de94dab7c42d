"""What our kernels tell, on the way and in their own sweep, against the whole matrix in float64.

On a GPU, and without one under Triton's interpreter.
"""

import pytest
import torch
import zoo
from kernels import CASES, DEVICE, problem
from oracle import gold
from whole_map import close, matrix

import multihead as mh
from multihead.attention import fused
from multihead.observation import fused as by_kernels
from multihead.observation.fused import look, swept
from multihead.observation.statistics import find
from multihead.observation.view import View

# One of every kind: the interpreter is slow. On a GPU all of them.
FEW = ("all keys", "three heads to one", "causal window", "ahead", "causal lengths", "offsets",
       "softcap, sinks", "odd widths", "one query", "logits beyond 100")  # fmt: skip
EVERY_KIND = CASES if DEVICE == "cuda" else FEW
MORE = 4 if DEVICE == "cuda" else 1  # tiles are so much larger there
ON_THE_WAY = (
    "entropy", "effective", "distance", "peak", "peak_key", "max_score", mh.mass(mh.offset(-1)),
    mh.mass(mh.prefix(2)), mh.mass(mh.window(3) & mh.causal(), name="near"),
)  # fmt: skip
SWEPT = (
    "received", "received_mean", mh.heatmap(4), mh.heatmap(19), mh.mass(mh.window(4)),
    mh.mass(mh.window(150), name="far"),  # whole tiles, of wide ones too
)  # fmt: skip


def expected(statistic, p):
    """Its formula on the matrix, worked out on the CPU."""
    wide = gold(p)
    moved = {n: t.cpu() if isinstance(t, torch.Tensor) else t for n, t in wide.__dict__.items()}
    return statistic.dense(matrix(type(wide)(**moved)))


def moved(value):
    return tuple(map(moved, value)) if isinstance(value, tuple) else value.cpu()


def slack(statistic, p):
    """As each statistic states it: relative to the largest it can be, more for large scores."""
    scores = float(
        (p.query.float().norm(dim=-1).max() * p.key.float().norm(dim=-1).max()) * p.scale
    )
    size = p.key.shape[2] if statistic.key in ("distance", "effective") else 1
    size = p.query.shape[2] if statistic.key.startswith(("received", "heatmap")) else size
    return (statistic.tolerance + 8 * 2**-23 * scores) * max(1.0, size)


@pytest.mark.parametrize("name", CASES)
def test_on_the_way(name):
    p = problem(name)
    asked = tuple(map(find, ON_THE_WAY))
    seen = look(p, asked, "fused")
    assert seen.backend == "fused"
    assert {*seen.found} == {s.key for s in asked}
    for statistic in asked:
        close(moved(seen.found[statistic.key]), expected(statistic, p), statistic.key,
              slack(statistic, p))  # fmt: skip


@pytest.mark.parametrize("keys", [1, 5, 128, 200] if DEVICE == "cuda" else [5])
@pytest.mark.parametrize("name", EVERY_KIND)
def test_what_the_first_keys_have(name, keys):
    """Asked alone it has a way of its own, where the first keys fit into a tile."""
    p, first = problem(name), mh.mass(mh.prefix(keys))
    seen = look(p, (first, find("entropy")), "fused")
    close(moved(seen.found[first.key]), expected(first, p), first.key, slack(first, p))


@pytest.mark.parametrize("name", EVERY_KIND)
def test_swept(name):
    p = problem(name)
    asked = [find(s) for s in SWEPT]
    lse = look(p, (), "fused").lse
    view = View(p, lse, torch.arange(p.query.shape[2], device=DEVICE), p.query.shape[2])
    found = swept(view, asked)
    assert {*found} == {s.key for s in asked}
    for statistic in asked:
        close(moved(found[statistic.key]), expected(statistic, p), statistic.key,
              slack(statistic, p))  # fmt: skip


@pytest.mark.parametrize("cells", [2, 4, 8])
def test_cells_of_one_size(cells):
    """A power of two: of several tiles, of one, and several in a tile."""
    p = zoo.ask(*(t.to(DEVICE) for t in zoo.tensors(1, torch.float16, queries=64 * MORE,
                keys=64 * MORE, dim=16, value_dim=16, group=2, kv_heads=1)), mask=mh.causal())  # fmt: skip
    heat = mh.heatmap(cells)
    view = View(p, look(p, (), "fused").lse, torch.arange(64 * MORE, device=DEVICE), 64 * MORE)
    close(moved(swept(view, [heat])[heat.key]), expected(heat, p), heat.key, slack(heat, p))


@pytest.mark.skipif(DEVICE != "cuda", reason="no GPU here")
@pytest.mark.parametrize("mask", [None, mh.causal(), mh.causal() & mh.window(77), mh.window(150)])
@pytest.mark.parametrize(("tokens", "cells", "dim"), [(512, 32, 64), (512, 8, 128), (1024, 2, 64),
                                                      (640, 5, 128), (256, 1, 64)])  # fmt: skip
def test_cells_of_one_size_in_wide_heads(tokens, cells, dim, mask):
    """Several in a tile, one, and of several tiles."""
    tensors = zoo.tensors(1, torch.bfloat16, queries=tokens, keys=tokens, dim=dim, value_dim=dim,
                          group=2, kv_heads=1)  # fmt: skip
    p = zoo.ask(*(t.to(DEVICE) for t in tensors), mask=mask)
    far, first = mh.mass(mh.window(150), name="far"), mh.mass(mh.prefix(tokens - 70))
    asked = [mh.heatmap(cells), find("received"), far, first]
    view = View(p, look(p, (), "fused").lse, torch.arange(tokens, device=DEVICE), tokens)
    found = swept(view, asked)
    for statistic in asked:
        close(moved(found[statistic.key]), expected(statistic, p), statistic.key,
              slack(statistic, p))  # fmt: skip


def test_a_sweep_gives_the_same_bits():
    p = problem("causal")
    asked = [find(s) for s in SWEPT]
    lse = look(p, (), "fused").lse
    view = View(p, lse, torch.arange(p.query.shape[2], device=DEVICE), p.query.shape[2])
    one, two = swept(view, asked), swept(view, asked)
    for key, value in one.items():
        close(moved(value), moved(two[key]), key, 0.0)


@pytest.mark.parametrize("name", [n for n in EVERY_KIND if n != "logits beyond 100"])
def test_gradients_of_all_that_is_told(name):
    """Against autograd through the definition in float64, out and lse at the same time."""
    p = problem(name)
    stats = ("entropy", "effective", "distance", mh.mass(mh.offset(-1)), mh.mass(mh.prefix(2)))
    random = torch.Generator().manual_seed(2)
    rows = p.query.shape[:3]
    weights = [torch.randn(rows, generator=random).to(DEVICE) for _ in range(len(stats) + 1)]
    pull = torch.randn(*rows, p.value.shape[3], generator=random).to(DEVICE)

    def gradients(tensors, backend):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        given = {n: getattr(p, n) for n in ("mask", "scale", "softcap", "sinks", "offset")}
        seen = mh.observe(*leaves, stats=stats, backend=backend, **given)
        lse = seen.lse.masked_fill(seen.lse == -torch.inf, 0.0)
        total = (seen.out * pull.to(seen.out.dtype)).sum() + (lse * weights[0]).sum()
        for weight, value in zip(weights[1:], seen.found.values(), strict=True):
            total = total + (value * weight).sum() / (10 if value is not seen.entropy else 1)
        return torch.autograd.grad(total, leaves)

    given = (p.query, p.key, p.value)
    wide = gradients([t.double() for t in given], "dense")
    for name, one, two in zip("qkv", gradients(given, "fused"), wide, strict=True):
        assert one.dtype == torch.float16
        error = (one.double() - two).abs().max() / two.abs().max()
        assert error < 3e-3, f"d{name}: {error:.1e}"


def test_observe_by_name_is_attend_and_takes_rows():
    p = problem("causal")
    stats = ("entropy", mh.mass(mh.prefix(1)), "received", mh.top(2))
    every = mh.observe(p.query, p.key, p.value, mask=p.mask, stats=stats, backend="fused")
    some = mh.observe(
        p.query, p.key, p.value, mask=p.mask, stats=stats, rows=slice(3, 9, 2), backend="fused"
    )
    assert torch.equal(every.out, mh.attend(p.query, p.key, p.value, mask=p.mask, backend="fused"))
    assert torch.equal(some.entropy, every.entropy[:, :, 3:9:2])
    assert [*every.keys()] == ["entropy", "mass:prefix(1)", "received", "top(2)"]
    torch.testing.assert_close(every.received.sum(-1), torch.full((2, 2), 23.0, device=DEVICE))


def test_a_statistic_that_is_wrong_is_noticed():
    p = problem("causal")
    entropy = find("entropy")
    wrong = look(p, (entropy,), "fused").found["entropy"].cpu() + 1e-3
    with pytest.raises(AssertionError):
        close(wrong, expected(entropy, p), "entropy", slack(entropy, p))


def test_a_mass_inside_a_compiled_function():
    p, stats = problem("causal"), ("entropy", mh.mass(mh.offset(-1)), mh.mass(mh.prefix(2)))

    def ask(query):
        seen = mh.observe(query, p.key, p.value, mask=p.mask, stats=stats, backend="fused")
        return seen.out, seen.entropy, seen["mass:offset(-1)"], seen["mass:prefix(2)"]

    torch._dynamo.reset()
    compiled = torch.compile(ask, backend="aot_eager")
    torch.testing.assert_close(compiled(p.query), ask(p.query), rtol=0, atol=1e-4)


def test_in_a_graph_lse_comes_with_a_gradient(monkeypatch):
    """cuDNN, which a graph takes in training, gives none; asked for nothing else, our kernels do."""
    p = problem("causal")
    assert DEVICE == "cuda" or look(p, ()).backend != "fused"
    monkeypatch.setattr(by_kernels, "in_a_graph", lambda: "in a graph")
    monkeypatch.setattr(fused, "hesitates", fused.refuses)
    assert look(p, ()).backend == "fused"
