"""What torch.jit and torch.export make of a model: no call of it can be seen, so it is refused."""

import pytest
import torch
from hand_written import TOKENS, WIDTH, Block, clean, stack, texts
from torch import nn

import multihead as mh


@pytest.fixture(autouse=True)
def _nothing_is_left():
    assert clean()
    yield
    assert clean()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("inside", [False, True])
def test_torch_jit_is_refused(inside):
    traced = torch.jit.trace(stack()[0], texts())
    model = nn.Sequential(Block(), traced) if inside else traced
    with pytest.raises(ValueError, match="torch.jit module"), mh.record(model):
        model(texts())


def by_hand(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.transpose(-1, -2), -1) @ x


def smooth(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(x))


def outwards(x: torch.Tensor) -> torch.Tensor:
    far = torch.exp(x @ x.transpose(-1, -2))
    return (far / far.sum(-1, keepdim=True)) @ x


SCRIPTED = torch.jit.script(by_hand)


def helper(x):
    return SCRIPTED(x)


class Naming(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self._inner(self.block(x))

    def _inner(self, x):
        return helper(x)


class Holding(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.block, self.function = Block(), function

    def forward(self, x):
        held = self.function[0] if isinstance(self.function, list) else self.function
        return held(self.block(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_of_torch_jit_is_refused_where_it_works_attention_out():
    model = Holding(torch.jit.script(by_hand))
    with pytest.raises(ValueError, match="calls by_hand, a torch.jit function"), mh.record(model):
        model(texts())
    for model in (Naming(), Holding([torch.jit.script(outwards)])):
        with pytest.raises(ValueError, match="a torch.jit function that works"), mh.record(model):
            model(texts())
    reached = []  # it is refused at the second pass, and not only when all are done
    model = nn.Sequential(Block(), Holding(torch.jit.script(by_hand)))
    model[0].register_forward_hook(lambda *_: reached.append(0))
    with pytest.raises(ValueError, match="a torch.jit function that works"), mh.record(model):
        for _ in range(3):
            model(texts())
    assert reached == [0]
    model = Holding(torch.jit.script(smooth))
    with mh.record(model) as rec:
        model(texts())
    assert len(rec.layers) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_tracing_inside_is_refused():
    model = stack()
    with pytest.raises(ValueError, match="under torch.jit.trace"), mh.record(model):
        torch.jit.trace(model, texts())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_refusal_that_was_caught_comes_again_at_the_end():
    model = nn.Sequential(*(Block() for _ in range(4)), Holding(torch.jit.script(by_hand)))
    with pytest.raises(ValueError, match="a torch.jit function that works"), mh.record(model):
        model(texts())
        for _ in range(3):
            with pytest.raises(ValueError, match="a torch.jit function that works"):
                model(texts())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_refusal_comes_to_each_hand():
    model = Holding(torch.jit.script(by_hand))
    whole, part = (pytest.raises(ValueError, match="torch.jit function that works") for _ in "ab")
    with whole, mh.ablate(model, heads=[(0, 0)]), part, mh.record(model):
        model(texts())


def test_a_recording_that_begins_with_an_export():
    model = nn.Sequential(nn.Embedding(9, WIDTH), Block(), nn.Linear(WIDTH, 9))
    ids = torch.randint(0, 9, (2, TOKENS))
    with mh.record(model) as rec:
        with pytest.raises(Exception, match="torch.export cannot be recorded"):
            torch.export.export(model, (ids,), strict=False)
        model(ids)
    assert [layer.name for layer in rec.layers] == ["1"]
    assert int(rec.loss.isnan().sum()) == 2


def test_an_export_inside_is_refused_and_the_recording_goes_on():
    model, x = stack(), texts()
    with mh.record(model) as rec:
        model(x)
        with pytest.raises(Exception, match="torch.export cannot be recorded"):
            torch.export.export(model, (x,), strict=False)
    assert [len(layer.chunks) for layer in rec.layers] == [1, 1]
    assert torch.isfinite(rec.weights(0, 0)).all()
