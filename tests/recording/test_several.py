"""Several at once: records inside one another, models side by side, texts one after another."""

import numpy as np
import pytest
import torch
from architectures import SEEN, build, inputs, maps
from dense_maps import check_maps, close
from torch import nn

import multihead as mh


def encoder(seed=0, layers=2):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, layers).eval()


def test_records_inside_one_another():
    model, x = encoder(), torch.randn(2, 5, 8)
    with mh.record(model) as outer:
        with mh.record(model, stats=("entropy",)) as inner:
            model(x)
        model(x + 1)
    assert [len(rec.texts) for rec in (outer, inner)] == [2, 1]
    assert inner[0].statistics == ["entropy"]
    for head in range(2):
        assert torch.equal(outer.weights(1, head), inner.weights(1, head))


@pytest.mark.parametrize("names", [("llama", "mistral"), ("bert", "gpt2"), ("gpt_oss", "llama")])
def test_two_models_at_once(names):
    models = [build(SEEN[name], "eager") for name in names]
    given = inputs("decoder")
    with torch.no_grad(), mh.record(models[0]) as one, mh.record(models[1]) as two:
        models[1](**given)
        models[0](**given)
    for rec, model in zip((one, two), models, strict=True):
        check_maps(rec, rec.layers, maps(model, **given))


def test_a_model_that_is_not_recorded_is_left_alone():
    model, other, given = build(SEEN["llama"]), build(SEEN["mistral"]), inputs("decoder")
    with torch.no_grad():
        before = other(**given).logits
        with mh.record(model) as rec:
            model(**given)
            assert torch.equal(other(**given).logits, before)
    assert len(rec.layers) == 2
    assert len(rec.texts) == 1


@pytest.mark.parametrize("way", ["part of it", "around it"])
def test_a_model_and_a_part_of_it_are_not_watched_both(way):
    model = encoder()
    one, two = (model, model.layers[0]) if way == "part of it" else (model.layers[0], model)
    with (
        pytest.raises(ValueError, match="is watched already"),
        mh.record(one, allow_unseen=True),
        mh.record(two),
    ):
        pass


def test_texts_one_after_another():
    model = build(SEEN["llama"])
    ids = inputs("decoder", batch=3)["input_ids"]
    texts = [ids[:1, :7], ids[1:, :5], ids[:1, :7]]
    with torch.no_grad(), mh.record(model) as rec:
        for text in texts:
            model(text)
    assert rec.texts[0] is rec
    assert len(rec.texts) == 3
    for found, text in zip(rec.texts, texts, strict=True):
        assert torch.equal(found.ids, text)
        check_maps(found, found.layers, maps(model, input_ids=text))
    assert "2 more texts" in repr(rec)


def test_a_layer_that_is_called_twice_in_a_pass():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attn(y := self.attn(x, x, x)[0], y, y)[0]

    model = Twice()
    with mh.record(model) as rec:
        model(torch.randn(1, 5, 8))
        model(torch.randn(1, 3, 8))
    assert [layer.name for layer in rec.layers] == ["attn", "attn#1"]
    assert [[layer.queries for layer in text.layers] for text in rec.texts] == [[5, 5], [3, 3]]


def test_without_queries_and_keys():
    model, given = build(SEEN["mistral"]), inputs("decoder")
    with torch.no_grad(), mh.record(model) as whole:
        model(**given)
    with torch.no_grad(), mh.record(model, keep_qk=False) as rec:
        model(**given)
    for one, two in zip(rec.layers, whole.layers, strict=True):
        for name in two.statistics:
            assert torch.equal(one[name], two[name])
        assert not any("query" in name or name.startswith("key.") for name in one.tensors)
    assert rec.heads() == whole.heads()
    with pytest.raises(ValueError, match="keep_qk=False and has statistics alone"):
        rec.weights(0, 0)


def test_weights_that_are_not_numbers_are_reported():
    model = encoder()
    with torch.no_grad():
        model.layers[1].self_attn.in_proj_weight[0, 0] = torch.nan
        with mh.record(model) as rec:
            model(torch.randn(1, 5, 8))
    assert rec.damaged() == ["layers.1.self_attn"]
    assert rec[0].lse.isfinite().all()
    assert rec.heads()[0]["entropy"] > 0


