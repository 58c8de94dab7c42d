"""Files that are not what we wrote: nothing of them is believed, and nothing in them is run."""

import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import multihead as mh
from multihead.recording import files


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def pickled(path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(path.parent / "harm"),)

    path.write_bytes(pickle.dumps(Harm()))


def foreign(path):
    save_file({"x": torch.zeros(3)}, path)


def beside(path):
    """A layer that leads out of the folder."""
    outside = path.parent.parent / "outside.safetensors"
    shutil.move(path, outside)
    path.symlink_to(outside)


def file_of(folder, layer=0, text=0):
    (found,) = folder.glob(f"text{text}-layer{layer}-*.safetensors")
    return found


def contents(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


DAMAGES = {
    "cut": (truncate, "damaged"),
    "empty": (lambda path: path.write_bytes(b""), "damaged"),
    "other bytes": (lambda path: path.write_bytes(b"\xff" * 999), "damaged"),
    "pickle": (pickled, "damaged or no safetensors file"),
    "foreign": (foreign, "is not a layer of a recording"),
    "missing": (lambda path: path.unlink(), "is missing"),
    "a link": (beside, "leads outside of the folder"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "is missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_layer(saved, name):
    damage, message = DAMAGES[name]
    damage(file_of(saved, 1))
    with pytest.raises(ValueError, match=message):
        mh.load(saved)
    assert not (saved / "harm").exists()


META = {
    "no json": ("{", "damaged or foreign"),
    "a list": ("[]", "damaged or foreign"),
    "a number": ("3", "damaged or foreign"),
    "other format": ('{"format": "x", "texts": []}', "its format is 'x'"),
    "nothing": (json.dumps({"format": files.FORMAT, "texts": []}), "lists no layers"),
    "texts of numbers": (json.dumps({"format": files.FORMAT, "texts": [3]}), "damaged or foreign"),
    "not utf-8": (b"\xff\xfe\x00", "damaged or foreign"),
}


@pytest.mark.parametrize("name", META)
def test_a_damaged_meta(saved, name):
    said, message = META[name]
    (saved / "meta.json").write_bytes(said if isinstance(said, bytes) else said.encode())
    with pytest.raises(ValueError, match=message):
        mh.load(saved)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "a/../../b", "..", ".", "", ".x", 3, None]
)
def test_a_meta_that_points_elsewhere(saved, name):
    meta = json.loads((saved / "meta.json").read_text())
    meta["texts"][0]["layers"][0] = name
    (saved / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="outside of the folder"):
        mh.load(saved)


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


def test_what_is_no_recording(tmp_path):
    with pytest.raises(ValueError, match="is no folder"):
        mh.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no meta.json and no layers"):
        mh.load(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is no folder"):
        mh.load(tmp_path / "file")


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


def test_a_meta_that_is_a_link(saved, tmp_path):
    os.rename(saved / "meta.json", tmp_path / "elsewhere.json")
    (saved / "meta.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ValueError, match="leads outside"):
        mh.load(saved)


def test_a_meta_without_end(saved):
    (saved / "meta.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="damaged or foreign"):
        mh.load(saved)


@pytest.mark.parametrize("name", [n for n in DAMAGES if n != "missing"])
def test_without_meta_a_damaged_layer_is_left_out(recording, saved, name):
    (saved / "meta.json").unlink()
    path = file_of(saved, 1)
    DAMAGES[name][0](path)
    with pytest.warns(UserWarning, match=f"left out, the other layers are read: .*{path.name}"):
        rec = mh.load(saved)
    assert rec.about == {"unfinished": True, "left_out": [path.name]}
    assert [[layer.index for layer in text.layers] for text in rec.texts] == [[0], [0, 1]]
    assert torch.equal(rec.ids, recording.ids)
    for damaged in saved.glob("*-layer*.safetensors"):
        shutil.rmtree(damaged) if damaged.is_dir() else damaged.unlink()
        damaged.write_bytes(b"")
    with pytest.raises(ValueError, match="has no layer that can be read: .* is damaged"):
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


def test_files_that_were_swapped(saved):
    for one, two in (((0, 0), (1, 0)), ((0, 0), (0, 1))):  # two layers; the same of two texts
        one, two = file_of(saved, *one), file_of(saved, *two)
        os.rename(one, saved / "kept")
        os.rename(two, one)
        os.rename(saved / "kept", two)
        with pytest.raises(ValueError, match="than its name says|not what its name says"):
            mh.load(saved)
        os.rename(one, saved / "kept")
        os.rename(two, one)
        os.rename(saved / "kept", two)
    assert len(mh.load(saved).texts) == 2


LISTS = {
    "about a number": ({"about": 5}, "about is 5"),
    "about a list": ({"about": [1]}, "about is"),
    "no layers": ({"layers": []}, "lists no layers"),
    "a model that is none": ({"model": 3}, "model is 3"),
    "words that are none": ({"words": "abc"}, "words is no list"),
    "words of numbers": ({"words": [[1, 2]]}, "words holds what is no text"),
    "a long name": ({"layers": ["x" * 5000]}, r"no file of a recording"),
    "a long number": ({"layers": [f"text0-layer{'1' * 5000}.safetensors"]}, "no file of a rec"),
    "no tokens": ({"tensors": "text7.safetensors"}, "is missing"),
    "tokens elsewhere": ({"tensors": "../x"}, "outside of the folder"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_meta_whose_lists_do_not_fit(saved, name):
    change, message = LISTS[name]
    meta = json.loads((saved / "meta.json").read_text())
    meta["texts"][0].update(change)
    (saved / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match=message) as told:
        mh.load(saved)
    assert len(str(told.value)) < 600


def test_a_layer_that_is_listed_twice(saved):
    meta = json.loads((saved / "meta.json").read_text())
    meta["texts"][0]["layers"] += meta["texts"][0]["layers"][:1]
    (saved / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="lists .*layer0.* twice"):
        mh.load(saved)


@pytest.mark.parametrize("name", ["ids", "real", "loss"])
def test_tokens_that_do_not_fit(saved, name):
    (path,) = (p for p in saved.glob("text0-*.safetensors") if "layer" not in p.name)
    tensors, said = contents(path)
    for wrong in (torch.zeros(3), torch.zeros(2, 13, dtype=torch.complex64)):
        save_file({**tensors, name: wrong}, path, said)
        with pytest.raises(ValueError, match=f"damaged .{name} is"):
            mh.load(saved)


def test_a_path_that_no_system_takes():
    for path in ("x" * 5000, "x\0y"):
        with pytest.raises(ValueError, match="is no folder"):
            mh.load(path)


@pytest.mark.parametrize(("which", "chunk"), [("0.query", 0), ("1.query", 1), ("key.0", None)])
def test_queries_and_keys_that_are_not_numbers(saved, which, chunk):
    path = file_of(saved)
    tensors, said = contents(path)
    tensors[which][1, 0, 1 if chunk != 1 else 0, 2] = torch.nan
    save_file(tensors, path, said)
    rec = mh.load(saved)
    assert rec.damaged() == [rec[0].name]
    assert f"not numbers: weights of 1 layers, {rec[0].name} first" in repr(rec)
    assert rec.weights(0, 0, batch=1).isnan().any()


def test_rows_that_see_nothing_are_not_damaged():
    class One(torch.nn.Module):
        def forward(self, q):
            return mh.attend(q, q, q, mask=mh.padding([0]))

    with mh.record(model := One()) as rec:
        model(torch.randn(1, 2, 5, 4))
    assert bool((rec[0].lse == -torch.inf).all())
    assert rec.damaged() == []
    assert "not numbers" not in repr(rec)
