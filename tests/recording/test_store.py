"""Recordings as files: whole or not at all, and nothing is believed that was not written by us."""

import gc
import json
import os
import re
import stat

import pytest
import torch
from architectures import SEEN, build, inputs
from same_recording import kinds_of_files, same

import multihead as mh
from multihead.recording import files, saving


def test_what_is_saved_is_what_is_opened(recording, saved):
    opened = mh.load(saved)
    assert len(opened.texts) == 2
    for one, two in zip(recording.texts, opened.texts, strict=True):
        same(one, two)
    assert opened.heads() == recording.heads()
    assert repr(opened) == repr(recording)


@pytest.mark.parametrize("name", SEEN)
def test_what_any_model_gives_is_taken_for_whole(name, tmp_path):
    """Biases, sinks, slopes, cross-attention, caches: nothing that is recorded looks damaged."""
    model, given = build(SEEN[name], "eager"), inputs(SEEN[name].kind)
    with torch.no_grad(), mh.record(model, to=tmp_path) as rec:
        model(**given)
    assert mh.load(tmp_path).heads() == rec.heads()


@pytest.mark.parametrize(
    "how", [{}, {"cache_implementation": "static"}, {"num_beams": 3}, {"prefill_chunk_size": 4}]
)
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "gpt_oss", "t5", "bart"])
def test_any_generation_is_taken_for_whole(name, how, tmp_path):
    model, given = build(SEEN[name], "eager"), inputs(SEEN[name].kind)
    given.pop("decoder_input_ids", None)
    with torch.no_grad(), mh.record(model, to=tmp_path) as rec:
        model.generate(**given, max_new_tokens=6, do_sample=False, **how)
    opened = mh.load(tmp_path)
    assert opened.heads() == rec.heads()
    for layer in rec.layers:
        assert torch.equal(rec.weights(layer.index, 0), opened.weights(layer.index, 0))


def test_the_files_are_what_the_page_says(saved):
    assert kinds_of_files(saved) == [
        "text0", "text0-layer0", "text0-layer1", "text1", "text1-layer0", "text1-layer1"
    ]  # fmt: skip


def test_a_recording_of_an_older_saving_opens(recording, saved):
    """Its files have no number of a saving, and meta.json does not name those of texts."""
    meta = json.loads((saved / "meta.json").read_text())
    for text in meta["texts"]:
        plain = [re.sub(r"-[0-9a-f]{8}\.", ".", name) for name in text["layers"]]
        names = [*zip(text["layers"], plain, strict=True)]
        names.append((text["tensors"], re.sub(r"-[0-9a-f]{8}\.", ".", text.pop("tensors"))))
        text["layers"] = plain
        for new, old in names:
            os.rename(saved / new, saved / old)
    (saved / "meta.json").write_text(json.dumps(meta))
    for one, two in zip(recording.texts, mh.load(saved).texts, strict=True):
        same(one, two)
    recording.save(saved)
    assert len(kinds_of_files(saved)) == 6


def test_a_recording_that_was_opened_can_be_saved_in_its_own_place(recording, saved):
    opened = mh.load(saved)
    opened.save(saved)
    same(recording, mh.load(saved))
    same(recording, opened)  # its files are gone by name, and mapped still
    opened.save(saved)
    assert len(kinds_of_files(saved)) == 6


def test_a_shorter_recording_takes_the_place_of_a_longer_one(recording, saved):
    short = mh.Recording(recording.layers[:1], model="short")
    short.save(saved)
    opened = mh.load(saved)
    assert (len(opened.texts), len(opened.layers)) == (1, 1)
    assert kinds_of_files(saved) == ["text0", "text0-layer0"]


def test_nothing_is_read_before_it_is_looked_at(saved, monkeypatch):
    read = []
    plain = files.OnDisk.__getitem__
    monkeypatch.setattr(
        files.OnDisk, "__getitem__", lambda self, name: read.append(name) or plain(self, name)
    )
    opened = mh.load(saved)
    assert not [name for name in read if "query" in name or "key." in name or "stat." in name]
    opened.weights(0, 0)
    assert any("query" in name for name in read)


@pytest.mark.parametrize("name", ["notes.txt", "text.md", "textbook.pdf", ".git", "meta.json.bak"])
def test_a_folder_of_other_things_is_left_as_it_is(recording, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match=f"holds other things .{name}"):
        recording.save(tmp_path)
    assert os.listdir(tmp_path) == [name]
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        recording.save(tmp_path / "file")


