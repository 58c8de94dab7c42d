"""What "auto" takes on a GPU: told of tensors that are nowhere, so that it needs none."""

import pytest
import torch
import zoo
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import multihead as mh
from multihead.attention import flash_gpu, flex, fused
from multihead.attention.problem import capability, in_an_export

launch = pytest.importorskip("multihead.attention.fused.launch")


@pytest.fixture
def on(monkeypatch):
    """A GPU of that compute capability; what was remembered of it is forgotten afterwards."""

    def gpu(*numbers: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: numbers)
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
        monkeypatch.setattr(launch, "processors", lambda _: 132)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
        monkeypatch.setattr(FakeTensor, "data_ptr", lambda t: 2 * t.storage_offset())
        forget()

    def forget() -> None:
        for remembers in (fused._machine, fused.cudnn._widest, capability):
            remembers.cache_clear()

    yield gpu
    monkeypatch.undo()
    forget()


def chosen(
    queries, keys, mask=None, *, batch=1, dim=128, value_dim=None, grad=False,
    skew=(0, 0, 0), dtype=torch.bfloat16, **more,
) -> str:  # fmt: skip
    made = {"device": "cuda:0", "dtype": dtype, "requires_grad": grad}
    with FakeTensorMode():
        q, k, v = (
            torch.empty_strided(
                (batch, heads, n, wide), (heads * n * step, n * step, step, 1), **made
            )
            for heads, n, wide, step in (
                (4, queries, dim, dim + skew[0]),
                (2, keys, dim, dim + skew[1]),
                (2, keys, value_dim or dim, (value_dim or dim) + skew[2]),
            )
        )
        more = {n: torch.empty(s, **made) if isinstance(s, tuple) else s for n, s in more.items()}
        return mh.explain_choice(q, k, v, mask=mask, **more).backend


def test_a_plain_question_goes_to_pytorch(on):
    on(9, 0)
    assert chosen(4096, 4096, mh.causal()) == "sdpa"
    assert chosen(8192, 16384) == "sdpa"
    assert chosen(197, 197) == "sdpa"
    assert chosen(4096, 4096, mh.causal() & mh.window(9)) == "fused"
    assert chosen(2999, 2999) == "sdpa"
    assert chosen(70, 200) == "sdpa"
    assert chosen(5000, 77) == "sdpa"  # few keys: its kernel is the faster


@pytest.mark.parametrize(("dim", "batch"), [(32, 12), (64, 12), (128, 8)])
def test_many_rows_go_to_our_kernels(on, dim, batch):
    """Of four heads, 4,224 rows each: eight blocks of 192 rows or 128 a multiprocessor."""
    on(9, 0)
    many = {"dim": dim, "batch": batch}
    assert chosen(4224, 4224, **many) == chosen(4224, 4224, mh.causal(), **many) == "fused"
    for other in ({"batch": batch - 1}, {"grad": True}, {"dim": 48}, {"dim": 256}):
        assert chosen(4224, 4224, **many | other) == "sdpa", other
    assert chosen(4224, 2944, **many) == chosen(2944, 4224, **many) == "sdpa"
    on(10, 0)
    assert chosen(4224, 4224, **many) == "sdpa"


def test_gpus_of_another_maker_have_kernels_whatever_their_number(on, monkeypatch):
    on(7, 5)
    assert fused._machine(torch.device("cuda:0")) is not None
    monkeypatch.setattr(torch.version, "hip", "7.0")
    on(7, 5)
    assert fused._machine(torch.device("cuda:0")) is None


def test_wide_heads_go_to_pytorch_where_cudnn_takes_them(on, monkeypatch):
    on(9, 0)
    assert [chosen(4096, 4096, dim=dim) for dim in (192, 256)] == ["sdpa", "sdpa"]
    assert chosen(4096, 4096, dim=264) == "flex"
    on(10, 0)
    assert chosen(4096, 4096, dim=192) == "fused"
    on(9, 0)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 90900)
    fused.cudnn._widest.cache_clear()
    assert [chosen(4096, 4096, dim=dim) for dim in (128, 192)] == ["sdpa", "fused"]


