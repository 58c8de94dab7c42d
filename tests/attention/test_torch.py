"""attend inside the rest of torch: compile, export, vmap, autocast, modes, devices."""

import pytest
import torch
import zoo
from torch.overrides import TorchFunctionMode

import multihead as mh

IDS = torch.randint(0, 3, (zoo.BATCH, zoo.KEYS), generator=torch.Generator().manual_seed(0))
# torch.compile cannot trace ~ of anything but tensors and ints: such a mask is made outside.
NOT_ITSELF = ~mh.offset(0)
TILED = {"backend": "tiled"}  # "auto" would take these few scores to dense
QUESTIONS = {
    "plain": lambda q, k, v: mh.attend(q, k, v),
    "causal": lambda q, k, v: mh.attend(q, k, v, mask=mh.causal()),
    "window": lambda q, k, v: mh.attend(q, k, v, mask=mh.causal() & mh.window(3), **TILED),
    "documents": lambda q, k, v: mh.attend(q, k, v, mask=mh.documents(IDS) | mh.prefix(1), **TILED),
    "alibi": lambda q, k, v: mh.attend(q, k, v, bias=mh.alibi(zoo.HEADS), softcap=3.0, **TILED),
    "offsets": lambda q, k, v: mh.attend(
        q, k, v, mask=mh.causal(), offset=torch.tensor([1, 4]), **TILED
    ),
    "dropout": lambda q, k, v: mh.attend(q, k, v, dropout=0.2, **TILED),
    "dense": lambda q, k, v: mh.attend(q, k, v, mask=NOT_ITSELF, backend="dense"),
}
every_question = pytest.mark.parametrize("question", QUESTIONS)


def seeded(function, *tensors):
    torch.manual_seed(5)
    return function(*tensors)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


@every_question
def test_compile_has_no_graph_break(question):
    ask = QUESTIONS[question]
    compiled = torch.compile(ask, fullgraph=True, backend="aot_eager")
    leaves = [t.requires_grad_() for t in zoo.tensors()]
    out, expected = seeded(compiled, *leaves), seeded(ask, *leaves)
    torch.testing.assert_close(out, expected)
    grads = torch.autograd.grad(out.square().sum(), leaves)
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    torch.testing.assert_close(grads, wanted)


@every_question
def test_compile_with_sizes_that_change(question):
    ask = QUESTIONS[question]
    compiled = torch.compile(ask, fullgraph=True, backend="aot_eager", dynamic=True)
    for queries in (zoo.QUERIES, 4, 1):
        q, k, v = zoo.tensors(queries=queries)
        torch.testing.assert_close(seeded(compiled, q, k, v), seeded(ask, q, k, v))


