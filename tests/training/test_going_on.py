"""Started again in a folder: what was there must be the same run, the same text, and sound."""

import json

import pytest
from stopping import Stop, stop_at

from multihead.training import Run, Settings, Trainer, saving

TINY = Settings(
    d_model=8, num_heads=2, num_layers=1, context=32, rows=8, tokens=32, steps=11, warmup=5,
    log_every=3, held_out_every=100, checkpoint_every=5, device="cpu",
)  # fmt: skip


def of_text(tmp_path, content: str, **changes) -> Trainer:
    path = tmp_path / "text.txt"
    path.write_text(content)
    settings = TINY.of({"data": str(path), **changes})
    return Trainer(settings, tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("uvwxyz \n", r"its characters were '\\n abcdef' and are '\\n uvwxyz'"),
        ("fedcba \n", "it says other things with the same characters"),
    ],
)
@pytest.mark.parametrize("step", [7, 11])
def test_a_text_that_changed_meanwhile_is_refused(tmp_path, content, said, step):
    with pytest.raises(Stop):
        of_text(tmp_path, "abcdef \n" * 100).train(stop_at(step))
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(ValueError, match=f"text.txt has changed since .*{said}; put it back"):
        of_text(tmp_path, content * 100).train()
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    of_text(tmp_path, "abcdef \n" * 100).train()  # put back, it goes on


def test_a_checkpoint_without_a_digest_goes_on_with_the_same_alphabet(tmp_path):
    with pytest.raises(Stop):
        of_text(tmp_path, "abcdef \n" * 100).train(stop_at(7))
    path = tmp_path / "run" / "checkpoint.safetensors"
    tensors, told = saving.read(path)
    del told["digest"]
    saving.write(path, tensors, told)
    with pytest.raises(ValueError, match="has changed since"):
        of_text(tmp_path, "uvwxyz \n" * 100).train()
    again = of_text(tmp_path, "abcdef \n" * 100)
    again.train()
    assert again.step == 11


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"model_type": "gpt2", "n_head": 12}, "is not a run: its config.json holds no settings"),
        ([1, 2], "is not a run: its config.json holds no settings"),
        (None, "is not a run: its config.json holds no settings"),
        ({"settings": [3]}, "is not a run: its config.json holds no settings"),
        ({"settings": {"colour": 3}}, "not hold the settings of a run: there is no setting 'colo"),
        ({"settings": {"steps": "many"}}, "of a run: steps must be a whole number"),
    ],
)
def test_a_folder_of_something_else_is_said_to_be_no_run(tmp_path, content, said):
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=said):
        Run(tmp_path).settings()
    with pytest.raises(ValueError, match=said):
        Trainer(TINY, tmp_path).train()
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", ["losses.jsonl", "checkpoint.safetensors"])
def test_files_of_something_else_are_not_written_over(tmp_path, name):
    (tmp_path / name).write_text('{"step": 1, "loss": 3}\n')
    with pytest.raises(ValueError, match=f"is not a run: it holds {name} and no config.json"):
        Trainer(TINY, tmp_path).train()
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == '{"step": 1, "loss": 3}\n'


@pytest.mark.parametrize("line", ['{"epoch": 1}', "[1]", "3", "step loss", '{"step": "one"}'])
def test_losses_of_something_else_in_the_folder_of_a_run(tmp_path, line):
    with pytest.raises(Stop):
        Trainer(TINY, tmp_path).train(stop_at(7))
    with (tmp_path / "losses.jsonl").open("a") as file:
        file.write(line + "\n")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"losses.jsonl has a line that multihead train did not"):
        Trainer(TINY, tmp_path).train()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert [told["step"] for told in Run(tmp_path).lines()] == [3, 6]


def test_losses_that_cannot_be_read_are_a_line(tmp_path):
    with pytest.raises(Stop):
        Trainer(TINY, tmp_path).train(stop_at(7))
    (tmp_path / "losses.jsonl").unlink()
    (tmp_path / "losses.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"losses.jsonl cannot be read: Is a directory; give"):
        Trainer(TINY, tmp_path).train()


def test_a_run_of_before_there_was_a_setting_goes_on(tmp_path):
    with pytest.raises(Stop):
        Trainer(TINY, tmp_path).train(stop_at(7))
    path = tmp_path / "config.json"
    told = json.loads(path.read_text())
    del told["settings"]["heads_every"]
    path.write_text(json.dumps(told))
    assert Run(tmp_path).settings() == TINY
    again = Trainer(TINY, tmp_path)
    again.train()
    assert again.step == 11


def test_a_text_that_was_named_from_a_directory_is_the_same_text(tmp_path, monkeypatch):
    """Runs of before kept the name as it was given."""
    with pytest.raises(Stop):
        of_text(tmp_path, "abcdef \n" * 100).train(stop_at(7))
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace(str(tmp_path / "text.txt"), "text.txt"))
    monkeypatch.chdir(tmp_path)
    of_text(tmp_path, "abcdef \n" * 100).train()
    Trainer(TINY.of({"data": "text.txt"}), tmp_path / "other").train()
    assert Run(tmp_path / "other").settings().data == str(tmp_path / "text.txt")


@pytest.mark.parametrize("every", ["checkpoint_every", "held_out_every"])
def test_weights_that_a_step_threw_out_of_range_are_not_written(tmp_path, every):
    hot = TINY.of({"lr": 1e39, "warmup": 0, "log_every": 1, every: 1})
    with pytest.raises(
        ValueError, match="a weight is no finite number at step 1, .* no checkpoint"
    ):
        Trainer(hot, tmp_path).train()
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert not Run(tmp_path).lines()


def test_a_held_out_loss_that_is_not_finite_is_not_written(tmp_path, monkeypatch):
    trainer = Trainer(TINY.of({"held_out_every": 10}), tmp_path)
    monkeypatch.setattr(trainer, "measure", lambda: float("nan"))
    said = "the held-out loss is no finite number at step 10, .* checkpoint of step 5 is intact"
    with pytest.raises(ValueError, match=said):
        trainer.train()
    assert saving.read(tmp_path / "checkpoint.safetensors")[1]["step"] == 5
    assert "NaN" not in (tmp_path / "losses.jsonl").read_text()


def test_the_next_loss_takes_no_batch_and_no_random_number(tmp_path):
    one, two = (Trainer(TINY.of({"dropout": 0.5}), tmp_path / name) for name in "ab")
    found = []
    one.train(lambda done: found.append(one.next_loss()))
    two.train()
    assert len({*found}) == 11
    files = [tmp_path / name / "checkpoint.safetensors" for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()
