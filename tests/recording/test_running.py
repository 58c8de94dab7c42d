"""Recording changes nothing of how a model runs: gradients, dtypes, checkpoints, compilers."""

import contextlib

import pytest
import torch
from architectures import DECODERS, SEEN, build, implementations, inputs
from dense_maps import close
from hand_written import TOKENS, WIDTH, clean, stack, texts
from torch import nn
from torch.utils.checkpoint import checkpoint

import multihead as mh


def gradients(model, x, record=False, after=False):
    model.zero_grad()
    x = x.clone().requires_grad_()
    if not record:
        model(x).square().sum().backward()
        return None, [x.grad, *(p.grad for p in model.parameters())]
    with mh.record(model) as rec:
        loss = model(x).square().sum()
        if not after:
            loss.backward()
    if after:
        loss.backward()
    return rec, [x.grad, *(p.grad for p in model.parameters())]


@pytest.fixture(autouse=True)
def _nothing_is_left():
    assert clean()
    yield
    assert clean()


@pytest.mark.parametrize("after", [False, True], ids=["backward inside", "backward after"])
@pytest.mark.parametrize("how", [None, False, True], ids=["plain", "checkpoint", "reentrant"])
def test_gradients_are_the_same(how, after):
    model, x = stack(how), texts()
    _, expected = gradients(model, x)
    rec, found = gradients(model, x, record=True, after=after)
    for one, two in zip(expected, found, strict=True):
        close(two, one, 1e-4)
    assert [layer.queries for layer in rec.layers] == [TOKENS] * 2  # once, not again in backward
    assert len(rec.texts) == 1


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("how", [False, True], ids=["checkpoint", "reentrant"])
def test_gradients_of_torch_modules_under_a_checkpoint(how, weights):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

        def inner(self, x):
            return self.attn(x, x, x, need_weights=weights)[0]

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=how)

    model, x = Wrapped(), texts()
    _, expected = gradients(model, x)
    for after in (False, True):
        rec, found = gradients(model, x, record=True, after=after)
        for one, two in zip(expected, found, strict=True):
            close(two, one, 1e-4)
        assert [layer.queries for layer in rec.layers] == [TOKENS]


def test_saved_tensors_kept_elsewhere():
    model, x = stack(), texts()
    _, expected = gradients(model, x)
    with torch.autograd.graph.save_on_cpu():
        _, found = gradients(model, x, record=True)
    for one, two in zip(expected, found, strict=True):
        close(two, one, 1e-4)


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        (name, one)
        for name in ("llama", "t5", "gpt_oss", "gpt2", "bart")
        for one in implementations(SEEN[name])
    ],
)
def test_a_step_of_training_is_the_same(name, implementation):
    """Also into what makes the scores: position biases, sinks."""
    given = inputs(SEEN[name].kind)
    labels = given.get("decoder_input_ids", given["input_ids"])
    ends = []
    for recorded in (False, True):
        model = build(SEEN[name], implementation)
        with mh.record(model) if recorded else contextlib.nullcontext():
            model(**given, labels=labels).loss.backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        ends.append({n: p.detach() for n, p in model.named_parameters()})
    for part, value in ends[0].items():
        close(ends[1][part], value, 2e-5, part)


def test_gradient_checkpointing_of_transformers():
    model = build(DECODERS["llama"]).train()
    ids = inputs("decoder")["input_ids"]
    model(input_ids=ids, labels=ids).loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    for reentrant in (False, True):
        model.zero_grad()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        with mh.record(model) as rec:
            model(input_ids=ids, labels=ids).loss.backward()
        for one, p in zip(expected, model.parameters(), strict=True):
            close(p.grad, one, 1e-4)
        assert [layer.queries for layer in rec.layers] == [13, 13]


def test_autocast():
    model, x = stack(), texts()
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x)
        with mh.record(model) as rec:
            during = model(x)
    assert before.dtype == during.dtype
    close(during, before, 0.02)
    assert rec[0].tensors["0.query"].dtype == torch.bfloat16
    close(rec.weights(1, 1).sum(-1), torch.ones(TOKENS), 1e-3)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
def test_without_gradients(name, mode, inside):
    model, given = build(SEEN[name]), inputs(SEEN[name].kind)
    before, outer = model(**given)[0], contextlib.nullcontext if inside else mode
    with outer(), mh.record(model) as rec:
        for _ in range(2):
            with mode() if inside else contextlib.nullcontext():
                close(model(**given)[0], before, 5e-5)
                if name != "t5":
                    model.generate(**given, max_new_tokens=4, cache_implementation="static")
    for text in rec.texts:
        for layer in text.layers:
            close(text.weights(layer.index, 1).sum(-1), torch.ones(layer.queries), 1e-5)
    assert len(rec.texts) == (2 if name == "t5" else 4)
