"""What our kernels tell, on the way and in their own sweep, against the whole matrix in float64.

On a GPU, and without one under Triton's interpreter.
"""

import pytest
import torch
import zoo
from kernels import CASES, DEVICE, poisoned, problem
from told import SWEPT, assert_close, assert_swept, assert_told, moved, view_of
from whole_map import close

import multihead as mh
from multihead.attention import fused
from multihead.observation import fused as by_kernels
from multihead.observation.fused import look, swept
from multihead.observation.statistics import find

# One of every kind: the interpreter is slow. On a GPU all of them.
FEW = ("all keys", "three heads to one", "causal window", "ahead", "causal lengths", "offsets",
       "softcap, sinks", "odd widths", "one query", "logits beyond 100")  # fmt: skip
EVERY_KIND = CASES if DEVICE == "cuda" else FEW
MORE = 4 if DEVICE == "cuda" else 1  # tiles are so much larger there


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


@pytest.mark.parametrize("name", CASES)
def test_on_the_way(name):
    assert_told(problem(name))


@pytest.mark.parametrize("queries", [23, 1])
def test_the_largest_score_far_below_a_sink(queries):
    """Where all weights are 0, and so is their largest."""
    sizes = {"queries": queries, "keys": 150, "dim": 16, "value_dim": 16}
    tensors = zoo.tensors(1, torch.float16, **sizes)
    sinks = torch.full((tensors[0].shape[1],), 400.0)
    p = zoo.ask(*(t.to(DEVICE) for t in tensors), mask=mh.padding([150, 0]), sinks=sinks.to(DEVICE))
    seen = assert_told(p, ("max_score", "peak", "entropy"))
    assert not seen.found["peak"].any()
    assert seen.found["max_score"][0].all()
    assert not seen.found["max_score"][1].any()


@pytest.mark.parametrize("queries", [23, 1])
def test_a_sink_beyond_all_numbers_takes_everything(queries):
    sizes = {"queries": queries, "keys": 150, "dim": 16, "value_dim": 16}
    tensors = zoo.tensors(1, torch.float16, **sizes)
    sinks = torch.full((tensors[0].shape[1],), 3e38)
    p = zoo.ask(*(t.to(DEVICE) for t in tensors), sinks=sinks.to(DEVICE))
    seen = assert_told(p, ("entropy", "distance", "peak", "max_score"))
    assert not seen.out.any()
    assert (seen.lse > 1e29).all()
    leaves = [t.to(DEVICE).requires_grad_() for t in (*tensors, sinks)]
    seen = mh.observe(*leaves[:3], sinks=leaves[3], stats=("entropy",), backend="fused")
    for gradient in torch.autograd.grad(seen.out.sum() + seen.entropy.sum(), leaves):
        assert (gradient == 0).all()


@pytest.mark.parametrize("keys", [5, 100, 200] if DEVICE == "cuda" else [5])
@pytest.mark.parametrize("name", EVERY_KIND)
def test_what_the_first_keys_have(name, keys):
    """Asked alone it has a way of its own, where the first keys fit into a tile."""
    assert_told(problem(name), (mh.mass(mh.prefix(keys)), "entropy", "distance", "peak"))


@pytest.mark.parametrize("name", EVERY_KIND)
def test_swept(name):
    assert_swept(problem(name))


@pytest.mark.parametrize("cells", [2, 4, 8])
def test_cells_of_one_size(cells):
    """A power of two: of several tiles, of one, and several in a tile."""
    tokens = 64 * MORE
    p = zoo.ask(*(t.to(DEVICE) for t in zoo.tensors(1, torch.float16, queries=tokens, keys=tokens,
                dim=16, value_dim=16, group=2, kv_heads=1)), mask=mh.causal())  # fmt: skip
    assert_swept(p, [mh.heatmap(cells)])


@pytest.mark.parametrize(("mask", "offset"), [(mh.window(5), 2**28), (mh.causal(), -(2**28))])
def test_a_map_of_more_cells_than_keys_far_away(mask, offset):
    q, k, v = zoo.tensors(1, torch.float16, queries=20, keys=10, dim=16, value_dim=16)
    p = zoo.ask(*(t.to(DEVICE) for t in (q, k, v)), mask=mask, offset=offset)
    assert_swept(p, [mh.heatmap(128)])


@pytest.mark.skipif(DEVICE != "cuda", reason="no GPU here")
@pytest.mark.parametrize("mask", [None, mh.causal(), mh.causal() & mh.window(77), mh.window(150)])
@pytest.mark.parametrize(
    ("tokens", "cells", "dim"),
    [(512, 32, 64), (512, 8, 128), (1024, 2, 64), (640, 5, 128), (256, 1, 64), (512, 16, 32),
     (512, 32, 256)],
)  # fmt: skip
def test_cells_of_one_size_in_wide_heads(tokens, cells, dim, mask):
    """Several in a tile, one, and of several tiles."""
    tensors = zoo.tensors(1, torch.bfloat16, queries=tokens, keys=tokens, dim=dim, value_dim=dim,
                          group=2, kv_heads=1)  # fmt: skip
    far, first = mh.mass(mh.window(150), name="far"), mh.mass(mh.prefix(tokens - 70))
    p = zoo.ask(*(t.to(DEVICE) for t in tensors), mask=mask)
    assert_swept(p, [mh.heatmap(cells), "received", far, first])


def test_a_sweep_gives_the_same_bits():
    view, asked = view_of(problem("causal")), [find(s) for s in SWEPT]
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
        given = {n: getattr(p, n) for n in ("mask", "scale", "softcap", "offset")}
        given["sinks"] = leaves[3] if len(leaves) > 3 else None
        seen = mh.observe(*leaves[:3], stats=stats, backend=backend, **given)
        lse = seen.lse.masked_fill(seen.lse == -torch.inf, 0.0)
        total = (seen.out * pull.to(seen.out.dtype)).sum() + (lse * weights[0]).sum()
        for weight, value in zip(weights[1:], seen.found.values(), strict=True):
            total = total + (value * weight).sum() / (10 if value is not seen.entropy else 1)
        return torch.autograd.grad(total, leaves)

    given = (p.query, p.key, p.value, *([p.sinks] if p.sinks is not None else []))
    wide = gradients([t.double() for t in given], "dense")
    found = gradients(given, "fused")
    for name, t, one, two in zip("qkvs"[: len(given)], given, found, wide, strict=True):
        assert one.dtype == t.dtype
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
    p, entropy = problem("causal"), find("entropy")
    wrong = look(p, (entropy,), "fused").found["entropy"] + 1e-3
    with pytest.raises(AssertionError):
        assert_close(wrong, entropy, p)


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