@pytest.mark.parametrize(("queries", "keys"), [(2, 5001), (32, 129), (32, 4096), (128, 2048)])
def test_a_few_queries_over_a_cache_that_grows(on, queries, keys):
    on(9, 0)
    assert chosen(queries, keys) == "fused"
    on(10, 0)
    assert chosen(queries, keys) == "fused"


def test_one_query_goes_to_the_kernel_that_asks_little_of_the_host(on, monkeypatch):
    on(9, 0)
    for keys in (100, 4096, 4097):
        assert chosen(1, keys) == chosen(1, keys, mh.causal(), batch=3, dim=80) == "sdpa"
    ours = ({"mask": mh.causal() & mh.window(9)}, {"mask": mh.causal(), "offset": 99},
            {"softcap": 2.0}, {"dim": 20}, {"grad": True})  # fmt: skip
    for asked in ours:
        assert chosen(1, 4097, **asked) == "fused", asked
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert chosen(1, 4097) == "fused"
    monkeypatch.undo()
    on(9, 0)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert chosen(1, 4097) == "fused"


@pytest.mark.parametrize(
    ("asked", "others"),
    [
        ({"sinks": (4,)}, "fused"), ({"bias": (1, 1, 1, 4097)}, "dense"),
        ({"scale": 1e-40}, "dense"), ({"scale": -1.0}, "dense"), ({"value_dim": 64}, "fused"),
        ({"dim": 264}, "dense"), ({"dtype": torch.float32}, "dense"), ({"skew": (4, 0, 0)}, "fused"),
        ({"skew": (0, 4, 0)}, "fused"), ({"skew": (0, 0, 4)}, "fused"),
        ({"batch": 65536}, "flex"),
    ],
)  # fmt: skip
def test_what_that_kernel_does_not_know_goes_elsewhere(on, asked, others):
    on(9, 0)
    assert chosen(1, 4097, **asked) == others


def test_where_there_is_no_such_kernel(on, monkeypatch):
    on(9, 0)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert chosen(1, 4097) == "fused"
    on(7, 5)
    assert chosen(1, 4097) != "sdpa"


def test_an_lse_of_a_nan_is_one(monkeypatch):
    """The kernel says −∞, or ∞ where it shared the keys out."""
    out, lse = torch.randn(2, 3, 1, 8).bfloat16(), torch.randn(2, 3, 1)
    out[0, 1], out[1, 2] = torch.nan, torch.nan
    told = lse.clone()
    told[0, 1], told[1, 2] = torch.inf, -torch.inf
    monkeypatch.setattr(flash_gpu, "_forward", lambda *_, scale: (out, told, None))
    q, k, v = zoo.tensors(0, torch.bfloat16, queries=1)
    found = flash_gpu.run(zoo.ask(q, k, v))
    lse[0, 1], lse[1, 2] = torch.nan, torch.nan
    torch.testing.assert_close(found.lse, lse, rtol=0, atol=0, equal_nan=True)
    assert found.lse.dtype == torch.float32


@pytest.mark.parametrize(
    ("asked", "knows"),
    [({}, True), ({"mask": mh.causal()}, True), ({"softcap": 2.0}, False),
     ({"mask": mh.window(9)}, False), ({"sinks": 4}, False)],
)  # fmt: skip
def test_whether_cudnn_can_take_the_way_back(on, asked, knows):
    on(9, 0)
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 4, 512, 64, device="cuda:0", dtype=torch.bfloat16) for _ in "qkv")
        asked = {
            n: torch.zeros(4, device="cuda:0") if n == "sinks" else v for n, v in asked.items()
        }
        assert fused._cudnn_knows(zoo.ask(q, k, v, **asked)) == knows


