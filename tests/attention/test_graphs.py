"""Inside torch.compile: which kernel a graph takes, and the same numbers as outside of it."""

import dataclasses

import pytest
import torch
import zoo
from kernels import DEVICE, grad_of, problem
from oracle import assert_by_the_rule, results
from torch._dynamo.testing import CompileCounterWithBackend

import multihead as mh
from multihead.attention import Partial, cudnn, dense, flex, flex_blocks, fused
from multihead.attention.band import Band
from multihead.attention.fused import operators

GPU = pytest.mark.skipif(DEVICE == "cpu", reason="no GPU here")

# ---- our own kernels -----------------------------------------------------------------------------


@pytest.mark.parametrize("lie", ["by heads", "by tokens", "apart"])
@pytest.mark.parametrize("name", ["causal", "sinks", "one query", "three queries", "odd widths"])
def test_the_operators_that_a_compiler_sees(name, lie):
    """With their shapes, dtypes and strides."""
    p = problem(name)
    if lie != "by heads":
        given = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (p.query, p.key, p.value)]
        if lie == "apart":  # of 16 bytes it is a part
            given = [torch.cat([t, t], -1)[..., : t.shape[-1]] for t in given]
        p = dataclasses.replace(p, query=given[0], key=given[1], value=given[2])
    question, asked = fused.question_of(p), fused.Asked(True, True, True, True, (Band(1, -1),))
    bands = [n for band in asked.masses for n in band[:3]]
    torch.library.opcheck(
        operators.forward_operator, (*operators.pack(question), list(asked[:4]), bands),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip
    told = fused.look(p, asked)
    rows = told.lse.masked_fill(told.lse == -torch.inf, 0.0)
    torch.library.opcheck(
        operators.backward_operator,
        (*operators.pack(question), grad_of(p), told.lse, rows, rows, None, rows[None], bands),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


@pytest.mark.parametrize("tokens", [20, 3])
def test_compiled_to_code_as_projections_lie(tokens):
    """As a layer's heads come: results lie the same way, and the graph around counts on it."""
    projected = [torch.randn(2, n, 64, device=DEVICE).half() for n in (tokens, 200, 200)]
    projected = [t.requires_grad_() for t in projected]

    def ask(*given):
        q, k, v = (t.view(2, -1, 4, 16).transpose(1, 2) for t in given)
        out = mh.attend(q, k, v, mask=mh.causal(), backend="fused")
        return out.transpose(1, 2).flatten(2) * 2

    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):  # they know nothing of strides
        found = torch.compile(ask, fullgraph=True)(*projected)
    expected = ask(*projected)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)
    pull = torch.randn_like(found)
    one, two = (torch.autograd.grad(out, projected, pull) for out in (found, expected))
    torch.testing.assert_close(one, two, rtol=0, atol=2e-2)


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "both"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", ["causal lengths", "offsets"])
def test_our_operators_in_a_graph(name, dynamic, grad, monkeypatch):
    """One operator each way, for every length; on a GPU it is what "auto" takes there."""
    from multihead.attention.fused import launch

    p, launched, forward = problem(name), [], launch.forward
    monkeypatch.setattr(launch, "forward", lambda *given: launched.append(1) or forward(*given))

    def ask(query, key, value):
        offset = p.offset if isinstance(p.offset, torch.Tensor) else None  # follows from sizes
        given = {"mask": p.mask, "softcap": p.softcap, "offset": offset, "scale": p.scale}
        backend = "auto" if DEVICE == "cuda" else "fused"
        return mh.attend(query, key, value, **given, backend=backend)

    torch._dynamo.reset()
    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(ask, fullgraph=True, backend=counted, dynamic=dynamic)
    for fewer in (0, 3, 4, 5) if dynamic else (0, 3):
        q = p.query[:, :, fewer:].detach().clone(memory_format=torch.contiguous_format)
        q.requires_grad_(grad)
        k, v = (t.detach().requires_grad_(grad) for t in (p.key, p.value))
        launched.clear()
        found = compiled(q, k, v)
        assert launched == [1]
        expected = ask(q, k, v)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)
        if grad:
            pull = torch.randn_like(found)
            one, two = (torch.autograd.grad(out, (q, k, v), pull) for out in (found, expected))
            torch.testing.assert_close(one, two, rtol=0, atol=2e-2)
    assert not dynamic or counted.frame_count <= 3  # at first, sizes that are equal stay so


def test_keys_that_are_values_too_in_a_graph():
    q = torch.randn(1, 2, 20, 16, device=DEVICE).half().requires_grad_()

    def ask(q):
        return mh.attend(q, q, q, mask=mh.causal(), backend="fused")

    torch._dynamo.reset()
    found, expected = torch.compile(ask, fullgraph=True, backend="aot_eager")(q), ask(q)
    one, two = (torch.autograd.grad(out.sum(), q) for out in (found, expected))
    torch.testing.assert_close(one, two, rtol=0, atol=2e-2)


# ---- FlexAttention: what our kernels do not know -------------------------------------------------


