"""The heads of a run in its folder: looked at once each, whenever the run was killed."""

import json

import pytest
from safetensors.torch import load_file
from train_command import TINY, call

from multihead.cli.train import _Heads
from multihead.monitoring import read_lines
from multihead.training import Trainer, settings


def steps_of(folder):
    return [line["step"] for line in read_lines(folder)]


def test_heads_are_looked_at_on_the_way_and_can_be_played(here):
    (here / "tiny.toml").write_text(TINY + "heads_every = 4\n")
    assert call("train", "names", "--config", "tiny.toml", "-o", "run").exit_code == 0
    assert steps_of(here / "run") == [0, 4, 8, 12]  # the model that came of it too
    assert len([*(here / "run/maps").iterdir()]) == 4
    before = (here / "run/heads.jsonl").read_bytes()
    assert call("train", "--resume", "run").exit_code == 0  # which is finished
    assert (here / "run/heads.jsonl").read_bytes() == before
    played = call("look", "--run", "run", "--get", "/run.json")
    assert played.exit_code == 0
    told = json.loads(played.stdout)
    assert told["steps"] == told["maps"] == [0, 4, 8, 12]


def test_a_run_that_goes_on_looks_at_each_step_once(here):
    (here / "tiny.toml").write_text(TINY + "heads_every = 2\n")
    trainer = Trainer(settings.preset("names-small").of(settings.read_toml(here / "tiny.toml")),
                      here / "run")  # fmt: skip
    heads = _Heads(trainer, here / "run", watch=False)

    def stop(done):
        heads(done)
        if done.step == 7:  # behind the checkpoint of step 4
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), heads.looked_at():
        trainer.train(stop, at_start=heads.begin)
    assert steps_of(here / "run") == [0, 2, 4, 6]
    assert call("train", "--resume", "run").exit_code == 0
    assert steps_of(here / "run") == [0, 2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("heads.jsonl", '{"epoch": 1}', "heads.jsonl has a line that no monitor wrote"),
        ("heads.jsonl", None, "heads.jsonl cannot be read: Is a directory"),
        ("losses.jsonl", '{"step": 1, "loss": 3}', "run is not a run: it holds losses.jsonl"),
    ],
)
def test_a_refusal_writes_nothing(here, name, line, said):
    (here / "run").mkdir()
    if line is None:
        (here / "run" / name).mkdir()
    else:
        (here / "run" / name).write_text(line + "\n")
    result = call("train", "names", "--config", "tiny.toml", "-o", "run")
    assert result.exit_code == 2
    assert said in result.stderr
    assert [p.name for p in (here / "run").iterdir()] == [name]
    assert line is None or (here / "run" / name).read_text() == line + "\n"


def train_killed(folder: str, monkeypatch, step: int, saved: bool) -> None:
    """A run that ends right before its checkpoint of a step, or right behind it."""
    plain = Trainer._save

    def save(trainer):
        if trainer.step == step and not saved:
            raise KeyboardInterrupt
        plain(trainer)
        if trainer.step == step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_save", save)
        assert call("train", "names", "--config", "tiny.toml", "-o", folder).exit_code != 0


def files_of(folder):
    """All that is in the folder of a run; of its losses not how fast they came."""
    found = {}
    for path in (path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":  # the order of its header is any
            found[name] = {key: tensor.tolist() for key, tensor in load_file(path).items()}
        elif name == "losses.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [line | {"tokens_per_second": 0} for line in lines]
        elif name not in ("config.json", ".lock"):
            found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("step", [4, 8, 12])
def test_killed_around_a_checkpoint_it_misses_no_look_at_its_heads(here, monkeypatch, step, saved):
    """Records 3 and 7 are of the steps that checkpoints 4 and 8 end, 12 of what came of all."""
    (here / "tiny.toml").write_text(TINY + "heads_every = 1\n")
    assert call("train", "names", "--config", "tiny.toml", "-o", "whole").exit_code == 0
    train_killed("run", monkeypatch, step, saved)
    assert call("train", "--resume", "run").exit_code == 0
    assert steps_of(here / "run") == [*range(13)]
    assert files_of(here / "run") == files_of(here / "whole")  # and nothing is set aside
