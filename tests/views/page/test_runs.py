"""A training run as it is read from its folder, asked for, and refused."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from page_server import Served, serving
from small_runs import CELLS, HEADS, STEPS, cells, entropy, loss, top_score, write_run, write_sample
from typer.testing import CliRunner

from multihead import cli
from multihead.views.page import playing
from multihead.views.page.playing import standalone_run
from multihead.views.page.runs import Run


def look(*arguments):
    given = ["look", *map(str, arguments)]
    return CliRunner().invoke(cli.build(), given, prog_name="multihead")


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "small")


def test_every_number_of_the_file_is_told(folder):
    told = Run(folder).told()
    assert told["name"] == "small"
    assert told["steps"] == STEPS
    assert told["loss"] == pytest.approx([loss(step) for step in STEPS])
    assert told["layers"] == [{"name": f"blocks.{n}", "heads": h} for n, h in enumerate(HEADS)]
    assert [*told["statistics"]] == ["entropy", "max_score"]
    for key, made in (("entropy", entropy), ("max_score", top_score)):
        for i, step in enumerate(STEPS):
            for n, heads in enumerate(HEADS):
                expected = [made(step, n, head) for head in range(heads)]
                assert told["statistics"][key][i][n] == pytest.approx(expected, rel=1e-6)
    assert [*told["losses"]] == ["train_loss", "held_out_loss"]  # and no learning rate
    assert told["losses"]["held_out_loss"][1] == pytest.approx([50, loss(50) + 0.3])
    assert told["maps"] == [step for step in STEPS if step != 200]
    assert told["notes"] == []
    assert told["warnings"] == [
        {"step": 300, "what": "entropy fell to 0.02", "layer": 1, "head": 2},
        {"step": 500, "what": "the gradient was clipped", "layer": None, "head": None},
        {"step": 500, "what": "logits explode", "layer": 0, "head": 4},
    ]


def test_maps_are_those_of_the_file(folder):
    run = Run(folder)
    for step, layer, head, pool in ((0, 0, 4, "largest"), (600, 1, 2, "mean")):
        found = np.frombuffer(run.map(step, layer, head, pool), "<f2").reshape(CELLS, CELLS)
        np.testing.assert_array_equal(found, cells(step, layer, pool)[head].numpy())


@pytest.mark.parametrize(
    ("asked", "said"),
    [((200, 0, 0, "largest"), "no maps of step 200"), ((100, 7, 0, "largest"), "has no largest.7"),
     ((100, 1, 3, "largest"), "heads 0 to 2, but 3 came"), ((100, 0, 0, "sum"), "largest or mean")],
)  # fmt: skip
def test_a_map_that_is_not_there_is_said(folder, asked, said):
    with pytest.raises(ValueError, match=said):
        Run(folder).map(*asked)


def test_maps_without_a_line_are_not_shown(folder):
    write_sample(folder, 700)
    path = folder / "heads.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    told = Run(folder).told()
    assert told["steps"][-1] == told["maps"][-1] == 600


def test_a_map_that_is_cut_short_is_said(folder):
    path = folder / "maps" / "00000100.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="cannot be read, it may still be written"):
        Run(folder).map(100, 0, 0, "largest")
    assert b'"100/largest/0"' not in standalone_run(Run(folder))  # and left out of the file


def test_what_cannot_be_read_is_left_out_and_said(folder):
    path = folder / "heads.jsonl"
    lines = path.read_text().splitlines()
    lines[1:2] = ["no JSON", lines[1].replace("0.8", "NaN", 1), '{"step": 150}', '{"step": "x"}']
    path.write_text("\n".join([*lines, lines[-1].replace("600", "650")[:60]]))
    told = Run(folder).told()
    assert told["steps"] == STEPS
    assert told["statistics"]["entropy"][1][0][0] is None
    assert "the last line of heads.jsonl is half-written, and left out" in told["notes"]
    assert "heads.jsonl: lines 2, 5 cannot be read as a step: left out" in told["notes"]
    assert "heads.jsonl: 1 sample without layers left out" in told["notes"]


def test_a_run_that_was_taken_up_again_shows_what_came_later(folder):
    again = json.loads((folder / "heads.jsonl").read_text().splitlines()[3]) | {"loss": 9.5}
    with (folder / "heads.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    told = Run(folder).told()
    assert (told["steps"], told["loss"][3]) == (STEPS, 9.5)
    assert told["notes"] == ["1 step came twice; what came later is shown"]


def test_what_is_no_statistic_is_none(folder):
    """Lists of words or of another length, and numbers that are none."""
    path = folder / "heads.jsonl"
    more = (
        '"words": ["a", "b"], "pair": [1.0, 2.0], "heads": 5, "odd": [1e400, NaN, null, true, 7], '
    )
    path.write_text(path.read_text().replace('"heads": 5, ', more))
    told = Run(folder).told()
    assert [*told["statistics"]] == ["odd", "entropy", "max_score"]
    assert told["statistics"]["odd"][0] == [[None, None, None, None, 7.0], [None] * 3]
    path.write_text(path.read_text().replace('"heads": 5, ', '"heads": 10000000000, '))
    with pytest.raises(ValueError, match="7 samples without layers left out"):
        Run(folder)


def test_a_long_curve_is_thinned_but_for_what_is_told(folder):
    with (folder / "losses.jsonl").open("w") as file:
        file.writelines(json.dumps({"step": s, "train": s / 7}) + "\n" for s in range(30_000))
    found = dict(Run(folder).told()["losses"]["train"])
    assert 3000 < len(found) < 5000
    assert {step: found[step] for step in STEPS} == pytest.approx({s: s / 7 for s in STEPS})


def test_a_file_carries_as_many_maps_as_fit(folder, monkeypatch):
    each = 2 * sum(HEADS) * CELLS * CELLS * 2  # both pools, float16
    monkeypatch.setattr(playing, "MOST", 3 * each)
    page = standalone_run(Run(folder)).decode()
    assert "of 6 steps with maps this file carries 3" in page
    assert [step for step in STEPS if f'"{step}/largest/1"' in page] == [0, 300, 600]


def test_without_losses_and_maps_there_is_still_a_run(tmp_path):
    write_run(tmp_path, losses=False, without_map=tuple(STEPS))
    told = Run(tmp_path).told()
    assert (told["steps"], told["losses"], told["maps"]) == (STEPS, {}, [])


def test_it_is_read_again_as_it_grows(folder):
    run = Run(folder)
    before = run.version()
    assert run.told()["version"] == before == run.version()
    write_sample(folder, 700)
    assert run.version() != before
    assert run.told()["steps"] == [*STEPS, 700]


def test_the_server_answers_with_its_guard(folder):
    with serving(Run(folder)) as served:
        assert served.json("/run.json")[1] == json.loads(json.dumps(Run(folder).told()))
        assert served.json("/version.json")[1]["version"] == Run(folder).version()
        status, _, body = served.ask("/map/600/1/2.bin?pool=mean")
        assert (status, body) == (200, cells(600, 1, "mean")[2].numpy().tobytes())
        assert b"run.js" in served.ask("/")[2]
        assert served.ask("/run.json", token=False)[0] == 403
        assert served.ask("/run.json", Host="elsewhere.example")[0] == 403
        assert served.json("/map/200/0/0.bin")[0] == 400
        assert served.json("/home.json")[0] == 404
        assert served.ask("/static/../runs.py")[0] == 404


def test_the_command_answers_exports_and_refuses(folder, tmp_path):
    found = look("--run", folder, "--get", "/run.json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["steps"] == STEPS
    assert look("--run", folder, "--get", "nothing").exit_code == 1
    page = tmp_path / "page.html"
    assert "the whole run" in look("--run", folder, "--export", page).stdout
    assert page.read_bytes() == standalone_run(Run(folder))
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "heads.jsonl").write_text('{"step": 0, "lay')
    for given, said in (
        (["--run", tmp_path / "nowhere"], "is not there"),
        (["--run", page], "is a file"),
        (["--run", tmp_path / "empty"], "holds no heads.jsonl"),
        (
            ["--run", tmp_path / "begun"],
            "holds no sample yet: the last line of heads.jsonl is half",
        ),
        (["--run", folder, "--model", "smollm2"], "--model and --run both came"),
        (["--run", folder, "a text"], "a text and --run both came"),
        (["--run", folder, "--port", "-1"], "--port must be 0 to 65535"),
    ):
        refused = look(*given)
        assert (refused.exit_code, refused.stdout) == (2, ""), given
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_the_command_serves_until_ctrl_c(folder):
    command = [sys.executable, "-m", "multihead", "look", "--run", str(folder), "--no-browser"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--port", "0"], **pipes) as process:
        try:
            address = next(line.strip() for line in process.stdout if "http://" in line)
            assert Served(None, address).json("/run.json")[1]["steps"] == STEPS
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
