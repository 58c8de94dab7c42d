"""A layer whose words and tensors do not fit is told of when it is opened, not when it is used."""

import json

import pytest
import torch
from safetensors.torch import save_file
from saved_layers import contents, file_of

import multihead as mh


def test_a_layer_whose_words_are_not_ours(saved):
    """The metadata of a layer is checked as well: masks are read as rules, and never run."""
    path = file_of(saved)
    tensors, said = contents(path)
    about = json.loads(said["layer"])
    for mask in ("__import__('os').mkdir('harm')", "causal().__class__", "causal(", "unknown()"):
        about["chunks"][0]["mask"] = mask
        save_file(tensors, path, {**said, "layer": json.dumps(about)})
        with pytest.raises(ValueError, match="damaged"):
            mh.load(saved)
    for wrong in ("[]", "{}", "3", "{"):
        save_file(tensors, path, {**said, "layer": wrong})
        with pytest.raises(ValueError, match="damaged"):
            mh.load(saved)


def test_a_layer_whose_tensors_do_not_fit(saved):
    path = file_of(saved)
    tensors, said = contents(path)
    for name in ("0.lse", "1.lse", "0.query", "key.0", "1.mask.0"):
        less = {other: tensor for other, tensor in tensors.items() if other != name}
        save_file(less, path, said)
        with pytest.raises(ValueError, match="damaged"):
            mh.load(saved)
        if not name.startswith("1.mask"):
            save_file({**less, name: tensors[name][:, :, :-1].contiguous()}, path, said)
            with pytest.raises(ValueError, match="damaged"):
                mh.load(saved)


@pytest.fixture
def plain(tmp_path):
    """A recording of one chunk a layer, with a statistic of every kind."""
    stats = ("entropy", "peak_key", "received", mh.top(2), mh.heatmap(3))
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(block, 2, enable_nested_tensor=False).eval()
    with torch.no_grad(), mh.record(model, stats=stats) as rec:
        model(torch.randn(3, 5, 8))
    rec.save(tmp_path / "plain.heads")
    return tmp_path / "plain.heads"


TENSORS = {
    "a statistic is missing": ("0.stat.entropy", lambda t: None),
    "a statistic of other rows": ("0.stat.entropy", lambda t: t[:, :, :-1]),
    "a statistic of other heads": ("0.stat.entropy", lambda t: t[:, :-1]),
    "a statistic of whole numbers": ("0.stat.entropy", lambda t: t.int()),
    "a key of halves": ("0.stat.peak_key", lambda t: t.float()),
    "received of other keys": ("0.stat.received", lambda t: t[..., :-1]),
    "half of a top": ("0.stat.top(2).keys", lambda t: None),
    "a top of two sizes": ("0.stat.top(2).keys", lambda t: t[..., :1]),
    "a map of one side": ("0.stat.heatmap(3).sum", lambda t: t[..., :2]),
    "lse of whole numbers": ("0.lse", lambda t: t.long()),
    "lse of half precision": ("0.lse", lambda t: t.half()),
    "queries of another dtype": ("0.query", lambda t: t.half()),
    "keys of another dtype": ("key.0", lambda t: t.double()),
    "queries of whole numbers": ("0.query", lambda t: t.int()),
    "queries of another size": ("0.query", lambda t: t[..., :-1]),
    "keys of another size": ("key.0", lambda t: t[..., :-1]),
    "more keys": ("key.0", lambda t: torch.cat([t, t], 2)),
    "flat keys": ("key.0", lambda t: t.flatten(2)),
    "no norms": ("value_norm.0", lambda t: None),
    "norms of other keys": ("value_norm.0", lambda t: t[..., :-1]),
    "output norms of other heads": ("output_norm.0", lambda t: t[:, :-1]),
    "sinks of other heads": ("0.sinks", lambda t: torch.zeros(7)),
    "a bias of other keys": ("0.bias", lambda t: torch.zeros(1, 1, 5, 4)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_do_not_fit_are_told_of_when_opened(plain, name):
    path = file_of(plain)
    (tensors, said), (which, change) = contents(path), TENSORS[name]
    assert mh.load(plain).heads()
    changed = change(tensors.get(which))
    tensors.pop(which, None)
    save_file(tensors if changed is None else {**tensors, which: changed.contiguous()}, path, said)
    with pytest.raises(ValueError, match=f"{path.name} is damaged"):
        mh.load(plain)


WORDS = {
    "kinds a list": ({"kinds": ["entropy"]}, "kinds is"),
    "no kinds": ({"kinds": None}, "kinds is"),
    "a kind that is none": ({"kinds": {"entropy": "x"}}, "kinds is"),
    "no whole number of heads": ({"heads": 2.0}, "heads is 2.0"),
    "heads that do not share": ({"kv_heads": 3}, "key.0 is"),
    "another layer": ({"index": 1}, "holds layer 1"),
    "a name that is none": ({"name": None}, "no name"),
    "half true": ({"has_qk": 1}, "has_qk is 1"),
    "no chunks": ({"chunks": []}, "no rows"),
    "fewer keys": ({"keys": 4}, "holds 5 keys, but its rows speak of 4"),
    "no scale": ({"scale": None}, "scale"),
    "a scale that is no number": ({"scale": float("nan")}, "scale must be"),
    "a softcap below 0": ({"softcap": -1.0}, "softcap must be"),
    "an offset that is none": ({"offset": "0"}, "offset must be"),
    "a mask that is none": ({"mask": 5}, "mask is 5"),
    "rows below 0": ({"rows": -5}, "rows is -5"),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_of_a_layer_that_do_not_fit(plain, name):
    path = file_of(plain)
    (tensors, said), (change, message) = contents(path), WORDS[name]
    about = json.loads(said["layer"])
    place = about["chunks"][0] if {*change} <= {*about["chunks"][0]} else about
    place.update(change)
    save_file(tensors, path, {**said, "layer": json.dumps(about)})
    with pytest.raises(ValueError, match=f"is damaged .*{message}"):
        mh.load(plain)


def test_rows_that_would_not_be_over_all_their_keys(saved):
    """The prefill of a generation: its keys are a part of those that there are."""
    path = file_of(saved)
    tensors, said = contents(path)
    about = json.loads(said["layer"])
    about["kinds"] = {}
    about["chunks"][0]["keys"] -= 1
    save_file(tensors, path, {**said, "layer": json.dumps(about)})
    with pytest.raises(ValueError, match="are said to be over|does not broadcast"):
        mh.load(saved)


@pytest.mark.parametrize("name", ["ids", "real", "loss"])
def test_tokens_that_do_not_fit(saved, name):
    (path,) = (p for p in saved.glob("text0-*.safetensors") if "layer" not in p.name)
    tensors, said = contents(path)
    for wrong in (torch.zeros(3), torch.zeros(2, 13, dtype=torch.complex64)):
        save_file({**tensors, name: wrong}, path, said)
        with pytest.raises(ValueError, match=f"damaged .{name} is"):
            mh.load(saved)
