"""A meta.json that is damaged, foreign, or leads elsewhere."""

import json
import os

import pytest

import multihead as mh
from multihead.recording import files

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


def test_a_meta_that_is_a_link(saved, tmp_path):
    os.rename(saved / "meta.json", tmp_path / "elsewhere.json")
    (saved / "meta.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ValueError, match="leads outside"):
        mh.load(saved)


def test_a_meta_without_end(saved):
    (saved / "meta.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="damaged or foreign"):
        mh.load(saved)


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
