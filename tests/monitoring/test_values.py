"""The numbers: those of `record` and `observe` on the same batch, relative to what rows may see."""

import math

import pytest
import torch
from watched_models import (
    KINDS,
    TOKENS,
    WIDTH,
    Biased,
    Packed,
    close,
    column,
    loss_of,
    sample,
    train,
    vectors,
    watched,
)

import multihead as mh
from multihead.monitoring import picture
from multihead.monitoring.looking import sample_rows

STATS = ("max_score", "entropy", "peak", mh.mass(mh.prefix(1)), "distance")


def recorded(model, given, stats):
    """What `record` sees of the same forward: dropout drops, but statistics are before it."""
    with mh.record(model, stats=stats) as rec:
        loss_of(model, given)
    return rec


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_that_of_a_recording(kind):
    model, given = watched(kind)
    state = torch.get_rng_state()  # dropout of the first layer changes what the second sees
    record = sample(model, given, stats=STATS, rows=None)
    torch.set_rng_state(state)
    rec = recorded(model, given, STATS)
    assert [layer["name"] for layer in record["layers"]] == [layer.name for layer in rec.layers]
    for number, layer in enumerate(rec.layers):
        real = torch.ones(layer.batch, layer.queries, dtype=torch.bool)
        real = (rec.real if rec.real is not None else real)[:, None].expand(-1, layer.heads, -1)
        close(column(record, number, "peak"), _mean(layer["peak"], real))
        close(column(record, number, "distance"), _mean(layer["distance"], real), 2e-4)
        top = layer["max_score"].masked_fill(~real, -torch.inf).amax((0, 2))
        close(column(record, number, "max_score"), top)
        weights = torch.stack(
            [
                rec.weights(number, head, batch=b)
                for b in range(layer.batch)
                for head in range(layer.heads)
            ]
        ).unflatten(0, (layer.batch, layer.heads))
        seen = (weights > 0).sum(-1)  # of random weights none is 0 but by a mask
        counted = real & (seen > 1)
        relative = layer["entropy"] / seen.clamp(min=2).log()
        close(column(record, number, "entropy"), _mean(relative, counted))
        if kind != "packed":
            first = layer["mass:prefix(1)"]
        else:
            starts = torch.arange(TOKENS) // 5 * 5
            first = weights.gather(-1, starts.expand(*weights.shape[:2], -1)[..., None])[..., 0]
        close(column(record, number, "mass:prefix(1)"), _mean(first, real))


def _mean(found, counted):
    return found.masked_fill(~counted, 0.0).sum((0, 2)) / counted.sum((0, 2))


def test_a_sample_of_rows_is_observe_of_these_rows_and_max_score_of_all():
    model, x = Packed(layers=1).train(), vectors(tokens=97)
    record = sample(model, {"x": x}, rows=10, step=7)
    rows = sample_rows(97, 10, seed=7)
    stats = ("entropy", "peak", mh.mass(mh.prefix(1)))
    with torch.no_grad():
        _, some = model.blocks[0].observe(x, stats=stats, rows=rows)
        _, every = model.blocks[0].observe(x, stats=("max_score",))
    relative = some.entropy / (rows + 1.0).clamp(min=2).log()
    close(column(record, 0, "entropy"), relative[:, :, rows > 0].mean((0, 2)))
    close(column(record, 0, "peak"), some.peak.mean((0, 2)))
    close(column(record, 0, "mass:prefix(1)"), some["mass:prefix(1)"].mean((0, 2)))
    close(column(record, 0, "max_score"), every.max_score.amax((0, 2)))


