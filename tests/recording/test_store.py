"""Recordings as files: whole or not at all, and nothing is believed that was not written by us."""

import gc
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
from architectures import SEEN, build, inputs

import multihead as mh
from multihead.recording import store


def same(one, two):
    assert (one.model, one.words, one.about) == (two.model, two.words, two.about)
    for name in ("ids", "real", "loss"):
        ours, theirs = getattr(one, name), getattr(two, name)
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert len(one.layers) == len(two.layers)
    for ours, theirs in zip(one.layers, two.layers, strict=True):
        same_layer(one, ours, two, theirs)


def same_layer(one, ours, two, theirs):
    assert (ours.name, ours.index, ours.chunks) == (theirs.name, theirs.index, theirs.chunks)
    assert {*ours.tensors} == {*theirs.tensors}
    for head in range(ours.heads):
        for by in ("weight", "norm", "value"):
            found = [rec.weights(ours.index, head, batch=1, by=by) for rec in (one, two)]
            assert torch.equal(*found)
        for a, b in zip(*(rec.heatmap(ours.index, head, 4) for rec in (one, two)), strict=True):
            assert torch.equal(a, b)
    for name in ours.statistics:
        a, b = ours[name], theirs[name]
        for x, y in zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]:
            assert torch.equal(x, y)


def test_what_is_saved_is_what_is_opened(recording, saved):
    opened = mh.load(saved)
    assert len(opened.texts) == 2
    for one, two in zip(recording.texts, opened.texts, strict=True):
        same(one, two)
    assert opened.heads() == recording.heads()
    assert repr(opened) == repr(recording)


def test_the_files_are_what_the_page_says(saved):
    assert sorted(os.listdir(saved)) == [
        "meta.json", "text0-layer0.safetensors", "text0-layer1.safetensors", "text0.safetensors",
        "text1-layer0.safetensors", "text1-layer1.safetensors", "text1.safetensors",
    ]  # fmt: skip


def test_a_recording_that_was_opened_can_be_saved_in_its_own_place(recording, saved):
    mh.load(saved).save(saved)
    same(recording, mh.load(saved))


def test_a_shorter_recording_takes_the_place_of_a_longer_one(recording, saved):
    short = mh.Recording(recording.layers[:1], model="short")
    short.save(saved)
    opened = mh.load(saved)
    assert (len(opened.texts), len(opened.layers)) == (1, 1)
    assert sorted(os.listdir(saved)) == [
        "meta.json",
        "text0-layer0.safetensors",
        "text0.safetensors",
    ]


def test_nothing_is_read_before_it_is_looked_at(saved, monkeypatch):
    read = []
    plain = store.OnDisk.__getitem__
    monkeypatch.setattr(
        store.OnDisk, "__getitem__", lambda self, name: read.append(name) or plain(self, name)
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


def test_layers_of_two_savings_are_not_mixed(recording, saved, monkeypatch):
    """The disk is full at the second layer of a recording that takes the place of another."""
    plain, written = store.write_tensors, []

    def full(path, tensors, metadata):
        written.append(path)
        if len(written) > 1:
            raise OSError(28, "No space left on device")
        plain(path, tensors, metadata)

    monkeypatch.setattr(store, "write_tensors", full)
    with pytest.raises(OSError, match="No space"):
        recording.save(saved)
    opened = mh.load(saved)
    assert [layer.index for layer in opened.layers] == [0]


def test_a_folder_that_cannot_be_made(recording, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="cannot write"):
        recording.save(tmp_path / "file" / "run.heads")


def test_killed_between_two_layers(tmp_path):
    """A process that dies while it saves leaves every finished layer readable."""
    script = textwrap.dedent("""
        import os, signal, sys, torch, multihead as mh
        from multihead.recording import store
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16), 4).eval()
        with torch.no_grad(), mh.record(model) as rec:
            model(torch.randn(5, 2, 8))
        rec.save(sys.argv[1] + "/whole")
        plain, done = store.write_whole, []
        def write(path, how):
            def die(partial):
                how(partial)
                os.kill(os.getpid(), signal.SIGKILL)
            done.append(path)
            plain(path, die if len(done) == 3 else how)
        store.write_whole = write
        rec.save(sys.argv[1] + "/cut")
    """)
    ran = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()
    whole, cut = mh.load(tmp_path / "whole"), mh.load(tmp_path / "cut")
    assert (len(whole.layers), len(cut.layers)) == (4, 2)
    for ours, theirs in zip(cut.layers, whole.layers, strict=False):
        same_layer(cut, ours, whole, theirs)
    whole.save(tmp_path / "cut")  # what the dead left behind is cleared away
    assert sorted(os.listdir(tmp_path / "cut")) == sorted(os.listdir(tmp_path / "whole"))


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
