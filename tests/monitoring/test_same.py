"""Nothing changes: losses, gradients, random numbers, hooks; and nothing is there between samples."""

import contextlib
import copy
import inspect
import pickle
import sys

import pytest
import torch
from hand_written import clean, texts
from torch.utils.checkpoint import checkpoint
from watched_models import KINDS, Packed, loss_of, train, vectors, watched

import multihead as mh
from multihead.recording import watch as interception


def hooks(model):
    """What was laid on a model and is no part of it."""
    each = [(*m._forward_hooks, *m._forward_pre_hooks) for m in model.modules()]
    return sum(map(len, each)) + ("forward" in model.__dict__)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_gradients_and_random_state_are_the_same_bits(kind):
    results = []
    for watches in (False, True):
        model, given = watched(kind)
        torch.manual_seed(1)
        watch = mh.monitor(model, every=2) if watches else None
        losses, grads, records = train(model, given, 4, watch)
        results.append((losses, grads, torch.get_rng_state()))
        assert len(records) == (2 if watches else 0)
        assert not hooks(model) or watches  # one is ready for step 4
    (losses, grads, state), (watched_losses, watched_grads, watched_state) = results
    assert losses == watched_losses
    assert all(torch.equal(grads[name], watched_grads[name]) for name in grads)
    assert torch.equal(state, watched_state)
    assert clean()


def test_between_samples_nothing_is_hooked_or_intercepted(monkeypatch):
    model, given = watched("ours")
    entered, plain = [], interception.watching

    @contextlib.contextmanager
    def counting(*arguments):
        entered.append(watch._step)
        with plain(*arguments) as found:
            yield found

    monkeypatch.setattr("multihead.monitoring.sampling.watching", counting)
    watch = mh.monitor(model, every=3)
    modes, hooked = [], []
    inside = model.blocks[0].forward

    def forward(*arguments, **named):
        modes.append(torch._C._len_torch_function_stack())
        hooked.append(hooks(model))
        return inside(*arguments, **named)

    model.blocks[0].forward = forward
    train(model, given, 7, watch)
    assert entered == [0, 3, 6]
    assert [bool(mode) for mode in modes] == [True, False, False, True, False, False, True]
    assert [bool(hook) for hook in hooked] == [True, False, False, True, False, False, True]
    assert hooks(model) == 0
    assert clean()


def test_between_samples_only_a_step_is_counted():
    """Every Python function of the monitor and the interception that runs in such a step."""
    model, given = watched("ours")
    called = set()

    def saw(frame, event, _):
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith(("multihead.recording", "multihead.monitoring")):
            called.add(frame.f_code.co_name)

    with mh.monitor(model, every=5, step=1) as watch:
        sys.setprofile(saw)
        try:
            train(model, given, 1, watch)
        finally:
            sys.setprofile(None)
    assert called == {"step", "_prepare", "_due"}


def test_only_the_first_forward_of_a_step_is_looked_at_and_no_evaluation(monkeypatch):
    model, given = watched("ours")
    calls = []
    plain = interception.Watch.handle
    monkeypatch.setattr(
        interception.Watch, "handle", lambda self, call: calls.append(1) or plain(self, call)
    )
    with mh.monitor(model, every=2) as watch:
        with torch.no_grad():
            loss_of(model, given)
        assert calls == []
        _, _, records = train(model, given, 3, watch, micro=4)
    assert [record["step"] for record in records] == [0, 2]
    assert len(calls) == 2 * 2  # two samples of two layers
    assert hooks(model) == 0


def test_a_forward_that_raises_leaves_nothing_behind_and_the_next_is_looked_at():
    model = Packed()
    watch = mh.monitor(model)
    with pytest.raises(ValueError, match="must be"):
        model(torch.randn(2, 3, 5))
    assert clean()
    loss_of(model, {"x": vectors()}).backward()
    assert len(watch.step()["layers"]) == 2
    assert hooks(model) == 0


def test_compiled_models_are_seen_and_stay_compiled():
    graphs = []

    def backend(graph, _):
        graphs.append(1)
        return lambda *given: ran.append(1) or graph(*given)

    def compiled(model):
        return torch.compile(model, backend=backend, fullgraph=True)

    def in_place(model):
        model.compile(backend=backend, fullgraph=True)
        return model

    for how in (compiled, in_place):
        torch._dynamo.reset()
        model, ran = how(watched("sdpa")[0]), []
        graphs.clear()
        watch = mh.monitor(model, every=3)
        _, _, records = train(model, {"input": texts()}, 7, watch)
        names = [layer["name"] for layer in records[1]["layers"]]
        assert [record["step"] for record in records] == [0, 3, 6]
        assert names == ["0", "1"]
        assert len(ran) == 4 * len(graphs) > 0  # steps 1, 2, 4 and 5, and no graph made anew
        watch.close()
        assert torch._dynamo.eval_frame._stance.stance == "default"


def test_what_a_compiled_model_was_made_from_is_not_what_is_called():
    model, given = watched("sdpa")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with mh.monitor(model) as watch:
        loss_of(compiled, given)
        with pytest.raises(ValueError, match="of a compiled one, what torch.compile gave"):
            watch.step()


def test_inside_a_recording():
    model, given = watched("sdpa")
    watch = mh.monitor(model, every=1, rows=None)
    with mh.record(model, stats=("entropy", "peak")) as rec:
        loss_of(model, given).backward()
    record = watch.step()
    peaks = torch.tensor([row["peak"] for row in rec.heads()])
    told = torch.tensor([value for layer in record["layers"] for value in layer["peak"]])
    torch.testing.assert_close(told, peaks, atol=2e-5, rtol=0)
    watch.close()
    assert clean()


def test_copies_made_while_a_sample_is_due_are_models_of_their_own():
    model, given = watched("ours")
    model.eval()
    watch = mh.monitor(model)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for twin in copies:
        with torch.no_grad():
            twin.blocks[0].out.weight.zero_()
        assert not torch.equal(twin(**given), model(**given))
    assert inspect.signature(model.forward) == inspect.signature(type(model).forward.__get__(model))
    watch.close()
    assert "forward" not in model.__dict__


def test_two_monitors_on_one_model():
    model, given = watched("ours")
    one, two = mh.monitor(model, every=2), mh.monitor(model, every=3)
    steps = {1: [], 2: []}
    for _ in range(6):
        loss_of(model, given).backward()
        for number, watch in ((1, one), (2, two)):
            if (record := watch.step()) is not None:
                steps[number].append(record["step"])
    assert steps == {1: [0, 2, 4], 2: [0, 3]}
    one.close(), two.close()
    assert hooks(model) == 0


def test_a_second_run_for_gradients_is_no_sample():
    """As where step() comes before the backward of a checkpoint around the whole model."""
    model, given = watched("sdpa")
    with mh.monitor(model, every=1) as watch:
        x = given["input"].clone().requires_grad_()
        loss = checkpoint(model, x, use_reentrant=True).square().mean()
        assert watch.step(loss) is not None
        loss.backward()  # which runs the model once more, and leaves the sample to a new forward
        loss_of(model, given)
        assert watch.step()["step"] == 1


def test_mixed_precision():
    results = []
    for watches in (False, True):
        model, given = watched("ours")
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            watch = mh.monitor(model, every=1) if watches else None
            results.append(train(model, given, 2, watch)[:2])
    (losses, grads), (watched_losses, watched_grads) = results
    assert losses == watched_losses
    assert all(torch.equal(grads[name], watched_grads[name]) for name in grads)