def test_rows_are_spread_over_the_text_and_drawn_anew_each_sample():
    rows = [sample_rows(1000, 50, seed) for seed in range(5)]
    for some in rows:
        assert torch.equal(some // 20, torch.arange(50))
    assert len({tuple(some.tolist()) for some in rows}) == 5
    assert torch.equal(sample_rows(7, 50, 0), torch.arange(7))


def alike(model):
    """Every head looks at all keys alike."""
    with torch.no_grad():
        for block in model.blocks:
            block.qkv.weight[:WIDTH] = 0  # the queries'
            block.qkv.bias[:WIDTH] = 0
    return model


@pytest.mark.parametrize("documents", [None, torch.arange(24) // 3, torch.arange(24) // 11])
def test_packing_does_not_move_the_entropy(documents):
    model = alike(Packed(documents).train())
    record = sample(model, {"x": vectors(tokens=24)})
    for layer in range(2):
        close(column(record, layer, "entropy"), torch.ones(3))


def test_the_first_token_is_the_documents_own():
    """Rows that look at all alike give 1/1, 1/2, 1/3, … to the first of their document."""
    model = alike(Packed(torch.arange(12) // 3).train())
    record = sample(model, {"x": vectors(tokens=12)})
    close(column(record, 0, "mass:prefix(1)"), torch.full((3,), (1 + 1 / 2 + 1 / 3) / 3))
    window = mh.causal() & mh.window(4)  # which makes no documents: most rows do not see token 0
    model.blocks[0].mask = window
    record = sample(model, {"x": vectors(tokens=12)})
    close(column(record, 0, "mass:prefix(1)"), torch.full((3,), (1 + 1 / 2 + 1 / 3 + 1 / 4) / 12))


def test_bits_that_say_the_same_as_documents():
    x, ids = vectors(tokens=12), torch.arange(12) // 5
    packed = Packed(ids).train()
    bits = Packed().train()
    bits.load_state_dict(packed.state_dict())
    mask = (mh.causal() & mh.documents(ids)).allows(torch.arange(12), torch.arange(12))
    for block in bits.blocks:
        block.mask = mh.dense(mask)
    one, two = sample(packed, {"x": x}), sample(bits, {"x": x})
    assert one["layers"] == two["layers"]


@pytest.mark.parametrize("front", [True, False])
def test_padding_counts_nowhere(front):
    model, given = watched("llama")
    ids = given["input_ids"][:1, :9]
    pads, real = ids.new_zeros(1, 4), torch.ones_like(ids)
    padded = {
        "input_ids": torch.cat([pads, ids] if front else [ids, pads], 1),
        "attention_mask": torch.cat([pads, real] if front else [real, pads], 1),
    }
    padded["position_ids"] = (padded["attention_mask"].cumsum(1) - 1).clamp(0)
    one = sample(model, {"input_ids": ids, "attention_mask": None}, rows=None)
    two = sample(model, padded, rows=None)
    for key in ("entropy", "peak", "max_score", "mass:prefix(1)"):
        for layer in range(2):
            close(column(two, layer, key), column(one, layer, key), 1e-4)


def test_a_bias_that_forbids_leaves_fewer_keys():
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    slope = -0.1 * (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).abs()
    model, x = Biased(slope.masked_fill(later, -torch.inf)), vectors()
    record = sample(model, {"x": x}, rows=None)
    with torch.no_grad():
        seen = mh.observe(
            *model.parts(x), bias=slope, mask=mh.causal(), stats=("entropy",), offset=0
        )
    relative = seen.entropy[..., 1:] / torch.arange(2.0, TOKENS + 1).log()
    close(column(record, 0, "entropy"), relative.mean((0, 2)))


def test_a_score_is_what_it_was_where_a_bias_stands_far_from_0():
    model, x = (
        Biased(2000 * torch.arange(3.0)[:, None, None] - 0.1 * torch.arange(TOKENS)),
        vectors(),
    )
    record = sample(model, {"x": x}, rows=None)
    with torch.no_grad():
        seen = mh.observe(*model.parts(x), bias=model.bias, stats=("max_score",), offset=0)
    close(column(record, 0, "max_score"), seen.max_score.amax((0, 2)), 2e-3)
    assert column(record, 0, "max_score")[2] > 3900


def test_quantiles_and_the_worst_are_of_the_numbers():
    model, given = watched("llama")
    record = sample(model, given)
    for key, layers in record["quantiles"].items():
        for told, layer in zip(layers, record["layers"], strict=True):
            values = torch.tensor(layer[key], dtype=torch.float64)
            expected = values.quantile(torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64))
            close(torch.tensor(told), expected)
        worst = [head["value"] for head in record["worst"][key]]
        every = sorted(value for layer in record["layers"] for value in layer[key])
        assert worst == (every[:5] if key == "entropy" else every[::-1][:5])
        named = record["worst"][key][0]
        assert record["layers"][named["layer"]][key][named["head"]] == named["value"]
        assert named["name"] == record["layers"][named["layer"]]["name"]
        assert picture(record, key).shape == (2, 6)


def test_the_loss_and_the_step_are_told():
    model, given = watched("sdpa")
    losses, _, records = train(model, given, 5, mh.monitor(model, every=2, step=4))
    assert [record["step"] for record in records] == [4, 6, 8]
    assert [record["loss"] for record in records] == losses[::2]


def test_what_is_no_number_is_null():
    model, x = Packed(layers=1).train(), vectors()
    with torch.no_grad():
        model.blocks[0].qkv.weight[:4] = math.nan  # the first head's queries
    with pytest.warns(mh.HeadWarning, match="head 0: at step 0 its max_score is not a number"):
        record = sample(model, {"x": x}, stats=("max_score", "peak"))
    assert record["layers"][0]["max_score"][0] is None
    assert None not in record["layers"][0]["max_score"][1:]
    assert record["quantiles"]["max_score"][0][0] is not None