@pytest.mark.parametrize("question", ["plain", "causal", "window", "dense"])
def test_one_graph_serves_every_length(question):
    """Nothing fixes a size: after the first change of length, no graph is made any more."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    ask = QUESTIONS[question]
    compiled = torch.compile(ask, fullgraph=True, backend=count)
    for length in range(20, 32):
        q, k, v = zoo.tensors(queries=length, keys=length + 3)
        torch.testing.assert_close(compiled(q, k, v), ask(q, k, v))
    assert len(graphs) <= 2


def test_plain_numbers_may_change_under_compile():
    q, k, v = zoo.tensors()
    ask = {
        "offset": lambda n: mh.attend(q, k, v, mask=mh.causal(), offset=n),
        "scale": lambda n: mh.attend(q, k, v, scale=0.1 + n),
        "softcap": lambda n: mh.attend(q, k, v, softcap=0.5 + n),
        "window": lambda n: mh.attend(q, k, v, mask=mh.window(n + 1)),
    }
    for name, call in ask.items():
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="eager")
        for n in (1, 2, 3):
            torch.testing.assert_close(
                compiled(n), call(n), msg=lambda t, name=name: f"{name}: {t}"
            )


@pytest.mark.parametrize("keys", [3, 15, 16, 40])
def test_a_nan_query_under_compile(keys):
    q, k, v = zoo.tensors(keys=keys)
    q[0, 3, 2, 1] = torch.nan
    compiled = torch.compile(QUESTIONS["plain"], fullgraph=True, backend="aot_eager", dynamic=True)
    found = compiled(q, k, v)
    assert found[0, 3, 2].isnan().all()
    assert found.isnan().any(-1).sum() == 1


def test_forward_mode_is_right_or_refused():
    q, k, v = zoo.tensors(dtype=torch.float64)
    tangent = torch.randn_like(q)
    _, found = torch.func.jvp(lambda q: mh.attend(q, k, v, mask=mh.causal()), (q,), (tangent,))
    step = 1e-6
    ahead, behind = (mh.attend(q + s * tangent, k, v, mask=mh.causal()) for s in (step, -step))
    torch.testing.assert_close(found, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="forward-mode"):
        torch.func.jvp(lambda q: mh.attend(q, k, v, backend="tiled"), (q,), (tangent,))


@pytest.mark.parametrize("question", ["causal", "window"])
def test_compile_by_inductor(question):
    ask = QUESTIONS[question]
    leaves = [t.requires_grad_() for t in zoo.tensors()]
    out = torch.compile(ask, fullgraph=True)(*leaves)
    torch.testing.assert_close(out, ask(*leaves))
    out.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


@every_question
def test_export(question):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return QUESTIONS[question](q, k, v)

    program = torch.export.export(Model(), tuple(zoo.tensors()))
    fresh = zoo.tensors(1)
    torch.testing.assert_close(seeded(program.module(), *fresh), seeded(Model(), *fresh))
    nodes = [str(node.target) for node in program.graph.nodes]
    if question in ("window", "documents", "alibi", "offsets", "dropout"):
        assert nodes.count("multihead.tiled.default") == 1


@pytest.mark.parametrize("question", [name for name in QUESTIONS if name != "dropout"])
def test_vmap_over_batches_and_their_gradients(question):
    ask = QUESTIONS[question]
    many = [
        torch.stack(each)
        for each in zip(zoo.tensors(1), zoo.tensors(2), zoo.tensors(3), strict=True)
    ]
    one_by_one = torch.stack([ask(*each) for each in zip(*many, strict=True)])
    torch.testing.assert_close(torch.func.vmap(ask)(*many), one_by_one)
    shared = torch.func.vmap(ask, in_dims=(0, None, None))(many[0], *zoo.tensors()[1:])
    torch.testing.assert_close(shared[1], ask(many[0][1], *zoo.tensors()[1:]))

    gradient = torch.func.grad(lambda q, k, v: ask(q, k, v).square().sum(), argnums=(0, 1, 2))
    mapped = torch.func.vmap(gradient)(*many)
    wanted = [gradient(*each) for each in zip(*many, strict=True)]
    for found, expected in zip(mapped, zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(expected))


def test_vmap_over_what_sdpa_cannot_map():
    """By name it refuses; "auto" goes elsewhere: sinks, biases and the data of masks."""
    q, k, v = zoo.tensors()
    mapped = {
        "sinks": torch.randn(4, zoo.HEADS),
        "bias": torch.randn(4, 1, 1, zoo.KEYS),
        "mask": torch.randint(1, zoo.KEYS, (4, zoo.BATCH)),
    }
    for name, many in mapped.items():

        def ask(one, name=name, **more):
            one = mh.padding(one) if name == "mask" else one
            return mh.attend(q, k, v, **{name: one}, **more)

        each = torch.stack([ask(one) for one in many])
        for backend in ("auto", "dense", "tiled"):
            found = torch.func.vmap(lambda one: ask(one, backend=backend))(many)  # noqa: B023
            torch.testing.assert_close(found, each)
        with pytest.raises(ValueError, match="cannot answer this"):
            torch.func.vmap(lambda one: ask(one, backend="sdpa"))(many)


@pytest.mark.parametrize("backend", zoo.ON_CPU)
def test_autocast_as_sdpa_does(backend):
    q, k, v = zoo.tensors()
    with torch.autocast("cpu", torch.bfloat16):
        out = mh.attend(q, k, v, mask=mh.causal(), backend=backend)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        wide = mh.attend(q.double(), k.double(), v.double(), backend=backend)
    assert out.dtype == theirs.dtype == torch.bfloat16
    assert wide.dtype == torch.float64
    rounded = [t.bfloat16() for t in (q, k, v)]
    # Exactly what these tensors give outside: nothing inside was cast again.
    assert torch.equal(out, mh.attend(*rounded, mask=mh.causal(), backend=backend))


@pytest.mark.parametrize("backend", zoo.ON_CPU)
def test_shapes_on_meta(backend):
    q, k, v = (t.to("meta") for t in zoo.tensors())
    out = mh.attend(q, k, v, mask=mh.causal(), backend=backend)
    assert out.shape == (zoo.BATCH, zoo.HEADS, zoo.QUERIES, zoo.VALUE_DIM)
    assert out.device.type == "meta"


def test_modes_see_attend():
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is mh.attend:
                seen.append((len(args), kwargs["mask"]))
            return function(*args, **(kwargs or {}))

    q, k, v = zoo.tensors()
    with Watch():
        inside = mh.attend(q, k, v, mask=mh.causal())
    assert seen == [(3, mh.causal())]
    assert torch.equal(inside, mh.attend(q, k, v, mask=mh.causal()))


def test_a_tensor_subclass_sees_attend():
    class Loud(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.calls += function is mh.attend
            return super().__torch_function__(function, types, args, kwargs or {})

    q, k, v = zoo.tensors()
    out = mh.attend(q.as_subclass(Loud), k, v)
    assert isinstance(out, Loud)
    assert Loud.calls == 1


def test_tiled_is_a_sound_operator():
    """torch's own examination of a custom operator: schema, fake kernel, autograd, AOT."""
    from multihead.attention.tiled import _forward, _pack

    problem = zoo.ask(*zoo.tensors(), mask=mh.documents(IDS) & mh.causal(), softcap=2.0)
    *given, data, plain = _pack(problem)
    torch.library.opcheck(
        _forward,
        (*given, list(data), *plain),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )
