"""A bit that flipped on the disk is noticed when it is read, and what is not read costs nothing."""

import json
import random
import re
import shutil
import struct

import pytest
import torch
from safetensors.torch import save_file
from saved_layers import contents, file_of

import multihead as mh
from multihead.recording import files


def flip(path, at, bit=3):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


def places(path):
    """Where each tensor begins and ends in a file, and where its header does."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    return {n: tuple(8 + size + at for at in one["data_offsets"]) for n, one in header.items()}


def look(folder):
    """Read all there is of a recording."""
    for text in mh.load(folder).texts:
        for layer in text.layers:
            for name in layer.tensors:
                layer.tensors[name]


def test_a_flipped_bit_anywhere_in_the_data_is_told_of_by_file(saved, tmp_path):
    look(saved)  # as it is, nothing is wrong
    number = random.Random(5)
    for path in sorted(saved.glob("*.safetensors")):
        for name, (first, last) in places(path).items():
            if first == last:
                continue
            copy = shutil.copytree(saved, tmp_path / "copy", dirs_exist_ok=True)
            flip(copy / path.name, number.randrange(first, last), number.randrange(8))
            with pytest.raises(
                ValueError, match=rf"{path.name} is damaged.*{re.escape(name)}"
            ) as caught:
                look(copy)
            assert str(caught.value).count("damaged") == 1


def test_a_layer_that_is_not_looked_at_is_not_read(saved):
    path = file_of(saved, layer=1)
    first, last = places(path)["key.0"]
    flip(path, (first + last) // 2)
    rec = mh.load(saved)
    rec.weights(0, 0)
    rec[1]["entropy"]
    with pytest.raises(ValueError, match="the bytes of key.0 are not those that were written"):
        rec.weights(1, 0)
    assert rec.damaged() == [rec[1].name]
    assert f"damaged: 1 files; {path} is damaged" in repr(rec)


@pytest.mark.parametrize("name", ["0.stat.entropy", "output_norm.0"])
def test_a_flipped_bit_in_what_no_weight_needs_is_told_too(saved, name):
    path = file_of(saved, layer=1)
    flip(path, places(path)[name][0])
    rec = mh.load(saved)  # opening reads none of it
    assert rec.damaged() == [rec[1].name]
    assert "damaged: 1 files" in repr(rec)


def test_each_tensor_is_summed_once(saved, monkeypatch):
    count, plain = [], files._sum
    rec = mh.load(saved)
    monkeypatch.setattr(files, "_sum", lambda tensor: count.append(1) or plain(tensor))
    for _ in range(3):
        rec.weights(0, 0)
    assert 0 < len(count) <= len(rec[0].tensors)


def test_a_flipped_bit_in_what_a_file_says_of_itself(saved):
    path = file_of(saved)
    at = path.read_bytes().index(b'scale\\": ') + len(b'scale\\": ') + 2
    flip(path, at, bit=0)  # another digit: nothing else could know
    with pytest.raises(ValueError, match="what it says of itself is not what was written"):
        mh.load(saved)


def test_sums_that_are_none(saved):
    path = file_of(saved)
    tensors, said = contents(path)
    for sums in ("{", "[]", "{}", '{"0.lse": "x"}'):
        save_file(tensors, path, {**said, "sums": sums})
        with pytest.raises(ValueError, match="damaged"):
            look(saved)


def test_files_of_before_there_were_sums_are_read(saved):
    whole = mh.load(saved).heads()
    for path in saved.glob("*.safetensors"):
        save_file(*contents(path)[:1], path, contents(path)[1])
    look(saved)
    assert mh.load(saved).heads() == whole
    assert "damaged" not in repr(mh.load(saved))


def test_what_is_opened_can_be_saved_over_itself(saved):
    rec = mh.load(saved)
    rec.save(saved)
    look(saved)
    assert torch.equal(mh.load(saved).weights(0, 0), rec.weights(0, 0))
