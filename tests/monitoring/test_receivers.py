"""Who is told: lines that survive a kill, the folder of a run, a writer, a function, several."""

import errno
import json
import os
import signal
import subprocess
import sys
import warnings

import pytest
import torch
from safetensors import safe_open
from watched_models import TOKENS, Packed, loss_of, train, vectors, watched

import multihead as mh
from multihead.monitoring import picture, read_lines, receivers


def run(to, steps=5, every=2, kind="packed", **options):
    model, given = watched(kind)
    with mh.monitor(model, every=every, to=to, **options) as watch:
        return train(model, given, steps, watch)[2]


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_file_has_a_line_a_sample_and_a_function_gets_the_same(tmp_path):
    path, told = tmp_path / "deep" / "heads.jsonl", []
    records = run([path, told.append])
    assert lines(path) == told == records == read_lines(path)
    assert [record["step"] for record in records] == [0, 2, 4]
    assert [*records[0]] == ["step", "loss", "layers", "quantiles", "worst", "warnings"]
    layer = records[0]["layers"][0]
    assert [*layer] == ["name", "heads", "max_score", "entropy", "peak", "mass:prefix(1)"]
    assert layer["heads"] == len(layer["entropy"]) == 3


def test_the_folder_of_a_run(tmp_path):
    folder = tmp_path / "runs" / "first"
    records = run(str(folder))
    assert lines(folder / "heads.jsonl") == records == read_lines(folder)
    assert sorted(path.name for path in (folder / "maps").iterdir()) == [
        "00000000.safetensors", "00000002.safetensors", "00000004.safetensors",
    ]  # fmt: skip
    with safe_open(folder / "maps" / "00000002.safetensors", "pt") as file:
        names = json.loads(file.metadata()["layers"])
        assert file.metadata()["step"] == "2"
        found = {name: file.get_tensor(name) for name in [*file.keys()]}
    assert names == [layer["name"] for layer in records[1]["layers"]] == ["blocks.0", "blocks.1"]
    assert {*found} == {"largest.0", "mean.0", "largest.1", "mean.1"}
    assert all(t.shape == (3, TOKENS, TOKENS) and t.dtype == torch.float16 for t in found.values())


def test_maps_are_those_of_the_first_text(tmp_path):
    model, x = Packed(layers=1).train(), vectors(tokens=97)
    with mh.monitor(model, to=tmp_path / "run") as watch:
        loss_of(model, {"x": x}).backward()
        watch.step()
    with torch.no_grad():
        _, seen = model.blocks[0].observe(x, stats=(mh.heatmap(32),))
    with safe_open(tmp_path / "run" / "maps" / "00000000.safetensors", "pt") as file:
        for name in ("largest", "mean"):
            expected = getattr(seen["heatmap(32)"], name)[0].half()
            torch.testing.assert_close(file.get_tensor(f"{name}.0"), expected, atol=1e-3, rtol=1e-3)


class Writer:
    """As much of TensorBoard's as is used."""

    def __init__(self):
        self.scalars, self.images, self.texts = {}, {}, []

    def add_scalar(self, tag, value, step):
        self.scalars[tag, step] = value

    def add_image(self, tag, image, step):
        self.images[tag, step] = image

    def add_text(self, tag, text, step):
        self.texts.append((tag, text, step))


def test_a_writer_gets_quantiles_and_pictures_and_no_series_a_head():
    writer = Writer()
    records = run(writer, every=4)
    tags = {tag for tag, _ in writer.scalars}
    assert len(tags) == 4 * 2 * 3  # statistics, layers, least, median and greatest
    least, _, median, _, greatest = records[0]["quantiles"]["entropy"][1]
    assert writer.scalars["heads/entropy/blocks.1/median", 0] == median
    assert writer.scalars["heads/entropy/blocks.1/least", 0] == least
    assert writer.scalars["heads/entropy/blocks.1/greatest", 0] == greatest
    assert {*writer.images} == {
        (f"heads/{key}", step) for key in records[0]["quantiles"] for step in (0, 4)
    }
    image = writer.images["heads/entropy", 0]
    assert image.shape == (1, 2 * 8, 3 * 8)
    torch.testing.assert_close(image[0, ::8, ::8], picture(records[0], "entropy"))
    assert (
        0
        <= writer.images["heads/max_score", 0].min()
        <= writer.images["heads/max_score", 0].max()
        <= 1
    )


