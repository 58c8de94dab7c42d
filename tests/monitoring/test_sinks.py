"""A head with a sink: its relative entropy is that of the weights among its keys."""

import pytest
import torch
from watched_models import WIDTH, close, column, loss_of, sample, vectors

import multihead as mh
from multihead.monitoring.looking import sample_rows

TOKENS = 13


class Sinking(torch.nn.Module):
    def __init__(self, sinks, mask=None):
        super().__init__()
        torch.manual_seed(0)
        mask = mh.causal() if mask is None else mask
        self.block = mh.MultiHeadAttention(WIDTH, 3, mask=mask, sinks=True)
        with torch.no_grad():
            self.block.sinks[:] = torch.tensor(sinks)

    def forward(self, x):
        return self.block(x)


def relative_by_hand(model, x, rows=None):
    """Mean entropy of p / Σ p over ln of the keys allowed, (heads,), from the whole matrix."""
    chosen = sample_rows(x.shape[1], rows, seed=0)
    block = model.block
    q, k, _ = (t.unflatten(-1, (3, -1)).transpose(1, 2) for t in block.qkv(x).chunk(3, -1))
    scores = (q @ k.mT) / q.shape[-1] ** 0.5
    rows = torch.arange(x.shape[1])
    allowed = block.mask.allows(rows, rows).expand_as(scores)
    scores = scores.masked_fill(~allowed, -torch.inf)
    sinks = block.sinks[:, None, None].expand(len(x), -1, x.shape[1], 1)
    logs = torch.cat([scores, sinks], -1).log_softmax(-1)[..., :-1]
    logs = logs - logs.logsumexp(-1, keepdim=True)  # p / Σ p over the keys
    logs = torch.where(allowed, logs, 0.0)
    entropy = -(logs.exp() * logs * allowed).sum(-1)
    entropy, keys = entropy[..., chosen], allowed.sum(-1)[..., chosen]
    shares = entropy / keys.clamp(min=2).log()
    return shares.masked_fill(keys < 2, 0.0).sum((0, 2)) / (keys > 1).sum((0, 2))


@pytest.mark.parametrize("rows", [None, 5])
@pytest.mark.parametrize("sinks", [[-3.0, 0.0, 2.0], [6.0, 12.0, 60.0], [-60.0, 200.0, 1e4]])
def test_entropy_is_that_among_the_keys(sinks, rows):
    model, x = Sinking(sinks), vectors(tokens=TOKENS)
    record = sample(model, {"x": x}, rows=rows, stats=("entropy", "peak"))
    expected = relative_by_hand(Sinking(sinks).double(), x.double(), rows).detach()
    close(column(record, 0, "entropy"), expected)
    again = sample(Sinking([-1e4] * 3), {"x": x}, rows=rows, stats=("entropy",))
    close(column(record, 0, "entropy"), column(again, 0, "entropy"))  # as without a sink
    assert sinks[2] < 50 or column(record, 0, "peak")[2] < 1e-5  # others are of what is left


def test_a_head_that_rests_on_its_sink_has_not_collapsed(recwarn):
    model, told = Sinking([0.0, 0.0, 0.0]), []
    with mh.monitor(model, every=1, to=told.append) as watch:
        for step in range(20):
            if step == 10:
                model.block.sinks.data[1] = 9.0
            loss_of(model, {"x": vectors(tokens=TOKENS, seed=step)}).backward()
            watch.step()
    assert not [one for one in recwarn if issubclass(one.category, mh.HeadWarning)]
    assert told[-1]["layers"][0]["peak"][1] < 0.01
    assert told[-1]["layers"][0]["entropy"][1] > 0.8


@pytest.mark.filterwarnings("ignore::multihead.HeadWarning")
def test_one_that_looks_at_a_key_alone_has_collapsed_beside_a_sink_too():
    model, said = Sinking([2.0, 2.0, 2.0]), []
    with mh.monitor(model, every=1, to=lambda record: said.extend(record["warnings"])) as watch:
        for step in range(20):
            if step == 12:
                model.block.qkv.weight.data[4:8] *= 100
            loss_of(model, {"x": vectors(tokens=TOKENS, seed=step)}).backward()
            watch.step()
    assert ("collapse", 1) in [(one["kind"], one["head"]) for one in said]


def test_rows_that_see_the_sink_alone_count_nowhere():
    ids = torch.tensor([0, 1, 2, 3, *[4] * 9])
    hidden = mh.causal() & mh.documents(ids) & mh.dense((torch.arange(TOKENS) > 1)[None])
    model, x = Sinking([1.0, 2.0, 3.0], hidden), vectors(tokens=TOKENS)
    record = sample(model, {"x": x}, rows=None, stats=("entropy",))
    close(column(record, 0, "entropy"), relative_by_hand(model, x).detach())


@pytest.mark.parametrize("sinks", [[-3.0, 0.0, 2.0], [6.0, 12.0, 60.0]])
def test_the_floor_is_under_the_same_number(sinks):
    model, x = Sinking(sinks).double(), vectors(tokens=TOKENS).double()
    with mh.entropy_floor(model, at_least=1.0, weight=0.5) as floor:
        model(x)
    floor.penalty.backward()
    found = model.block.qkv.weight.grad.clone()
    assert model.block.sinks.grad is None
    model.zero_grad()
    expected = 0.5 * (1.0 - relative_by_hand(model, x)).clamp(min=0).sum()
    expected.backward()
    torch.testing.assert_close(floor.penalty, expected)
    torch.testing.assert_close(found, model.block.qkv.weight.grad)
    assert found.abs().max() > 1e-3
