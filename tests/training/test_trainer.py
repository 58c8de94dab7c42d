"""A run: reproducible, stopped at any moment and gone on with, and what can go wrong with it."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from stopping import Stop, stop_at

from multihead.training import PRESETS, Run, Settings, Trainer, saving
from multihead.training.settings import preset, read_toml

TINY = Settings(
    d_model=8, num_heads=2, num_layers=1, rows=8, tokens=32, steps=23, warmup=5, dropout=0.2,
    log_every=3, held_out_every=100, checkpoint_every=5, device="cpu",
)  # fmt: skip


def losses(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    Trainer(TINY, folder).train(command="by hand")
    return folder


def test_a_run_in_its_folder(whole):
    assert {p.name for p in whole.iterdir()} >= {
        "config.json",
        "checkpoint.safetensors",
        "losses.jsonl",
    }
    told = json.loads((whole / "config.json").read_text())
    assert (told["command"], told["settings"]["num_heads"]) == ("by hand", 2)
    assert Run(whole).settings() == TINY
    lines = losses(whole)
    assert [line["step"] for line in lines] == [3, 6, 9, 12, 15, 18, 21, 23]
    assert [line["held_out"] is None for line in lines] == [True] * 7 + [False]
    assert lines[-1]["held_out"] < lines[0]["loss"] < 3.3  # ln 27


def test_the_seed_says_all(whole, tmp_path):
    Trainer(TINY, tmp_path / "same").train()
    Trainer(TINY.of({"seed": 1}), tmp_path / "other").train()
    assert losses(tmp_path / "same") == losses(whole) != losses(tmp_path / "other")


@pytest.mark.parametrize("step", [1, 5, 7, 13, 22])
def test_stopped_and_started_again_it_ends_the_same_bit_for_bit(whole, tmp_path, step):
    with pytest.raises(Stop):
        Trainer(TINY, tmp_path).train(stop_at(step))
    torch.randn(step)  # nor do the caller's random numbers matter
    seen = []
    Trainer(TINY, tmp_path).train(lambda done: seen.append(done.step))
    assert seen[0] == (step - 1) // 5 * 5 + 1  # its own checkpoint was yet to come
    assert losses(tmp_path) == losses(whole)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == (
        whole / "checkpoint.safetensors"
    ).read_bytes()


# One process for all: it forks for each moment, and the fork is killed.
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
sys.path[:0] = {tests!r}
import test_trainer as here
from multihead.training import Trainer

torch.set_num_threads(1)
for moment in {moments}:
    child = os.fork()
    if child == 0:
        plain, written = os.replace, []
        def die(a, b):  # the new file is whole, and not yet in its place
            written.append(b)
            if len(written) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            plain(a, b)
        os.replace = die
        try:
            Trainer(here.TINY, Path({folder!r}) / str(moment)).train()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def test_killed_while_a_file_is_written(whole, tmp_path):
    moments = [1, 4, 7]  # the settings, and two checkpoints
    code = KILLED.format(
        tests=[*map(str, Path(__file__).parents[:2])], moments=moments, folder=str(tmp_path)
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for moment in moments:
        folder = tmp_path / str(moment)
        Trainer(TINY, folder).train()
        assert losses(folder) == losses(whole)
        left = {p.name for p in folder.iterdir() if not p.name.startswith(".lock")}
        assert left >= {"config.json", "checkpoint.safetensors", "losses.jsonl"}


def test_a_line_that_a_kill_cut_short(whole, tmp_path):
    with pytest.raises(Stop):
        Trainer(TINY, tmp_path).train(stop_at(12))
    with (tmp_path / "losses.jsonl").open("a") as file:
        file.write('{"step": 13, "lo')
    Trainer(TINY, tmp_path).train()
    assert losses(tmp_path) == losses(whole)


def test_a_run_that_is_finished_stays_so(whole):
    before = (whole / "checkpoint.safetensors").read_bytes()
    again = Trainer(TINY, whole)
    again.train(lambda done: pytest.fail("there is nothing left to do"))
    assert again.step == 23
    assert (whole / "checkpoint.safetensors").read_bytes() == before


def test_other_settings_do_not_touch_a_run(whole):
    before = {p.name: p.read_bytes() for p in whole.iterdir()}
    with pytest.raises(ValueError, match="holds a run with num_heads 2, and 4 came"):
        Trainer(TINY.of({"num_heads": 4}), whole).train()
    assert {p.name: p.read_bytes() for p in whole.iterdir()} == before


def test_one_process_at_a_time(tmp_path):
    def other(done):
        if done.step == 1:
            with pytest.raises(ValueError, match="another process trains in"):
                Trainer(TINY, tmp_path).train()
            raise Stop

    with pytest.raises(Stop):
        Trainer(TINY, tmp_path).train(other)


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_what_is_not_finite_ends_the_run_and_not_its_checkpoint(tmp_path, bad):
    trainer = Trainer(TINY, tmp_path)

    def poison(done):
        if done.step == 7:
            with torch.no_grad():
                trainer.model.head.weight.fill_(torch.nan if bad == "loss" else 1e30)

    said = (
        "the loss is no finite number at step 8"
        if bad == "loss"
        else "is no finite number at step 8"
    )
    with pytest.raises(ValueError, match=f"{said}.*the checkpoint of step 5 is intact"):
        trainer.train(poison)
    tensors, told = saving.read(tmp_path / "checkpoint.safetensors")
    assert told["step"] == 5
    assert all(bool(t.isfinite().all()) for name, t in tensors.items() if name.startswith("model."))


@pytest.mark.parametrize("what", ["checkpoint", "losses"])
def test_a_full_disk(whole, tmp_path, monkeypatch, what):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def after(done):
        if done.step == 7:
            if what == "checkpoint":
                monkeypatch.setattr(saving.os, "fsync", full)
            else:
                monkeypatch.setattr(Path, "open", full)

    with pytest.raises(ValueError, match="cannot be written: No space left on device"):
        Trainer(TINY, tmp_path).train(after)
    monkeypatch.undo()
    assert saving.read(tmp_path / "checkpoint.safetensors")[1]["step"] == 5
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".checkpoint")]
    Trainer(TINY, tmp_path).train()  # there is room again
    assert losses(tmp_path) == losses(whole)


def test_a_checkpoint_that_is_damaged(tmp_path):
    with pytest.raises(Stop):
        Trainer(TINY, tmp_path).train(stop_at(6))
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cannot be read"):
        Trainer(TINY, tmp_path).train()


def test_a_folder_that_cannot_be_one(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="must be a folder that can be written"):
        Trainer(TINY, tmp_path / "file").train()
    with pytest.raises(ValueError, match="is not a run"):
        Run(tmp_path).settings()


def test_it_learns():
    """A text that says the same again and again is known by heart in a few steps."""
    trainer = Trainer(TINY.of({"dropout": 0.0, "steps": 150, "lr": 3e-2, "d_model": 16}))
    trainer.train()
    assert trainer.measure() < 2.5  # ln 27 is 3.3, the letters alone 2.8
    assert trainer.measure("test") == pytest.approx(trainer.measure(), abs=0.05)


def test_the_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    Trainer(TINY.of({"steps": 2})).train()
    assert torch.equal(torch.randn(3), expected)


def test_text_of_bytes(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("áé" * 300)
    trainer = Trainer(TINY.of({"data": str(path), "symbols": "bytes", "context": 32, "steps": 3}))
    trainer.train()
    assert trainer.model.config.vocab_size == 256
    assert trainer.held_out is not None


# ---- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stepz": 3}, "there is no setting 'stepz'; did you mean steps?"),
        ({"steps": 0}, "steps must be 1 or more, and 0 came"),
        ({"steps": 1.5}, "steps must be a whole number, and 1.5 came"),
        ({"steps": True}, "steps must be a whole number, and True came"),
        ({"lr": "high"}, "lr must be a number, and 'high' came"),
        ({"lr": float("nan")}, "lr must be at least 0.0, and nan came"),
        ({"lr": float("inf")}, "lr must be at least 0.0 and finite, and inf came"),
        ({"dropout": 1.0}, "dropout must be at least 0.0 and at most 0.9"),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda"),
        ({"num_heads": 3}, "64 dims for 3 heads came; give heads that divide 64"),
    ],
)
def test_settings_that_cannot_be(given, said):
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        Settings().of(given)


def test_settings_from_a_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("steps = 7\nlr = 1\n")
    assert Settings().of(read_toml(path)).steps == 7
    path.write_text("steps = ")
    with pytest.raises(ValueError, match="must be TOML"):
        read_toml(path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_toml(tmp_path / "none.toml")


def test_presets():
    book = PRESETS["textbook"]
    assert (book.d_model, book.num_heads, book.d_model // book.num_heads, book.num_layers) == (
        16,
        4,
        4,
        1,
    )
    with pytest.raises(ValueError, match="did you mean textbook"):
        preset("textbok")


def test_no_pickle_is_ever_read(tmp_path):
    import pickle

    with pytest.raises(Stop):
        Trainer(TINY, tmp_path).train(stop_at(6))
    (tmp_path / "checkpoint.safetensors").write_bytes(pickle.dumps({"step": 3}))
    with pytest.raises(ValueError, match="cannot be read"):
        Trainer(TINY, tmp_path).train()
