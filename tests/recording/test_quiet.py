"""Modules that hide no attention are let through; all others, and what is laid on them, are seen."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

import multihead as mh
from multihead.recording import watch
from multihead.recording.quiet import is_quiet


def quiet(kind):
    return is_quiet(kind, kind.forward)


class Norm(nn.RMSNorm):
    """One of somebody else, who may do anything in it."""

    def forward(self, x):
        return super().forward(x)


def test_which_kinds_are_quiet():
    assert all(map(quiet, (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.GELU)))
    assert not any(map(quiet, (Norm, nn.Softmax, nn.MultiheadAttention, nn.Sequential)))


def test_norms_and_activations_of_transformers_are_quiet():
    pytest.importorskip("transformers")
    from transformers.activations import ACT2FN
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

    assert quiet(LlamaRMSNorm)
    assert quiet(type(ACT2FN["silu"]))
    assert not quiet(LlamaAttention)
    assert not quiet(LlamaMLP)


def test_a_kind_whose_forward_was_replaced_is_not(monkeypatch):
    assert quiet(nn.Identity)
    model = nn.Sequential(Block(), nn.Identity())
    monkeypatch.setattr(nn.Identity, "forward", lambda self, x: attention(x))
    assert not quiet(nn.Identity)
    with mh.record(model) as rec:
        model(torch.randn(1, 5, 8))
    assert [layer.name for layer in rec.layers] == ["0", "1"]


def attention(x):
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inside, self.outside = nn.RMSNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

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
    assert "rms_norm" not in names
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
    assert {"rms_norm", "linear"} <= {*other.names}


def test_attention_in_a_hook_of_a_quiet_module_is_seen():
    model = nn.Sequential(Block(), nn.RMSNorm(8))

    def looks(module, args):
        (x,) = args
        return (((x @ x.mT).softmax(-1) @ x),)

    model[1].register_forward_pre_hook(looks)
    with pytest.raises(ValueError, match="1"), mh.record(model):
        model(torch.randn(1, 5, 8))


def test_attention_in_a_forward_of_its_own_is_seen():
    model = nn.Sequential(Block(), nn.RMSNorm(8))
    vars(model[1])["forward"] = lambda x: (x @ x.mT).softmax(-1) @ x
    with pytest.raises(ValueError, match="1"), mh.record(model):
        model(torch.randn(1, 5, 8))


class Pooled(nn.Module):
    """Learned queries: their products with keys are a layer's, and no scores."""

    def __init__(self):
        super().__init__()
        self.block, self.act = Block(), nn.GELU()
        self.queries = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        x = self.block(x)
        return (self.act(self.queries) @ x.mT).softmax(-1) @ x


def test_what_is_made_of_parameters_stays_the_models_own():
    model = Pooled()
    with mh.record(model) as rec:
        model(torch.randn(1, 5, 8))
    assert [layer.name for layer in rec.layers] == ["block"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_attention_in_hooks_on_all_modules_is_seen(when):
    model = nn.Sequential(Block(), nn.GELU())
    calls = []

    def looks(module, args, *out):
        if isinstance(module, nn.GELU):
            calls.append(attention(args[0]))

    x = torch.randn(1, 5, 8)
    if when == "after":
        hook = register_module_forward_hook(looks)
        with mh.record(model) as rec:
            model(x)
    else:
        with mh.record(model) as rec:
            hook = register_module_forward_pre_hook(looks)
            model(x)
    hook.remove()
    assert calls
    assert len(rec.layers) == 2


class Student(nn.Module):
    def __init__(self, teacher):
        super().__init__()
        self.a, self.b, self.teacher = Block(), Block(), [teacher]

    def forward(self, x):
        return self.b(self.a(x)) + self.teacher[0](x)


def test_two_models_of_which_one_calls_the_other():
    teacher = nn.Sequential(Block(), Block())
    student = Student(teacher)
    with mh.record(student) as one, mh.record(teacher) as two:
        student(torch.randn(1, 5, 8))
    assert [layer.name for layer in one.layers] == ["a", "b"]
    assert [layer.name for layer in two.layers] == ["0", "1"]
    with mh.record(student) as one, mh.ablate(teacher, heads=[(0, 0)]):
        student(torch.randn(1, 5, 8))
    assert [layer.name for layer in one.layers] == ["a", "b"]


def test_a_module_that_runs_in_two_threads(monkeypatch):
    model, x, whole, raised = Block(), torch.randn(1, 5, 8), nn.Linear.forward, []

    def elsewhere():
        try:
            model.inside(x)
        except RuntimeError as error:
            raised.append(str(error))
        raised.append(torch._C._len_torch_function_stack())

    def forward(self, x):
        if self is model.inside and not raised and threading.current_thread().name != "other":
            other = threading.Thread(target=elsewhere, name="other")
            other.start()
            other.join()
        return whole(self, x)

    forward.__module__ = nn.Linear.__module__
    monkeypatch.setattr(nn.Linear, "forward", forward)
    with pytest.raises(RuntimeError, match="another thread"), mh.record(model):
        model(x)
    assert "another thread" in raised[0]
    assert raised[1] == torch._C._len_torch_function_stack() == 0


def test_names_that_a_model_gives_itself():
    class Names(nn.Sequential):
        def named_modules(self, *args, **more):
            for name, module in super().named_modules(*args, **more):
                yield name and f"mine.{name}", module

    model = Names(Block())
    with mh.record(model) as rec:
        model(torch.randn(1, 5, 8))
    assert [layer.name for layer in rec.layers] == ["mine.0"]


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt])
def test_a_quiet_module_that_breaks_off(monkeypatch, raised):
    def breaks(self, x):
        raise raised("so")

    breaks.__module__ = nn.Linear.__module__

    model, x = Block(), torch.randn(1, 5, 8)
    monkeypatch.setattr(nn.Linear, "forward", breaks)
    assert torch._C._len_torch_function_stack() == 0
    with pytest.raises(raised), mh.record(model):
        model(x)
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt])
def test_one_that_broke_off_hides_nothing_of_what_comes_later(monkeypatch, raised):
    model, x = Block(), torch.randn(1, 5, 8)
    whole, broken = nn.Linear.forward, [True]

    def forward(self, x):
        if broken.pop() if broken else False:
            raise raised("once")
        return whole(self, x)

    forward.__module__ = nn.Linear.__module__
    monkeypatch.setattr(nn.Linear, "forward", forward)
    with mh.record(model) as rec, torch.no_grad():
        with pytest.raises(raised, match="once"):
            model(x)
        model(x)
    assert len(rec.layers) == 1