def test_how_tensors_must_lie_for_that_kernel():
    """Columns side by side, rows and the first number of all in steps of 16 bytes."""
    wide = torch.zeros(2, 4, 99, 72, dtype=torch.bfloat16)
    assert not flash_gpu._lies_well(torch.from_dlpack(wide.flatten()[1:-71]).view(-1, 1, 1, 72))
    for lies_well in (
        wide[..., 8:],
        wide[:, :, 3:4],
        wide.transpose(1, 2),
        wide[:1].expand(5, -1, -1, -1),
    ):
        assert flash_gpu._lies_well(lies_well)
    for askew in (wide[..., 3:-5], wide[..., :70].contiguous(), wide.mT):
        assert not flash_gpu._lies_well(askew)


@pytest.mark.parametrize(
    "lengths", [(5000, 5000), (3001, 3001), (4096, 5000), (1500, 5000), (5000, 4096)]
)
def test_lengths_that_are_not_round_go_to_our_kernels_without_gradients(on, lengths):
    on(9, 0)
    assert chosen(*lengths) == "fused"
    assert chosen(*lengths, grad=True) == "sdpa"
    assert chosen(*lengths, backend="sdpa") == "sdpa"
    for dim, backend in {32: "fused", 256: "fused", 48: "sdpa", 80: "sdpa"}.items():
        assert chosen(*lengths, dim=dim) == backend  # ours where a kernel is laid out for the width
    on(10, 0)
    assert chosen(*lengths) == "sdpa"
    on(8, 0)
    assert chosen(*lengths) == "fused"  # where cuDNN is not the fastest anyway


def test_where_our_kernels_cannot_run_pytorch_answers_at_any_length(on, monkeypatch):
    on(9, 0)
    found = fused.importlib.util.find_spec

    def without(name, *more):
        return None if name == "triton" else found(name, *more)

    monkeypatch.setattr(fused.importlib.util, "find_spec", without)
    assert chosen(5000, 5000) == "sdpa"


def test_what_a_graph_takes(on, monkeypatch):
    """cuDNN in training, else our operators, FlexAttention where they know no mask; and in an
    exported graph what runs anywhere."""
    on(9, 0)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    apart = mh.documents([0] * 2000 + [1] * 2096)
    assert chosen(4096, 4096, mh.causal()) == "fused"
    assert chosen(4096, 4096, mh.causal(), grad=True) == "sdpa"
    assert chosen(4096, 4096, apart) == "flex"
    for room in (fused, fused.cudnn, flex):
        monkeypatch.setattr(room, "in_an_export", lambda: "exported")
    for grad in (False, True):
        assert chosen(4096, 4096, mh.causal(), grad=grad) == "tiled"
        assert chosen(4096, 4096, apart, grad=grad) == "tiled"


def test_cudnn_is_not_asked_where_bits_are_to_be_equal(on):
    on(9, 0)
    torch.use_deterministic_algorithms(True)
    try:
        assert chosen(4096, 4096, mh.causal(), grad=True) == "fused"
        assert chosen(4096, 4096, mh.causal()) == "sdpa"  # whose way there has an order
    finally:
        torch.use_deterministic_algorithms(False)


def test_more_texts_than_a_grid_has_room_for(on):
    on(9, 0)
    assert chosen(32, 32, mh.window(3), batch=70_000) != "fused"
    assert chosen(32, 32, mh.window(3), batch=65_535) == "fused"


def test_an_exported_graph_is_told_from_a_compiled_one():
    class Told(torch.nn.Module):
        def forward(self, x):
            return x + (1 if in_an_export() is None else 2)

    zero = torch.zeros(1)
    assert Told()(zero) == 1
    assert torch.compile(Told(), fullgraph=True, backend="eager")(zero) == 1
    for strict in (False, True):
        assert torch.export.export(Told(), (zero,), strict=strict).module()(zero) == 2
