"""`multihead train`: what it prints and writes, and every bad input a line and exit code 2."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from train_command import TINY, call

from multihead.training import Settings, settings


def test_help_names_every_option():
    result = call("train", "--help")
    assert result.exit_code == 0
    for option in ("names", "--text", "--symbols", "--preset", "--config", "--steps", "--seed",
                   "--heads", "--lr", "--device", "--out", "--resume", "--watch"):  # fmt: skip
        assert option in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_names_from_beginning_to_end(here):
    result = call("train", "names", "--config", "tiny.toml", "--heads", "4")
    assert result.exit_code == 0, result.output
    said = result.stdout
    assert "12 steps in" in said
    assert re.search(r"held out: \d\.\d{3} nats a character; a bigram, .* 2\.446", said)
    assert "of 12 are among the names it was trained on" in said
    for head in ("0.0", "0.1", "0.2", "0.3"):
        assert re.search(rf"^  {head}  .*\(chance 0\.\d\d\)$", said, re.MULTILINE)
    assert {p.name for p in (here / "runs/names").iterdir()} >= {
        "config.json",
        "losses.jsonl",
        "checkpoint.safetensors",
    }
    assert json.loads((here / "runs/names/config.json").read_text())["settings"]["num_heads"] == 4
    # started again it is finished, and says the same
    again = call("train", "names", "--config", "tiny.toml", "--heads", "4")
    assert again.exit_code == 0, again.output
    assert "is finished: 12 steps were done before" in again.stdout
    assert again.stdout.split("samples")[1] == said.split("samples")[1]
    # and so does going on by its folder alone
    assert call("train", "--resume", "runs/names").stdout == again.stdout
    # it can be looked into like any model
    shown = call("report", "--model", "runs/names", "emma olivia")
    assert shown.exit_code == 0, shown.output
    assert "1 layer × 4 heads" in shown.stdout


@pytest.mark.parametrize("symbols", ["characters", "bytes"])
def test_a_text_of_ones_own(here, symbols):
    (here / "story.txt").write_text("Zoé et Ève. " * 200)
    result = call("train", "--text", "story.txt", "--config", "tiny.toml", "--symbols", symbols)
    assert result.exit_code == 0, result.output
    unit = {"characters": "character", "bytes": "byte"}[symbols]
    assert f"nats a {unit}" in result.stdout
    assert (
        json.loads((here / "runs/story/config.json").read_text())["settings"]["symbols"] == symbols
    )
    assert "\n  0.1  " in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "what to train on is missing; give names, or --text FILE"),
        (["nmaes"], "the data that comes with it is names, and 'nmaes' came"),
        (["names", "--text", "a.txt"], "names and --text both came"),
        (["names", "--preset", "small"], "there is no preset 'small'"),
        (["names", "--steps", "0"], "steps must be 1 or more, and 0 came"),
        (["names", "--heads", "5"], "64 dims for 5 heads came; give heads that divide 64"),
        (["names", "--lr", "nan"], "lr must be at least 0.0, and nan came"),
        (["names", "--symbols", "bytes"], "names are characters, and bytes came; leave it out"),
        (["names", "--device", "tpu"], "device must be one of auto, cpu, cuda"),
        (["names", "--config", "none.toml"], "none.toml cannot be read: No such file"),
        (["names", "--config", "bad.toml"], "bad.toml must be TOML"),
        (["names", "--config", "wrong.toml"], "there is no setting 'layers'"),
        (["names", "--config", "three.toml"], "preset must be one of textbook, names-small, text-"),
        (["names", "--config", "list.toml"], "preset must be one of textbook, names-small, text-"),
        (["names", "--config", "none-named.toml"], "there is no preset ''"),
        (["names", "--config", "number.toml"], "data must be text, and 3 came"),
        (["names", "--steps", "2", "--config", "word.toml"], "steps must be a whole number, and '"),
        (["names", "--config", "narrow.toml"], "context must have room for the longest name, 16 "),
        (["--text", "none.txt"], "none.txt is not: No such file or directory"),
        (["--text", "empty.txt"], "empty.txt is empty"),
        (["--text", "latin.txt"], "latin.txt must be text in UTF-8, and byte 2 is not"),
        (["--text", "short.txt"], "a context of 128 tokens needs a text of 1,290 at least"),
        (["--text", "tiny.txt"], "a context of 128 tokens needs a text of 1,290 at least"),
        (["--text", "."], "Is a directory"),
        (["--resume", "nowhere"], "nowhere has no config.json, so it is not a run"),
        (["names", "--resume", "runs/x"], "--resume goes on as the run began; leave the other"),
        (["names", "-o", "empty.txt", "--steps", "1"], "must be a folder that can be written"),
        (["names", "--steps", "9", "--config", "hot.toml"], "is no finite number at step"),
    ],
)  # fmt: skip
def test_a_bad_input_is_a_line(here, arguments, said):
    (here / "empty.txt").write_text("")
    (here / "latin.txt").write_bytes("Zoé".encode("latin-1"))
    (here / "tiny.txt").write_text("abc")
    (here / "short.txt").write_text("abc " * 100)
    (here / "bad.toml").write_text("steps: 3")
    (here / "wrong.toml").write_text("layers = 3")
    (here / "number.toml").write_text("data = 3")
    (here / "word.toml").write_text('steps = "many"')
    (here / "narrow.toml").write_text("context = 1")
    (here / "three.toml").write_text("preset = 3")
    (here / "list.toml").write_text('preset = ["a"]')
    (here / "none-named.toml").write_text('preset = ""')
    (here / "hot.toml").write_text(TINY + "lr = 1e30\nwarmup = 0\nclip = 1e30\n")
    result = call("train", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert result.stderr.strip().splitlines()[-1].startswith("multihead train: ")


def test_other_settings_in_the_same_folder(here):
    assert call("train", "names", "--config", "tiny.toml", "--steps", "2").exit_code == 0
    before = (here / "runs/names/checkpoint.safetensors").read_bytes()
    result = call("train", "names", "--config", "tiny.toml", "--steps", "2", "--seed", "5")
    assert result.exit_code == 2
    assert "holds a run with seed 0, and 5 came; give another --out" in result.stderr
    assert (here / "runs/names/checkpoint.safetensors").read_bytes() == before


def test_settings_by_preset_file_and_option(here, monkeypatch):
    """The later the stronger: preset, file, command line."""
    seen: list[Settings] = []
    monkeypatch.setattr("multihead.cli.train._train", lambda s, *_: seen.append(s))
    (here / "own.toml").write_text('preset = "textbook"\nsteps = 77\nlr = 0.5\n')
    assert call("train", "names", "--config", "own.toml", "--lr", "0.25").exit_code == 0
    book = settings.PRESETS["textbook"]
    assert seen[0] == book.of({"steps": 77, "lr": 0.25})
    assert call("train", "names", "--config", "own.toml", "--preset", "names-small").exit_code == 0
    assert seen.pop() == settings.PRESETS["names-small"].of({"steps": 77, "lr": 0.5})
    (here / "story.txt").write_text("a")
    assert call("train", "--text", "story.txt", "--preset", "textbook").exit_code == 0
    assert (seen[1].d_model, seen[1].context, seen[1].tokens) == (16, 64, 64)


def test_ctrl_c_is_one_line_and_the_run_goes_on(here):
    code = "import sys; sys.argv[0] = 'multihead'; from multihead.cli import main; main()"
    arguments = ["train", "names", "--config", "tiny.toml", "--steps", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    checkpoint = here / "runs/names/checkpoint.safetensors"
    end = time.monotonic() + 120
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.rstrip().endswith("multihead: stopped")
    from multihead.training import read_model

    assert read_model(checkpoint)[0].config.d_model == 8


def test_watching_shows_the_heads(here):
    (here / "tiny.toml").write_text(TINY + "heads_every = 4\n")
    result = call("train", "names", "--config", "tiny.toml", "--watch", "-o", "run")
    assert result.exit_code == 0
    for step in (0, 4, 8, 12):
        assert re.search(rf"^step {step}, loss \d\.\d+, relative entropy ", result.stdout, re.M)


@pytest.mark.parametrize("letters", ["A", "ACGT"])
def test_an_alphabet_of_few_letters_is_trained_on_and_looked_into(here, letters):
    (here / "dna.txt").write_text(letters * (3000 // len(letters)))
    result = call("train", "--text", "dna.txt", "--config", "tiny.toml", "--preset", "textbook")
    assert result.exit_code == 0, result.output
    assert re.search(r"^  0\.1  ", result.stdout, re.MULTILINE)
    shown = call("look", "--model", "runs/dna", letters * 12, "--get", "/home.json")
    assert shown.exit_code == 0, shown.output
    assert "Traceback" not in shown.output


def test_a_text_that_a_file_names_is_found_from_everywhere(here, monkeypatch):
    (here / "deep").mkdir()
    (here / "deep/own.toml").write_text(TINY + 'data = "story.txt"\ncontext = 16\n')
    (here / "deep/story.txt").write_text("Once upon a time. " * 100)
    result = call("train", "--config", "deep/own.toml")
    assert result.exit_code == 0, result.output
    told = json.loads((here / "runs/story/config.json").read_text())
    assert told["settings"]["data"] == str(here / "deep/story.txt")
    monkeypatch.chdir("/")
    again = call("train", "--resume", str(here / "runs/story"))
    assert again.exit_code == 0, again.output
    assert "is finished" in again.stdout