def test_one_query_that_is_not_a_number_stays_in_its_row():
    class One(nn.Module):
        def forward(self, q, k):
            return mh.attend(q, k, k, mask=mh.causal())

    q, k, model = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4), One()
    q[0, 1, 2] = torch.nan
    with mh.record(model) as rec:
        model(q, k)
    assert rec.damaged() == [rec[0].name]
    lost = rec.weights(0, 1).isnan().any(-1)
    assert lost.tolist() == [False, False, True, False, False]
    assert not rec.weights(0, 0).isnan().any()


def test_statistics_of_choice():
    model, given = build(SEEN["llama"]), inputs("decoder")
    stats = (
        "peak_key",
        mh.top(3),
        mh.mass(mh.offset(-1), name="previous"),
        mh.heatmap(4),
        "received_mean",
    )
    with torch.no_grad(), mh.record(model, stats=stats) as rec:
        model(**given)
    dense = maps(model, **given)[1]
    layer = rec[1]
    assert torch.equal(layer["peak_key"], dense.argmax(-1))
    close(layer["top(3)"].weights, dense.topk(3).values, 1e-5)
    previous = torch.nn.functional.pad(dense.diagonal(-1, 2, 3), (1, 0))
    close(layer["previous"], previous, 1e-5)
    close(layer["heatmap(4)"].sum.sum((-1, -2)), dense.sum((-1, -2)), 1e-4)
    close(layer["received_mean"], dense.sum(2) / torch.arange(13, 0, -1), 1e-5)
    with pytest.raises(KeyError, match="has no 'entropy'"):
        layer["entropy"]


def test_mistakes_are_told():
    model = encoder()
    with mh.record(model) as rec:
        model(torch.randn(2, 5, 8))
    with pytest.raises(ValueError, match="there is no layer 7; choose one of 2"):
        rec[7]
    with pytest.raises(
        ValueError, match="head of layer 0, layers.0.self_attn, must lie from 0 to 1"
    ):
        rec.weights(0, 2)
    with pytest.raises(ValueError, match="batch of layer 0, .* must lie from 0 to 1, but -1 came"):
        rec.weights(0, 0, batch=-1)
    with pytest.raises(
        ValueError, match="by must be one of 'weight', 'norm', 'value', but 'nrom' came"
    ):
        rec.weights(0, 0, by="nrom")
    assert rec["layers.1.self_attn"] is rec[1]
    for given in (True, 1.0, None):
        with pytest.raises(ValueError, match=f"there is no layer {given}"):
            rec[given]
        with pytest.raises(ValueError, match=f"but {given} came; give one of those whole numbers"):
            rec.weights(0, given)
        with pytest.raises(ValueError, match=f"batch .* from 0 to 1, but {given} came"):
            rec.heatmap(0, 0, batch=given)


def test_numbers_as_numpy_and_torch_have_them():
    model, stats = encoder(), (*mh.recording.DEFAULT, "peak_key", "received_mean")
    with torch.no_grad(), mh.record(model, stats=stats) as rec:
        model(torch.randn(2, 5, 8))
    one, weights, cells = np.int64(1), rec.weights(1, 1, batch=1), rec.heatmap(1, 1, 4, batch=1)
    assert torch.equal(rec.weights(one, one, batch=one), weights)
    assert torch.equal(rec.weights(1, torch.tensor(1), batch=np.uint8(1)), weights)
    assert torch.equal(rec.heatmap(one, one, 4, batch=one).sum, cells.sum)
    assert rec.heads(batch=one) == rec.heads(batch=1)
    assert mh.habits(rec, batch=one) == mh.habits(rec, batch=1)
    corpus = mh.record_many(model, [torch.randn(2, 5, 8)])
    assert corpus.examples(one, one) == corpus.examples(1, 1)
    with pytest.raises(ValueError, match="there is no layer True"):
        corpus.examples(True, 1)


def test_the_first_token_by_its_name():
    model, x = encoder(), torch.randn(2, 5, 8)
    with torch.no_grad(), mh.record(model) as whole:
        model(x)
    for stats in ("first", ("entropy", "first"), ["first"]):
        with torch.no_grad(), mh.record(model, stats=stats) as rec:
            model(x)
        assert torch.equal(rec[1]["first"], whole[1]["first"])
    assert "first" in mh.record_many(model, [x], stats=("first",)).heads()[0]
