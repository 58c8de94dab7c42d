"""Every example runs, is short, and says something."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

FOLDER = Path(__file__).parent.parent / "examples"
LONGER = {"induction": 300}  # it trains, cuts and draws, and has a test of its own
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in LONGER)


def run(path, folder, *arguments):
    command = [sys.executable, path, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path):
    assert run(path, tmp_path)
    assert len(path.read_text("utf-8").splitlines()) < 60


def test_induction_is_watched(tmp_path):
    """The first steps, before anything is born: all of it runs, and what it writes is there."""
    path = FOLDER / "induction.py"
    assert len(path.read_text("utf-8").splitlines()) < LONGER["induction"]
    said = run(path, tmp_path, "--quick", "--out", "picture.png", "--run", "run")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    lines = [json.loads(line) for line in (tmp_path / "run" / "heads.jsonl").open()]
    assert [line["step"] for line in lines] == [0, 10, 20, 30, 40]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert all(0 < v < 1 for line in lines for one in line["layers"] for v in one["induction"])
    assert f"{lines[-1]['loss']:.3f}" in said  # the table and the file tell the same
    assert "previous token of 0." in said
    maps = load_file(tmp_path / "run" / "maps" / "00000040.safetensors")
    assert sorted(maps) == ["largest.0", "largest.1", "mean.0", "mean.1"]
    assert {tuple(pooled.shape) for pooled in maps.values()} == {(4, 32, 32)}