@pytest.mark.parametrize("layers", [0, 1, 3])
def test_a_full_disk(recording, tmp_path, monkeypatch, layers):
    import safetensors.torch

    plain, written = safetensors.torch.save_file, []

    def full(tensors, path, metadata=None):
        if len(written) == layers:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        written.append(path)
        plain(tensors, path, metadata=metadata)

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    folder = tmp_path / "run.heads"
    with pytest.raises(OSError, match="cannot write .*No space left on device; make room"):
        recording.save(folder)
    assert len(os.listdir(folder)) == layers
    monkeypatch.undo()
    if layers:
        assert len(mh.load(folder).layers) == min(layers, 2)
        assert mh.load(folder).about == {"unfinished": True}


@pytest.mark.parametrize("files_done", range(7))
def test_a_disk_that_is_full_leaves_the_older_recording(recording, saved, monkeypatch, files_done):
    plain, written = files.write_whole, []
    before = sorted(os.listdir(saved))

    def full(path, write):
        written.append(path)
        if len(written) > files_done:
            raise files.cannot_write(path, OSError(28, "No space left on device"))
        plain(path, write)

    monkeypatch.setattr(files, "write_whole", full)
    monkeypatch.setattr(saving, "write_whole", full)
    with pytest.raises(OSError, match="No space"):
        mh.Recording(recording.layers, "new", more=recording.texts[1:]).save(saved)
    assert len(written) == files_done + 1
    assert sorted(os.listdir(saved)) == before
    for one, two in zip(recording.texts, mh.load(saved).texts, strict=True):
        same(one, two)


def test_other_reasons_than_a_full_disk(recording, tmp_path):
    with pytest.raises(OSError, match="cannot write .*; choose a folder that can be written"):
        recording.save("/proc/x")
    with pytest.raises(OSError, match="File name too long; choose a folder"):
        recording.save(tmp_path / ("x" * 5000))


@pytest.mark.parametrize("path", [None, 3, b"run.heads", ["run.heads"]])
def test_what_is_no_path(recording, path):
    for ask in (recording.save, mh.load):
        with pytest.raises(ValueError, match="is a folder, given by its path"):
            ask(path)


def test_what_json_does_not_know(recording, saved):
    before = sorted(os.listdir(saved))
    with pytest.raises(ValueError, match=r"rec.about holds what JSON does not know"):
        mh.Recording(recording.layers, "new", about={"x": torch.zeros(1)}).save(saved)
    assert sorted(os.listdir(saved)) == before


def test_a_recording_of_nothing_is_not_saved(tmp_path):
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(8, 2, 16), 1, enable_nested_tensor=False
    ).eval()
    with torch.no_grad(), mh.record(model) as rec:
        model(torch.randn(5, 2, 8))
        with pytest.raises(ValueError, match="nothing is recorded yet: save after the with"):
            rec.save(tmp_path / "run.heads")
        model(torch.randn(5, 2, 8))  # another text: the first is done, this one is not
        with pytest.raises(ValueError, match="nothing is recorded of text 1 yet"):
            rec.save(tmp_path / "run.heads")
    with pytest.raises(RuntimeError), mh.record(model) as rec:
        model(torch.randn(5, 2, 8))
        raise RuntimeError
    with pytest.raises(ValueError, match="and ended well"):
        rec.save(tmp_path / "run.heads")
    assert not (tmp_path / "run.heads").exists()


def test_a_folder_that_cannot_be_made(recording, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="cannot write"):
        recording.save(tmp_path / "file" / "run.heads")


@pytest.mark.parametrize("most", [0, 5_000, 20_000])
def test_what_is_too_much_for_memory(most, recording):
    model, given = build(SEEN["mistral"]), inputs("decoder")
    stats = ("entropy", "received", mh.top(2), mh.mass(mh.prefix(1), name="first"))
    with torch.no_grad(), mh.record(model, stats=stats, max_bytes=most) as rec:
        model.generate(**given, max_new_tokens=5, do_sample=False)
        model(given["input_ids"][:, :7])
    folder = rec._spilled.name
    assert os.path.isdir(folder)
    for one, two in zip(rec.texts, recording.texts, strict=True):
        one.words, one.about = two.words, two.about
        same(one, two)
    kept = rec.texts[1]
    del rec, one
    assert kept.weights(0, 0).shape == (7, 7)  # as long as any text of it lives
    del kept
    gc.collect()
    assert not os.path.exists(folder)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_all_files_are_for_whom_the_umask_says(saved, tmp_path, umask):
    rec, before = mh.load(saved), os.umask(umask)
    try:
        rec.save(tmp_path / "mine.heads")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "mine.heads").iterdir()}
    assert modes == {0o666 & ~umask}
