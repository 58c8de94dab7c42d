"""What can be watched and what is refused: compilers, transforms, threads; nothing is left behind."""

import threading

import pytest
import torch
from architectures import SEEN, build, inputs
from dense_maps import close
from hand_written import TOKENS, WIDTH, Block, clean, stack, texts
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import multihead as mh


@pytest.fixture(autouse=True)
def _nothing_is_left():
    assert clean()
    yield
    assert clean()


def test_a_compiled_model_runs_as_it_is_written():
    model, x = stack(), texts()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        before = compiled(x)
        with mh.record(compiled) as rec:
            during = compiled(x)
        after = compiled(x)
    close(during, before, 1e-5)
    assert torch.equal(before, after)
    assert [layer.name for layer in rec.layers] == ["0", "1"]
    assert rec.model == "Sequential"


def test_a_model_with_a_compiled_part():
    model, x = stack(), texts()
    model[1] = torch.compile(model[1], backend="eager")
    model.append(Block())
    model[2].compile(backend="eager")
    with torch.no_grad():
        before = model(x)
        with mh.record(model) as rec:
            close(model(x), before, 1e-5)
    assert [layer.name for layer in rec.layers] == ["0", "1", "2"]


def test_torch_func():
    model, x = stack(), texts()
    parameters = dict(model.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    expected = torch.func.grad(loss)(parameters)
    with mh.record(model) as rec:
        found = torch.func.grad(loss)(parameters)
    for name, value in expected.items():
        close(found[name], value, 1e-4, name)
    with mh.record(model) as plain:
        model(x)
    close(rec.weights(1, 1), plain.weights(1, 1), 1e-6)
    close(rec[1]["entropy"], plain[1]["entropy"], 1e-5)
    close(rec[1].output_norm(), plain[1].output_norm(), 1e-5)


def test_vmap_is_refused():
    model, x = stack(), texts()[:, None]
    with pytest.raises(ValueError, match="torch.func.vmap cannot be recorded"), mh.record(model):
        torch.func.vmap(model)(x)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_bytes": "1GB"}, "max_bytes is a number of bytes, 0 or more, but '1GB' came"),
        ({"max_bytes": None}, "but None came"),
        ({"max_bytes": float("nan")}, "but nan came"),
        ({"max_bytes": -1}, "but -1 came"),
        ({"max_bytes": True}, "but True came"),
        ({"tokenizer": "smollm2"}, "but a str came; give the tokenizer itself"),
    ],
)
def test_what_was_asked_wrongly_is_told_at_the_start(given, message):
    ran = False
    with pytest.raises(ValueError, match=message), mh.record(stack(), **given):
        ran = True
    assert not ran


def test_what_is_no_module_is_refused():
    with (
        pytest.raises(ValueError, match="nn.Module, but a function came"),
        mh.record(sdpa and texts),
    ):
        pass


def in_a_thread(model):
    """Call a model where nobody listens to what is raised; what was is given back."""
    found = []

    def run():
        try:
            model(texts())
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


@pytest.mark.parametrize("also", [False, True])
def test_another_thread_is_refused_there_and_at_the_end(also):
    """Else the with statement would end well, with the other texts alone."""
    model = stack()
    with pytest.raises(RuntimeError, match="in another thread"), mh.record(model) as rec:
        if also:
            model(texts())
        found = in_a_thread(model)
    assert "another thread" in found[0]
    assert rec.layers == []
    with mh.record(model) as rec:  # and nothing is left behind
        model(texts())
    assert len(rec.layers) == 2


def test_another_thread_is_refused_by_each_hand():
    model = stack()
    with pytest.raises(RuntimeError, match="in another thread"), mh.ablate(model, [(0, 0)]):
        with pytest.raises(RuntimeError, match="in another thread"), mh.record(model):
            model(texts())
            in_a_thread(model)
        model(texts())


def test_watches_that_end_in_another_order_than_they_began():
    model, begun, done = stack(), threading.Event(), threading.Event()
    seen = []

    def other():
        with mh.record(elsewhere := stack()) as rec:
            begun.set()
            done.wait(20)
            elsewhere(texts())
        seen.append(len(rec.layers))

    thread = threading.Thread(target=other)
    with mh.record(model) as rec:
        thread.start()
        assert begun.wait(20)
        model(texts())
    done.set()
    thread.join()
    assert (len(rec.layers), seen) == (2, [2])


def test_what_else_went_wrong_is_told_first():
    model = stack()
    with pytest.raises(KeyError, match="mine"), mh.record(model):
        in_a_thread(model)
        raise KeyError("mine")


def test_another_model_in_another_thread_is_left_alone():
    one, two, x = stack(), build(SEEN["llama"]), inputs("decoder")
    before, found = two(**x).logits, []
    with mh.record(one) as rec:
        one(texts())
        thread = threading.Thread(target=lambda: found.append(two(**x).logits))
        thread.start()
        thread.join()
    assert torch.equal(found[0], before)
    assert len(rec.layers) == 2


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_an_exception_passes_through(name):
    model, given = build(SEEN[name]), inputs(SEEN[name].kind)
    before = model(**given)[0]

    def fail(*_):
        raise ZeroDivisionError

    hook = model.get_submodule("lm_head").register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError), mh.record(model):
        model(**given)
    hook.remove()
    assert clean()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert torch.equal(model(**given)[0], before)


def test_a_model_that_failed_and_was_called_again():
    model = stack()
    with mh.record(model) as rec:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, TOKENS, WIDTH + 1))
        model(texts())
    assert [layer.name for layer in rec.layers] == ["0", "1"]


class Root(nn.Module):
    """Attention of its own between two blocks."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x):
        h = self.one(x)
        g = h.unflatten(-1, (4, -1)).transpose(1, 2)
        return self.two(h + sdpa(g, g, g).transpose(1, 2).flatten(2))


def test_a_model_called_through_a_shell_that_was_made_before():
    model = Root()
    shell = torch.compile(model, backend="eager")
    with torch.no_grad(), mh.record(model) as rec:
        shell(texts())
    assert [layer.name for layer in rec.layers] == ["one", "Root", "two"]


def test_what_a_hook_on_the_model_works_out_is_not_the_models():
    model = stack()
    model.register_forward_hook(lambda _, __, out: (torch.softmax(out @ out.mT, -1) @ out, None)[1])
    with torch.no_grad(), mh.record(model) as rec:
        model(texts())
    assert [layer.name for layer in rec.layers] == ["0", "1"]
