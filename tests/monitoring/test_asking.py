"""What is asked wrongly is said at once: what was expected, what came, what to do."""

import numpy as np
import pytest
import torch
from torch import nn
from watched_models import Packed, loss_of, vectors, watched

import multihead as mh


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"every": 0}, "every is a whole number from 1 on, but 0 came"),
        ({"every": 2.5}, "every is a whole number from 1 on, but 2.5 came"),
        ({"every": True}, "but True came"),
        ({"rows": 0}, "rows is a whole number from 1 on, but 0 came"),
        ({"step": -1}, "step is a whole number from 0 on, but -1 came"),
        ({"stats": ()}, "stats are empty"),
        ({"stats": ("entropie",)}, "there is no statistic 'entropie'"),
        ({"stats": ("received",)}, "received is not one number a row"),
        ({"stats": (mh.heatmap(8),)}, "is not one number a row"),
        ({"stats": (mh.top(3),)}, "is not one number a row"),
        ({"stats": (mh.mass(mh.prefix(1), name="heads"),)}, "cannot be called 'heads'"),
        ({"to": 3}, "but a int came; give to='runs/first', say."),
        ({"to": ["runs", 3.0]}, "but a float came"),
    ],
)
def test_arguments(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Packed()
    with pytest.raises(ValueError, match=message):
        mh.monitor(model, **given)
    assert "forward" not in model.__dict__


def test_what_is_no_module():
    with pytest.raises(ValueError, match="a model is an nn.Module, but a function came"):
        mh.monitor(vectors)


def test_files_of_another_kind(tmp_path):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(ValueError, match="is a file, and a run is a folder"):
        mh.monitor(Packed(), to=tmp_path / "file")
    (tmp_path / "log.jsonl").write_text('{"step": "one"}\n')
    with pytest.raises(ValueError, match="has a line that no monitor wrote"):
        mh.monitor(Packed(), to=tmp_path / "log.jsonl")
    assert (tmp_path / "log.jsonl").read_text() == '{"step": "one"}\n'


@pytest.mark.parametrize("loss", [torch.zeros(2), np.zeros(2), "0.5", True, np.array(True)])
def test_a_loss_is_one_number(loss):
    model, given = watched("ours")
    with mh.monitor(model) as watch:
        loss_of(model, given)
        with pytest.raises(ValueError, match=r"step\(loss\) takes one number"):
            watch.step(loss)


@pytest.mark.parametrize(
    "loss", [1.5, np.float32(1.5), np.float64(1.5), np.array(1.5), np.array([1.5]), np.float16(1.5)]
)
def test_a_loss_may_be_numpys(loss):
    model, given = watched("ours")
    with mh.monitor(model, every=1) as watch:
        loss_of(model, given)
        assert watch.step(loss)["loss"] == 1.5


def test_a_step_without_a_forward():
    model = Packed()
    with mh.monitor(model) as watch, pytest.raises(ValueError, match="step 0 was to be looked at"):
        watch.step()


def test_later_a_step_without_a_forward_is_let_be():
    model, given = watched("ours")
    with mh.monitor(model, every=1) as watch:
        loss_of(model, given)
        assert watch.step() is not None
        assert watch.step() is None
        loss_of(model, given)
        assert watch.step()["step"] == 2


def test_a_model_of_its_own_attention_is_refused_at_the_first_step():
    class Hand(nn.Module):
        def forward(self, x):
            return (x @ x.mT).softmax(-1) @ x

    with mh.monitor(Hand()) as watch:
        watch.model(vectors().requires_grad_())
        with pytest.raises(ValueError, match="Hand has a softmax of its own"):
            watch.step()


def test_a_closed_monitor_looks_no_more():
    model, given = watched("ours")
    with mh.monitor(model, every=1) as watch:
        pass
    loss_of(model, given)
    assert watch.step() is None
    assert "forward" not in model.__dict__
