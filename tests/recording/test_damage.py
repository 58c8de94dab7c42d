"""Files that are not what we wrote: nothing of them is believed, and nothing in them is run."""

import json
import os
import pickle
import shutil

import pytest
import torch

import multihead as mh
from multihead.recording import store


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def pickled(path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(path.parent / "harm"),)

    path.write_bytes(pickle.dumps(Harm()))


def foreign(path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(3)}, path)


def beside(path):
    """A layer that leads out of the folder."""
    outside = path.parent.parent / "outside.safetensors"
    shutil.move(path, outside)
    path.symlink_to(outside)


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
    damage(saved / "text0-layer1.safetensors")
    with pytest.raises(ValueError, match=message):
        mh.load(saved)
    assert not (saved / "harm").exists()


META = {
    "no json": ("{", "damaged or foreign"),
    "a list": ("[]", "damaged or foreign"),
    "a number": ("3", "damaged or foreign"),
    "other format": ('{"format": "x", "texts": []}', "its format is 'x'"),
    "nothing": (json.dumps({"format": store.FORMAT, "texts": []}), "lists no layers"),
    "texts of numbers": (json.dumps({"format": store.FORMAT, "texts": [3]}), "damaged or foreign"),
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
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = saved / "text0-layer0.safetensors"
    with safe_open(path, "pt") as file:
        tensors, said = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
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
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = saved / "text0-layer0.safetensors"
    with safe_open(path, "pt") as file:
        tensors, said = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
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
