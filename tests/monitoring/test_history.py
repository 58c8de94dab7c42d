"""Warnings: a head that leaves its own history is named; a sharp one that is as ever is not."""

import warnings

import pytest
import torch
from watched_models import WIDTH, Packed, loss_of, vectors

import multihead as mh
from multihead.monitoring.history import ENOUGH, IN_A_ROW, History


def told(step, entropy, score=None):
    layer = {"name": "blocks.0", "heads": len(entropy), "entropy": entropy}
    return {"step": step, "layers": [layer | ({} if score is None else {"max_score": score})]}


def histories(samples):
    """What is said at each sample."""
    history = History()
    return [history.take(told(step, *sample)) for step, sample in enumerate(samples)]


def noise(level, spread, count, seed=0):
    draw = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    return (level + spread * draw).tolist()


def test_a_fall_that_stays_is_said_once_and_by_name():
    steady = noise(0.6, 0.02, 20)
    said = histories([([0.5, value],) for value in [*steady, *noise(0.05, 0.01, 10, seed=1)]])
    which = [step for step, found in enumerate(said) if found]
    assert which == [20 + IN_A_ROW - 1]
    (warning,) = said[which[0]]
    assert (warning["kind"], warning["layer"], warning["name"], warning["head"]) == (
        "collapse", 0, "blocks.0", 1,
    )  # fmt: skip
    assert warning["value"] < 0.1 < warning["limit"] < warning["usual"]
    assert "layer 0, blocks.0, head 1, left its own history (collapse)" in warning["text"]


@pytest.mark.parametrize("seed", range(8))
def test_a_head_that_stays_where_it_went_is_not_told_of_again(seed):
    fallen = [*noise(0.6, 0.05, 25, seed), *noise(0.08, 0.02, 60, seed + 100)]
    said = histories([([value],) for value in fallen])
    assert sum(map(len, said)) == 1


def test_a_head_that_is_sharp_from_the_start_is_healthy():
    assert not any(histories([([value],) for value in noise(0.02, 0.004, 60)]))


def test_one_odd_batch_is_none_of_its_doing():
    values = noise(0.6, 0.02, 40)
    values[20] = values[21] = 0.01
    assert not any(histories([([value],) for value in values]))


def test_a_slow_way_down_is_learning():
    values = [0.95 - 0.9 * step / 200 for step in range(200)]
    assert not any(histories([([value],) for value in values]))


def test_nothing_is_said_before_there_is_a_history():
    values = [0.9] * (ENOUGH - 1) + [0.01] * 20
    assert not any(histories([([value],) for value in values]))


def test_a_second_collapse_from_a_new_normal_is_said_again():
    values = noise(0.8, 0.01, 20) + noise(0.3, 0.01, 70) + noise(0.01, 0.001, 10)
    said = [step for step, found in enumerate(histories([([v],) for v in values])) if found]
    assert said == [20 + IN_A_ROW - 1, 90 + IN_A_ROW - 1]


def test_logits_that_explode():
    scores = noise(8, 0.5, 20) + [12 * 1.6**n for n in range(8)]
    said = histories([([0.5], [value]) for value in scores])
    (found,) = [found for found in said if found]
    assert (found[0]["kind"], found[0]["statistic"]) == ("explosion", "max_score")
    steady = [2 + 0.3 * step for step in range(60)]  # scores grow while a head learns
    assert not any(histories([([0.5], [value]) for value in steady]))


def collapse(model, head):
    """Turn one head's queries up, step by step, until it looks at one key alone."""
    rows = slice(4 * head, 4 * head + 4)
    with torch.no_grad():
        model.blocks[1].qkv.weight[rows] *= 60


def test_a_head_that_collapses_is_named_and_a_sharp_one_is_not():
    torch.manual_seed(0)
    model = Packed(layers=2).train()
    with torch.no_grad():
        model.blocks[0].qkv.weight[:4] *= 60  # sharp from the start
        model.blocks[0].qkv.weight[WIDTH : WIDTH + 4] *= 4
    messages = []
    watch = mh.monitor(model, every=1, stats=("entropy", "max_score"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(16):
            if step == 11:
                collapse(model, head=2)
            loss_of(model, {"x": vectors(tokens=20, seed=step)})
            record = watch.step()
            messages += [(step, w["kind"], w["layer"], w["head"]) for w in record["warnings"]]
    assert record["layers"][0]["entropy"][0] < 0.3
    assert messages == [(13, "collapse", 1, 2), (13, "explosion", 1, 2)]
    heads = [w for w in caught if issubclass(w.category, mh.HeadWarning)]
    assert ["layer 1, blocks.1, head 2" in str(w.message) for w in heads] == [True, True]
    assert heads[0].filename == __file__  # where step() was called


def test_a_run_that_goes_on_remembers(tmp_path):
    path, model = tmp_path / "heads.jsonl", Packed(layers=2).train()

    def run(steps, first):
        with mh.monitor(model, every=1, to=path, step=first) as watch:
            for step in range(first, first + steps):
                loss_of(model, {"x": vectors(tokens=20, seed=step)})
                watch.step()

    run(10, 0)
    collapse(model, head=1)
    with pytest.warns(mh.HeadWarning, match="blocks.1, head 1"):
        run(3, 10)


class OneKey(torch.nn.Module):
    """Every row may look at one token of another text: it has no choice."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([mh.MultiHeadAttention(WIDTH, 3)])

    def forward(self, x):
        return self.blocks[0](x, x[:, :1])


def steps_of(model, watch, steps=1):
    for _ in range(steps):
        loss_of(model, {"x": vectors()}).backward()
        record = watch.step()
    return record


def test_rows_of_one_key_have_no_entropy_and_no_warning(recwarn):
    model, records = OneKey(), []
    record = steps_of(model, mh.monitor(model, every=1, to=records.append), 12)
    assert not [one for one in recwarn if issubclass(one.category, mh.HeadWarning)]
    assert not any(record["warnings"] for record in records)
    (layer,) = record["layers"]
    assert layer["entropy"] == [None] * 3
    assert layer["undefined"] == {"entropy": [0, 1, 2]}
    assert layer["peak"] == [1.0] * 3
    assert record["quantiles"]["entropy"] == [[None] * 5]


@pytest.mark.parametrize("stats", [("entropy",), ("max_score",), ("entropy", "max_score")])
def test_what_is_no_number_is_told_where_rows_have_one_key_too(stats, tmp_path):
    model = OneKey()
    with mh.monitor(model, every=1, stats=stats, to=tmp_path) as watch:
        steps_of(model, watch, 3)
    with torch.no_grad():
        model.blocks[0].qkv.weight[:4] = torch.nan  # the first head's queries
    with mh.monitor(model, every=1, stats=stats, to=tmp_path, step=3) as watch:  # and goes on
        with pytest.warns(mh.HeadWarning, match="head 0: at step 3 .* is not a number") as said:
            record = steps_of(model, watch)
        assert len(said) == len(stats)
        assert record["layers"][0].get("undefined", {}) == (
            {"entropy": [1, 2]} if "entropy" in stats else {}
        )
