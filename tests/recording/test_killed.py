"""A process that dies at any moment of a recording, or of its saving, loses no finished layer."""

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from same_recording import kinds_of_files, same, same_layer

import multihead as mh
from multihead.recording import files

# One process for all: it forks for each moment, and the fork is killed.
DEATHS = """
    import os, signal, sys, torch, multihead as mh
    from multihead.recording import files, saving
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    torch.set_num_threads(1)
    block = torch.nn.TransformerEncoderLayer(8, 2, 16)
    model = torch.nn.TransformerEncoder(block, 4).eval()
    texts = [torch.randn(n, 2, 8) for n in (5, 7, 6)]
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=3, num_attention_heads=2)
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=11, **sizes)).eval()

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def run(**more):
        with torch.no_grad(), mh.record(model, **more) as rec:
            for text in texts:
                model(text)
        return rec

    def die_before_file(number):
        plain, done = files.write_whole, []
        def write(path, how):
            def late(partial):
                how(partial)  # it is there, under another name
                die()
            done.append(path)
            plain(path, late if len(done) == number else how)
        files.write_whole = saving.write_whole = write

    def at_call(number):
        return lambda kept: die() if kept == number else None

    def save(folder, number):
        rec = run()
        die_before_file(number)
        rec.save(folder)
        die()

    def replace(folder, number):
        rec = run()
        mh.Recording(rec.layers[:1], model="older").save(folder)
        die_before_file(number)
        rec.save(folder)

    def record(folder, call):
        run(to=folder, progress=at_call(call))
        die()

    def generate(folder, call):
        with torch.no_grad(), mh.record(llama, to=folder, progress=at_call(call)):
            llama.generate(torch.arange(6)[None], max_new_tokens=9, do_sample=False)
        die()

    for case in sys.argv[2:]:
        what, moment = case.split("-")
        child = os.fork()
        if child == 0:
            try:
                globals()[what](os.path.join(sys.argv[1], case), int(moment))
            finally:
                os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, case
"""
# Files come as 4 layers and a text's tokens, three times, then meta.json.
SAVE = {3: [2], 5: [4], 6: [4], 9: [4, 3], 13: [4, 4, 2], 15: [4, 4, 4], 16: [4, 4, 4]}
# Of the newer recording, and of the older.
REPLACE = {1: [1], 4: [3, 1], 15: [4, 4, 4, 1], 16: [4, 4, 4, 1]}
# When the n-th call is kept, those before the one that came before it are written.
RECORD = {2: [1], 3: [2], 4: [3], 5: [4], 6: [4, 1], 7: [4, 2], 9: [4, 4], 12: [4, 4, 3]}
# Rows: what the prefill finished is there, and steps when there are as many rows again.
GENERATE = {3: [6] * 2, 4: [6] * 3, 9: [6] * 3, 21: [12, 12, 6], 0: [14] * 3}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """The folders that processes left behind, by what they were doing and when they were killed."""
    folder = tmp_path_factory.mktemp("killed")
    moments = {"save": [0, *SAVE], "replace": REPLACE, "record": [0, 1, *RECORD]}
    cases = [
        f"{what}-{n}" for what, some in {**moments, "generate": GENERATE}.items() for n in some
    ]
    given = [sys.executable, "-c", textwrap.dedent(DEATHS), str(folder), *cases]
    ran = subprocess.run(given, capture_output=True)
    assert ran.returncode == 0, ran.stderr.decode()
    return folder


@pytest.fixture(scope="module")
def whole(left):
    """What the same process records when nothing happens to it."""
    return mh.load(left / "save-0")


def holds(cut, whole, layers):
    """So many layers of each text, each as it should be."""
    assert [len(text.layers) for text in cut.texts] == layers
    for ours, theirs in zip(cut.texts, whole.texts, strict=False):
        assert ours.about == {"unfinished": True}
        assert ours.model == "TransformerEncoder"
        assert "unfinished" in repr(ours)
        for one, two in zip(ours.layers, theirs.layers, strict=False):
            same_layer(ours, one, theirs, two)


@pytest.mark.parametrize("number", SAVE)
def test_while_saving(left, whole, number):
    folder = left / f"save-{number}"
    holds(mh.load(folder), whole, SAVE[number])
    whole.save(folder)  # what the dead left behind is cleared away
    assert len(kinds_of_files(folder)) == 15
    same(mh.load(folder), whole)


@pytest.mark.parametrize("number", REPLACE)
def test_while_taking_the_place_of_another(left, whole, number):
    """The older recording is there still; what was finished of the newer one is too."""
    folder = left / f"replace-{number}"
    told = pytest.warns(UserWarning, match="of a recording that was cut short")
    with told if number > 1 else contextlib.nullcontext():
        older = mh.load(folder)
    assert (older.model, len(older.texts), len(older.layers)) == ("older", 1, 1)
    same_layer(older, older[0], whole, whole[0])
    newer = mh.load(folder, unfinished=True)
    assert [len(text.layers) for text in newer.texts] == REPLACE[number]
    assert newer.texts[-1].model == "older"
    for layer in newer.layers:
        same_layer(newer, layer, whole, whole[layer.index])


def test_two_savings_that_were_cut_short(left, tmp_path):
    """Layers of two savings are not mixed, and none is lost: the later one comes first."""
    for case, when in (("record-9", 2), ("record-7", 1)):
        for name in os.listdir(left / case):
            shutil.copy(left / case / name, tmp_path / name)
            os.utime(tmp_path / name, (when, when))
    rec = mh.load(tmp_path)
    assert [len(text.layers) for text in rec.texts] == [4, 4, 4, 2]
    assert [text[0].queries for text in rec.texts] == [5, 7, 5, 7]


