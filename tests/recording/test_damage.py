"""Files that are not what we wrote: nothing of them is believed, and nothing in them is run."""

import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import save_file
from saved_layers import file_of

import multihead as mh


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


def test_what_is_no_recording(tmp_path):
    with pytest.raises(ValueError, match="is no folder"):
        mh.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="no meta.json and no layers"):
        mh.load(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is no folder"):
        mh.load(tmp_path / "file")


def test_a_path_that_no_system_takes():
    for path in ("x" * 5000, "x\0y"):
        with pytest.raises(ValueError, match="is no folder"):
            mh.load(path)
