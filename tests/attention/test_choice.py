"""What "auto" takes on a GPU: told of tensors that are nowhere, so that it needs none."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import multihead as mh
from multihead.attention import fused
from multihead.attention.problem import _capability, in_an_export

pytest.importorskip("triton")


@pytest.fixture
def on(monkeypatch):
    """A GPU of that compute capability; what was remembered of it is forgotten afterwards."""

    def gpu(*numbers: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: numbers)
        for remembers in (fused._remembered, _capability):
            remembers.cache_clear()

    yield gpu
    monkeypatch.undo()
    for remembers in (fused._remembered, _capability):
        remembers.cache_clear()


def chosen(
    queries: int, keys: int, mask=None, *, dim: int = 128, grad: bool = False, **more
) -> str:
    with FakeTensorMode():
        q, k, v = (
            torch.empty(1, heads, n, dim, device="cuda:0", dtype=torch.bfloat16, requires_grad=grad)
            for heads, n in ((4, queries), (2, keys), (2, keys))
        )
        return mh.explain_choice(q, k, v, mask=mask, **more).backend


def test_a_plain_question_goes_to_pytorch(on):
    on(9, 0)
    assert chosen(4096, 4096, mh.causal()) == "sdpa"
    assert chosen(8192, 16384) == "sdpa"
    assert chosen(197, 197) == "sdpa"
    assert chosen(4096, 4096, mh.causal() & mh.window(9)) == "fused"
    assert chosen(1, 4097, mh.causal()) == "fused"


@pytest.mark.parametrize("lengths", [(5000, 5000), (4096, 5000), (5000, 4096)])
def test_lengths_that_are_not_round_go_to_our_kernels_without_gradients(on, lengths):
    on(9, 0)
    assert chosen(*lengths) == "fused"
    assert chosen(*lengths, grad=True) == "sdpa"
    assert chosen(*lengths, backend="sdpa") == "sdpa"
    assert chosen(*lengths, dim=32) == "sdpa"  # no kernel of ours is as fast there
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


def test_an_exported_graph_is_told_from_a_compiled_one():
    class Told(torch.nn.Module):
        def forward(self, x):
            return x + (1 if in_an_export() is None else 2)

    zero = torch.zeros(1)
    assert Told()(zero) == 1
    assert torch.compile(Told(), fullgraph=True, backend="eager")(zero) == 1
    for strict in (False, True):
        assert torch.export.export(Told(), (zero,), strict=strict).module()(zero) == 2
