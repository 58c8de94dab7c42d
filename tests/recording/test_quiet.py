"""Modules that hide no attention are let through; all others, and what is laid on them, are seen."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import multihead as mh
from multihead.recording import watch
from multihead.recording.quiet import is_quiet


class Norm(nn.Module):
    """As many models write it."""

    def __init__(self, dim=8):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), 1e-6

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Act(nn.Module):
    def forward(self, x):
        return nn.functional.silu(x)


class Product(Norm):
    def forward(self, x):
        return x @ x.mT


class Named(Norm):
    def forward(self, x):
        return x.softmax(-1)


class Given(Norm):
    def forward(self, x, what):
        return what(x)


class Any(Norm):
    def forward(self, x, *what):
        return what[0](x)


class Inner(Norm):
    def forward(self, x):
        return (lambda y: y)(x)


class Called(Norm):
    def __call__(self, x):
        return F.scaled_dot_product_attention(x, x, x)


def test_which_kinds_are_quiet():
    assert all(map(is_quiet, (Norm, Act, nn.Linear, nn.LayerNorm, nn.Embedding, nn.GELU)))
    loud = (Product, Named, Given, Any, Inner, Called, nn.Softmax, nn.MultiheadAttention)
    assert not any(map(is_quiet, loud))


def test_another_library_under_the_name_of_torch(monkeypatch):
    class Other(Norm):
        def forward(self, x):
            return torch.sqrt(x)

    monkeypatch.setitem(globals(), "torch", nn)
    assert not is_quiet(Other)


class Block(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.norm, self.inside, self.outside = norm or Norm(), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.inside(self.norm(x))
        heads = x.unflatten(-1, (2, 4)).transpose(-2, -3)
        out = F.scaled_dot_product_attention(heads, heads, heads)
        return self.outside(out.transpose(-2, -3).flatten(-2))


class Counts(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def test_their_functions_do_not_come_by(monkeypatch):
    names, old = [], watch._Mode.__torch_function__

    def sees(self, func, types, args=(), kwargs=None):
        names.append(func.__name__)
        return old(self, func, types, args, kwargs)

    monkeypatch.setattr(watch._Mode, "__torch_function__", sees)
    model = Block()
    with mh.record(model) as rec:
        model(torch.randn(1, 5, 8))
    assert len(rec.layers) == 1
    assert {"scaled_dot_product_attention", "unflatten"} <= {*names}
    assert not {"rsqrt", "pow"} & {*names}
    assert names.count("linear") == 1  # W_O


@pytest.mark.parametrize("over", [False, True])
def test_modes_of_others_see_all_of_them(over):
    model, other = Block(), Counts()
    x = torch.randn(1, 5, 8)
    with torch.no_grad():
        if over:
            with mh.record(model), other:
                model(x)
        else:
            with other, mh.record(model):
                model(x)
    assert {"rsqrt", "linear", "pow"} <= {*other.names}


def test_attention_in_a_hook_of_a_quiet_module_is_seen():
    model = nn.Sequential(Block(), Norm())

    def looks(module, args):
        (x,) = args
        return (((x @ x.mT).softmax(-1) @ x),)

    model[1].register_forward_pre_hook(looks)
    with pytest.raises(ValueError, match="1"), mh.record(model):
        model(torch.randn(1, 5, 8))


def test_attention_in_a_forward_of_its_own_is_seen():
    model = nn.Sequential(Block(), Norm())
    vars(model[1])["forward"] = lambda x: (x @ x.mT).softmax(-1) @ x
    with pytest.raises(ValueError, match="1"), mh.record(model):
        model(torch.randn(1, 5, 8))


class Pooled(nn.Module):
    """Learned queries through a norm: their products with keys are a layer's, and no scores."""

    def __init__(self):
        super().__init__()
        self.block, self.norm, self.queries = Block(), Norm(), nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        x = self.block(x)
        return (self.norm(self.queries) @ x.mT).softmax(-1) @ x


def test_what_is_made_of_parameters_stays_the_models_own():
    model = Pooled()
    with mh.record(model) as rec:
        model(torch.randn(1, 5, 8))
    assert [layer.name for layer in rec.layers] == ["block"]


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt])
def test_a_quiet_module_that_breaks_off(monkeypatch, raised):
    def breaks(self, x):
        raise raised("so")

    model, x = Block(), torch.randn(1, 5, 8)
    monkeypatch.setattr(nn.Linear, "forward", breaks)
    assert torch._C._len_torch_function_stack() == 0
    with pytest.raises(raised), mh.record(model):
        model(x)
    assert torch._C._len_torch_function_stack() == 0


def test_one_that_broke_off_hides_nothing_of_what_comes_later(monkeypatch):
    model, x = Block(), torch.randn(1, 5, 8)
    whole, broken = nn.Linear.forward, [True]

    def forward(self, x):
        if broken.pop() if broken else False:
            raise ValueError("once")
        return whole(self, x)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    with mh.record(model) as rec, torch.no_grad():
        with pytest.raises(ValueError, match="once"):
            model(x)
        model(x)
    assert len(rec.layers) == 1