def packed(tokens):
    return mh.causal() & mh.documents(torch.arange(tokens, device=DEVICE) // 70)


FLEX = {
    "packed": lambda n: {"mask": packed(n)},
    "alibi": lambda n: {"mask": packed(n), "bias": mh.alibi(mh.alibi(4).slopes.to(DEVICE))},
    "bias": lambda n: {"bias": torch.linspace(-2, 2, n, device=DEVICE)},
    "softcap, sinks": lambda n: {
        "mask": packed(n) | mh.prefix(3), "softcap": 1.3, "sinks": torch.zeros(4, device=DEVICE)
    },
    "offsets": lambda n: {"mask": packed(n), "offset": torch.tensor([3, -40], device=DEVICE)},
    "a table": lambda n: {"mask": torch.ones(n, n, device=DEVICE, dtype=torch.bool).tril_(5)},
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", FLEX)
def test_flex_in_a_graph(name, dynamic):
    """Traced with the graph around it; of another length too, for all of which one is enough."""
    torch._dynamo.reset()
    counted = CompileCounterWithBackend("aot_eager")

    @torch.no_grad
    def ask(q, k, v, asked):
        return flex.run(zoo.ask(q, k, v, **asked))

    compiled = torch.compile(ask, fullgraph=True, backend=counted, dynamic=dynamic)
    for tokens in (300, 410, 520):
        given = zoo.tensors(queries=tokens, keys=tokens, dim=16, value_dim=16, group=2, kv_heads=2)
        q, k, v = (t.to(DEVICE) for t in given)
        asked = FLEX[name](tokens)
        asked["mask"] = asked.get("mask")
        found, expected = compiled(q, k, v, asked), dense.run(zoo.ask(q, k, v, **asked))
        torch.testing.assert_close(found.out, expected.out, rtol=0, atol=2e-6)
        torch.testing.assert_close(found.lse, expected.lse, rtol=1e-6, atol=2e-6)
    assert not dynamic or counted.frame_count <= 2


@pytest.mark.parametrize("offset", [(0, None), (7, None), (0, torch.tensor([3, -40, 9]))], ids=str)
def test_the_operator_that_lists_blocks(offset):
    ids = torch.arange(3 * 500).view(3, 500) // 70
    text, data = mh.masks.write(mh.causal() & mh.documents(ids))
    torch.library.opcheck(
        flex_blocks.blocks_operator, (data, text, 3, 300, 500, *offset),
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


@GPU
@pytest.mark.parametrize("tokens", [3, 200, 1000])
@pytest.mark.parametrize("name", FLEX)
def test_flex_is_what_a_graph_takes_and_gives_gradients(name, tokens, monkeypatch):
    torch._dynamo.reset()
    run = flex.run
    q, k, v = (t.cuda() for t in zoo.tensors(3, torch.bfloat16, queries=tokens, keys=tokens, dim=64,
                                             value_dim=64, group=2, kv_heads=2))  # fmt: skip
    asked = FLEX[name](tokens)
    asked["mask"] = asked.get("mask")
    p, taken = zoo.ask(q, k, v, **asked), []
    monkeypatch.setattr(flex, "run", lambda p: taken.append(1) or run(p))

    @torch.compile(fullgraph=True)
    def ask(q, k, v):
        return mh.attend(q, k, v, **asked)

    found = results(lambda p: Partial(ask(p.query, p.key, p.value), q), p, grad_of(p))
    assert_by_the_rule(p, found, grad_of(p))
    assert taken


# ---- cuDNN's kernel, in training -----------------------------------------------------------------


def test_an_lse_without_a_gradient_says_so():
    lse, query = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3, 4, requires_grad=True)
    key = torch.zeros(1, 2, 3, 4)

    def ask(lse, query, key=key):
        compiling = torch.compiler.is_compiling()
        marked = cudnn.marked_operator if compiling else cudnn._Marked.apply
        return query.exp().sum(), marked(lse, query, key)

    torch._dynamo.reset()
    compiled = torch.compile(lambda *given: ask(*given)[0], fullgraph=True, backend="aot_eager")
    for out in (ask(lse, query)[0], compiled(lse, query)):
        assert torch.autograd.grad(out, query)[0].eq(1).all()
    with pytest.raises(ValueError, match="ask for backend='fused'"):
        ask(lse, query)[1].sum().backward()
    for marked in (cudnn._Marked.apply, cudnn.marked_operator):
        for given in ((query, key), (key, query)):  # whichever of the two trains
            assert marked(lse, *given).requires_grad
    torch._dynamo.reset()
    with pytest.raises(Exception, match="ask for backend='fused'"):
        torch.compile(ask, backend="aot_eager")(lse, query)


@GPU
@pytest.mark.parametrize("mask", [None, mh.causal()], ids=str)
@pytest.mark.parametrize("lie", ["by heads", "by tokens"])
def test_cudnn_is_what_a_graph_takes_in_training(lie, mask):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("cuDNN is asked from compute capability 9.0 on alone")
    given = zoo.tensors(3, torch.bfloat16, queries=300, keys=300, dim=64, value_dim=64, group=2,
                        kv_heads=2)  # fmt: skip
    p = zoo.ask(*(t.cuda() for t in given), mask=mask)
    torch._dynamo.reset()

    @torch.compile(fullgraph=True)
    def ask(q, k, v):
        if lie == "by tokens":
            q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
        return mh.attend(q, k, v, mask=mask) * 1

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        found = results(lambda p: Partial(ask(p.query, p.key, p.value), p.key), p, grad_of(p))
    assert_by_the_rule(p, found, grad_of(p))
    names = {event.key for event in seen.key_averages()}
    assert "aten::_scaled_dot_product_cudnn_attention_backward" in names
