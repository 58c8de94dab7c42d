"""Is one head enough: the study runs, and its figures are what they say they are."""

import importlib
import math
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def heads(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("one_head")


def test_a_run_of_the_study(heads):
    run = heads.study(heads.QUICK.of({"num_heads": 4}), 60)
    assert run["parameters"] == heads.study(heads.QUICK.of({"num_heads": 1}), 60)["parameters"]
    assert run["loss"] < math.log(27)
    assert 0 < run["unlike"] < 1
    assert run["one"] <= run["worst"]
    assert run["sum"] == pytest.approx(4 * run["one"])  # one layer


def test_heads_that_do_the_same_are_not_unlike(heads):
    settings = heads.QUICK.of({"num_heads": 2, "steps": 1})
    model = heads.Trainer(settings).model
    with torch.no_grad():
        weight = model.blocks[0].attention.qkv.weight
        for first in (0, 16):  # queries, then keys: the second head gets what the first has
            weight[first + 8 : first + 16] = weight[first : first + 8]
    ids = heads.pack(heads.part("test")[:20], 64)[0]
    assert heads.unlike(model, ids) == pytest.approx(0, abs=1e-5)


def test_rows_of_the_table(heads):
    same = {
        "parameters": 7,
        "unlike": None,
        "one": 1,
        "worst": 1,
        "layer": 2,
        "sum": 1,
        "seconds": 1,
    }
    losses = {1: (2.0, 2.2), 2: (1.9, 2.0)}
    runs = [{"heads": h, "seed": s, "loss": losses[h][s], **same} for s in (0, 1) for h in (1, 2)]
    one, two = heads.gathered(runs)
    assert (one["loss"], two["loss"]) == pytest.approx((2.1, 1.95))
    assert one["half"] == pytest.approx(12.706 * 0.1)
    assert two["beside"] == pytest.approx(-0.15)  # seed by seed: −0.1 and −0.2
    assert two["beside_half"] == pytest.approx(12.706 * 0.05)