@pytest.mark.parametrize("call", RECORD)
def test_while_recording(left, whole, call):
    holds(mh.load(left / f"record-{call}"), whole, RECORD[call])


def test_before_a_layer_is_finished(left):
    with pytest.raises(ValueError, match="no meta.json and no layers"):
        mh.load(left / "record-1")


def test_after_recording(left, whole):
    for ours, theirs in zip(mh.load(left / "record-0").texts, whole.texts, strict=True):
        same(ours, theirs)
    assert len(kinds_of_files(left / "record-0")) == 15


@pytest.mark.parametrize("call", GENERATE)
def test_while_generating(left, call):
    rec = mh.load(left / f"generate-{call}")
    assert [layer.queries for layer in rec.layers] == GENERATE[call]
    assert ("unfinished" in rec.about) == (call > 0)
    if call != 3:  # in the middle of the first pass
        assert rec.ids[0, :6].tolist() == [0, 1, 2, 3, 4, 5]
    for layer in rec.layers:
        weights = rec.weights(layer.index, 1)
        assert weights.shape == (layer.queries, layer.queries)
        torch.testing.assert_close(weights.sum(-1), torch.ones(layer.queries))


def encoder():
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(8, 2, 16)
    return torch.nn.TransformerEncoder(block, 3, enable_nested_tensor=False).eval()


def test_what_is_written_on_the_way_is_what_save_writes(tmp_path):
    model = encoder()
    with torch.no_grad(), mh.record(model, to=tmp_path / "way", max_bytes=0) as rec:
        model(torch.randn(5, 2, 8))
        model(torch.randn(7, 2, 8))
    rec.save(tmp_path / "end")
    assert kinds_of_files(tmp_path / "way") == kinds_of_files(tmp_path / "end")
    for way, end in zip(
        mh.load(tmp_path / "way").texts, mh.load(tmp_path / "end").texts, strict=True
    ):
        same(way, end)
    with torch.no_grad(), mh.record(model, to=tmp_path / "way") as rec:  # once more, in its place
        model(torch.randn(4, 2, 8))
    assert len(kinds_of_files(tmp_path / "way")) == 4
    same(mh.load(tmp_path / "way"), rec)


def test_a_model_that_raises_leaves_what_it_finished(tmp_path):
    model = encoder()
    model.layers[1].linear1.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), torch.no_grad(), mh.record(model, to=tmp_path):
        model(torch.randn(5, 2, 8))
    assert [layer.index for layer in mh.load(tmp_path).layers] == [0, 1]


def test_a_disk_that_fills_while_recording(tmp_path, monkeypatch):
    plain, written = files.write_whole, []

    def full(path, write):
        written.append(path)
        if len(written) > 1:
            raise files.cannot_write(path, OSError(28, "No space left on device"))
        plain(path, write)

    monkeypatch.setattr(files, "write_whole", full)
    model = encoder()
    with (
        pytest.raises(OSError, match="cannot write .*: No space left on device; make room, or"),
        torch.no_grad(),
        mh.record(model, to=tmp_path),
    ):
        model(torch.randn(5, 2, 8))
    assert [layer.index for layer in mh.load(tmp_path).layers] == [0]


def test_a_disk_that_fills_with_layers_beyond_memory(monkeypatch):
    def full(path, write):
        raise files.cannot_write(path, OSError(28, "No space left on device"))

    monkeypatch.setattr(files, "write_whole", full)
    model = encoder()
    with (
        pytest.raises(OSError, match="No space left .* where TMPDIR says: .* a larger max_bytes"),
        torch.no_grad(),
        mh.record(model, max_bytes=1000),
    ):
        model(torch.randn(5, 2, 8))


def test_a_folder_of_other_things_is_told_of_before_the_model_runs(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other things"), mh.record(encoder(), to=tmp_path):
        raise AssertionError("it must not come here")


SPILLS = """
    import os, sys, torch, multihead as mh
    class Look(torch.nn.Module):
        def forward(self, x):
            assert [f for f in os.listdir(os.environ["TMPDIR"]) if f.startswith("multihead-")]
            return 1 / 0 if sys.argv[1] == "inside" else x
    block = torch.nn.TransformerEncoderLayer(8, 2, 16)
    model = torch.nn.Sequential(torch.nn.TransformerEncoder(block, 2), Look()).eval()
    with torch.no_grad(), mh.record(model, max_bytes=0) as rec:
        model(torch.randn(5, 2, 8))
    assert sys.argv[1] == "well"
"""


@pytest.mark.parametrize(("ends", "said"), [("well", ""), ("inside", "Zero"), ("after", "Assert")])
def test_what_was_too_much_for_memory_goes_with_the_process(tmp_path, ends, said):
    there = {**os.environ, "TMPDIR": str(tmp_path)}
    given = [sys.executable, "-c", textwrap.dedent(SPILLS), ends]
    ran = subprocess.run(given, capture_output=True, env=there, text=True)
    assert ran.returncode == (0 if ends == "well" else 1), ran.stderr
    assert said in ran.stderr.rstrip().splitlines()[-1] if said else True
    assert not [f for f in os.listdir(tmp_path) if f.startswith("multihead-")]