def test_a_torn_line_is_taken_off_and_a_run_that_goes_on_says_nothing_twice(tmp_path):
    path = tmp_path / "heads.jsonl"
    first = run(path, steps=7)
    with open(path, "ab") as file:
        file.write(b'{"step": 8, "loss": 0.3, "lay')
    assert read_lines(path) == first
    again = run(path, steps=3, step=4)  # from a checkpoint of step 4
    assert [record["step"] for record in lines(path)] == [0, 2, 4, 6]
    assert lines(path) == [*first[:2], *again]


def test_a_run_from_the_start_leaves_the_one_before_readable(tmp_path):
    first = run(tmp_path / "run")
    second = run(tmp_path / "run", every=4)
    assert read_lines(tmp_path / "run") == second
    assert lines(tmp_path / "run" / "heads.before.jsonl") == first
    assert maps_of(tmp_path / "run") == [0, 4]
    assert maps_of(tmp_path / "run", "maps.before") == [0, 2, 4]
    run(tmp_path / "run", every=3)  # nor does a third take the place of the first
    assert lines(tmp_path / "run" / "heads.before.jsonl") == first
    assert lines(tmp_path / "run" / "heads.before-2.jsonl") == second
    assert maps_of(tmp_path / "run") == [0, 3]
    assert maps_of(tmp_path / "run", "maps.before-2") == [0, 4]


def maps_of(folder, name="maps"):
    return sorted(int(path.stem) for path in (folder / name).iterdir())


def test_maps_of_a_future_that_is_dropped_go_with_its_lines(tmp_path):
    run(tmp_path / "run", steps=9)
    own = tmp_path / "run" / "maps" / "mine.safetensors"
    own.write_bytes(b"")  # what no monitor wrote is nobody's to remove
    run(tmp_path / "run", steps=1, step=4)
    assert own.exists()
    own.unlink()
    assert maps_of(tmp_path / "run") == [0, 2, 4]
    assert [record["step"] for record in read_lines(tmp_path / "run")] == [0, 2, 4]
    assert not (tmp_path / "run" / "maps.before").exists()


KILLED = """
import sys, torch
import multihead as mh
torch.set_num_threads(1)
model = mh.MultiHeadAttention(12, 3, mask=mh.causal())
watch = mh.monitor(model, every=1, to=sys.argv[1])
while True:
    model(torch.randn(1, 9, 12)).sum().backward()
    watch.step()
    print(watch._step, flush=True)
"""


def test_every_line_is_readable_after_a_kill(tmp_path):
    folder = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True
    )
    done = 0
    while done < 25:
        done = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    steps = [record["step"] for record in read_lines(folder)]
    assert steps == [*range(len(steps))]
    assert len(steps) >= 25
    for step in steps:  # a line has its maps
        with safe_open(folder / "maps" / f"{step:08}.safetensors", "pt") as file:
            assert file.get_tensor("mean.0").shape == (3, 9, 9)


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["append", "write_tensors"])
def test_a_full_disk_is_said_once_and_training_goes_on(tmp_path, monkeypatch, what):
    model, given = watched("packed")
    told = []
    watch = mh.monitor(model, every=1, to=[tmp_path / "run", told.append])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for is_full in (False, True, True, False, True, False):
            with monkeypatch.context() as patch:
                if is_full:
                    patch.setattr(receivers, what, full)
                train(model, given, 1, watch)
    said = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    assert len(said) == 2  # once, and once when there had been room again
    assert "No space left on device; make room" in said[0]
    assert "Training goes on" in said[0]
    assert [record["step"] for record in told] == [0, 1, 2, 3, 4, 5]
    assert [record["step"] for record in read_lines(tmp_path / "run")] == [0, 3, 5]


def test_half_a_line_is_taken_off_again(tmp_path, monkeypatch):
    path = tmp_path / "heads.jsonl"
    receivers.append(path, b"one\n")

    class Full:
        """A disk that is full after five bytes."""

        def __init__(self, file):
            self.file, self.room = file, 5

        @classmethod
        def opened(cls, *arguments, **options):
            return cls(open(*arguments, **options))

        def write(self, data):
            if not self.room:
                full()
            data = bytes(data[: self.room])
            self.room -= len(data)
            return self.file.write(data)

        def fileno(self):
            return self.file.fileno()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

    with monkeypatch.context() as patch:
        patch.setattr(receivers, "open", Full.opened, raising=False)
        with pytest.raises(OSError, match="No space"):
            receivers.append(path, b"a line that is longer\n")
    assert path.read_bytes() == b"one\n"
