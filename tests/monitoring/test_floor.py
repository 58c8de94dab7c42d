"""A floor under the entropy: its value, its gradient, whom it lifts, and what it leaves alone."""

import pytest
import torch
from hand_written import clean, stack, texts
from watched_models import Packed, loss_of, vectors, watched

import multihead as mh


def relative_by_hand(block, x):
    """Mean entropy over ln of the keys allowed, (heads,), from the whole matrix; row 0 has no choice."""
    q, k, _ = (t.unflatten(-1, (3, -1)).transpose(1, 2) for t in block.qkv(x).chunk(3, -1))
    scores = (q @ k.mT) / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1)
    keys = torch.arange(1, x.shape[1] + 1.0)
    return (entropy / keys.log().clamp(min=1e-9))[..., 1:].mean((0, 2))


def sharp(by=30):
    """A layer with one head that is on its way to look at one key alone."""
    torch.manual_seed(0)
    model = Packed(layers=1).train()
    with torch.no_grad():
        model.blocks[0].qkv.weight[4:8] *= by
    return model


def test_value_and_gradient_are_those_of_the_formula():
    model, x = sharp().double(), vectors(tokens=11).double()
    with mh.entropy_floor(model, at_least=0.9, weight=0.5) as floor:
        model(x)
    floor.penalty.backward()
    found = model.blocks[0].qkv.weight.grad.clone()
    model.zero_grad()
    expected = 0.5 * (0.9 - relative_by_hand(model.blocks[0], x)).clamp(min=0).sum()
    expected.backward()
    torch.testing.assert_close(floor.penalty, expected)
    torch.testing.assert_close(found, model.blocks[0].qkv.weight.grad)
    assert found.abs().max() > 1e-3


def test_only_the_heads_named_and_only_those_below():
    model, x = sharp(), vectors(tokens=11)
    entropy = relative_by_hand(model.blocks[0], x)
    assert entropy[1] < 0.4 < entropy[[0, 2]].min()

    def penalty(**options):
        with mh.entropy_floor(model, at_least=0.4, weight=1.0, **options) as floor:
            model(x)
        return floor.penalty

    torch.testing.assert_close(penalty(), 0.4 - entropy[1])
    torch.testing.assert_close(penalty(heads=[("blocks.0", 1)]), 0.4 - entropy[1])
    assert penalty(heads=[(0, 0), (0, 2)]) == 0


@pytest.mark.parametrize("kind", ["llama", "gpt2", "encoder", "ours", "packed", "sdpa"])
def test_outputs_are_the_same_bits(kind):
    model, given = watched(kind)
    losses = []
    for floors in (False, True):
        torch.manual_seed(1)
        if floors:
            with mh.entropy_floor(model, at_least=1.0, weight=1.0) as floor:
                loss = loss_of(model, given)
        else:
            loss = loss_of(model, given)
        losses.append(loss)
    assert torch.equal(*losses)
    model.zero_grad()
    floor.penalty.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    assert clean()


def sharpening(model, x):
    """A task that wants the token before, six times as large: attention that is sharp."""
    return (model(x) - 6 * x.roll(1, 1)).square()[:, 1:].mean()


def train(floored, steps=120):
    model, x = sharp(by=12), vectors(batch=4, tokens=11)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        if floored:
            with mh.entropy_floor(model, at_least=0.5, weight=20.0, heads=[(0, 1)]) as floor:
                loss = sharpening(model, x)
            loss = loss + floor.penalty
        else:
            loss = sharpening(model, x)
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        return relative_by_hand(model.blocks[0], x)[1].item()


def test_a_collapsing_head_recovers():
    assert train(floored=False) < 0.3
    assert train(floored=True) > 0.45


def test_with_a_monitor_and_without_gradients():
    model, x = sharp(), vectors(tokens=11)
    watch = mh.monitor(model, rows=None)
    with mh.entropy_floor(model, at_least=0.4, weight=1.0) as floor:
        model(x)
    told = watch.step()["layers"][0]["entropy"]
    torch.testing.assert_close(
        torch.tensor(told), relative_by_hand(model.blocks[0], x), atol=2e-5, rtol=0
    )
    assert floor.penalty > 0
    with torch.no_grad(), mh.entropy_floor(model, at_least=0.4, weight=1.0) as floor:
        model(x)
    assert floor.penalty == 0


def test_a_floor_adds_up_over_forwards_and_begins_anew():
    model, x = sharp(), vectors(tokens=11)
    floor = mh.entropy_floor(model, at_least=0.4, weight=1.0)
    with floor:
        model(x)
    once = floor.penalty
    with floor:
        model(x)
        model(x)
    torch.testing.assert_close(floor.penalty, 2 * once)


def test_rows_without_a_choice_and_padding_do_not_count():
    model, x = sharp(), vectors(tokens=11)
    with mh.entropy_floor(model, at_least=0.9, weight=1.0) as floor:
        model(x[:, :1])
    assert floor.penalty == 0
    with mh.entropy_floor(model, at_least=0.9, weight=1.0) as alone:
        model(x[:, :7])
    model.blocks[0].mask = mh.causal() & mh.padding([7])
    with mh.entropy_floor(model, at_least=0.9, weight=1.0) as padded:
        model(x)
    torch.testing.assert_close(padded.penalty, alone.penalty)


def test_under_a_checkpoint_it_is_refused():
    model, x = stack(how=False), texts().requires_grad_()
    message = "given a floor.*switch checkpointing off"
    floor = mh.entropy_floor(model, at_least=0.4, weight=1.0)
    with pytest.raises(ValueError, match=message), floor:
        model(x)
    assert clean()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"at_least": 0}, "at_least is a number above 0 and at most 1"),
        ({"at_least": 1.5}, "but 1.5 came"),
        ({"weight": -1.0}, "weight is a number above 0, but -1.0 came"),
        ({"weight": None}, "but None came"),
        ({"rows": 0}, "rows is a whole number from 1 on"),
        ({"heads": [3]}, "heads are pairs of layer and head"),
    ],
)
def test_arguments(given, message):
    with pytest.raises(ValueError, match=message):
        mh.entropy_floor(Packed(), **({"at_least": 0.1, "weight": 0.1} | given))


def test_heads_that_are_not_there():
    model, x = Packed(), vectors()
    floor = mh.entropy_floor(model, at_least=0.1, weight=1.0, heads=[(7, 0)])
    with pytest.raises(ValueError, match="no layer 7 was called"), floor:
        model(x)
    floor = mh.entropy_floor(model, at_least=0.1, weight=1.0)
    with pytest.raises(ValueError, match="no attention call of Packed was seen"), floor:
        pass
