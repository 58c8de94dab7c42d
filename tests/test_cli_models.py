"""The commands that load a model, on a tiny one of random weights in a folder."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import pytest
import torch
from rich.cells import cell_len
from small_reports import WORDS, save_model
from typer.testing import CliRunner

import multihead as mh
from multihead import cli

TEXT = " ".join(WORDS * 3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return str(save_model(tmp_path_factory.mktemp("tiny")))


def call(*arguments: str, **more):
    return CliRunner().invoke(cli.build(), [*arguments], prog_name="multihead", **more)


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The whole job once: names, controls, cuts, files."""
    out = tmp_path_factory.mktemp("out") / "new" / "folder"
    return call("report", TEXT, "--model", tiny, "-o", str(out)), out


# ---- report -------------------------------------------------------------------------------------


def test_report_prints_its_three_parts(whole):
    result, out = whole
    assert result.exit_code == 0, result.output
    parts = re.findall(r"^── (.+?) ─", result.stdout, re.MULTILINE)
    assert parts == ["model and text", "heads worth a look", "what was found"]
    assert f"{3 * len(WORDS)}; no BOS" in result.stdout
    assert "of 6 heads have a name" in result.stdout
    assert all(cell_len(line) <= 80 for line in result.stdout.splitlines()[:-1])
    assert result.stdout.endswith(f"findings.txt are in\n  {out}\n")
    steps = re.findall(r"^multihead: (\w+)", result.stderr, re.MULTILINE)
    assert steps[:3] == ["Loading", "Recording", "Naming"]


def test_the_legend_fits_models_that_look_ahead_too(whole):
    assert "distance: tokens, how far" in " ".join(whole[0].stdout.split())


def test_report_writes_its_files(whole):
    _, out = whole
    names = {path.name for path in out.iterdir()}
    assert {"heads.json", "heads.csv", "findings.txt", "grid-entropy.png", "entropy-distance.svg"} <= names  # fmt: skip
    assert not [name for name in names if name.startswith(".")]
    found = json.loads((out / "heads.json").read_text("utf-8"))
    assert len(found["heads"]) == 6
    assert found["controlled"] is True
    model, *said = (out / "findings.txt").read_text("utf-8").splitlines()
    assert said == found["findings"]
    start = TEXT[:120].rpartition(" ")[0]  # up to a whole word
    assert model.endswith(f"54 tokens of the text given: {start} …")
    assert found["text"]["content"] == TEXT
    assert (out / "grid-entropy.png").read_bytes().startswith(b"\x89PNG")


def test_report_is_what_the_library_records(tiny):
    result = call("report", TEXT, "--model", tiny, "--no-names", "--json", "--tokens", "20")
    found = json.loads(result.stdout)
    model, tokenizer = mh.load_model(tiny)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"][:20]])
    with torch.no_grad(), mh.record(model) as rec:
        loss = model(ids, labels=ids).loss
    assert found["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert (found["tokens"], found["text"]["tokens_of_the_whole"]) == (20, 3 * len(WORDS))
    for row, head in zip(rec.heads(), found["heads"], strict=True):
        for key in ("layer", "head", "entropy", "distance", "peak", "first", "received_top_share"):
            assert head[key] == pytest.approx(row[key], rel=1e-5)
    assert (found["names"], found["verdicts"]) == (None, None)


def test_what_is_left_out_is_not_done(tiny, monkeypatch):
    from multihead.views import report

    def never(*_, **__):
        raise AssertionError

    monkeypatch.setattr(report, "verify", never)
    quick = call("report", TEXT, "--model", tiny, "--quick")
    assert quick.exit_code == 0, quick.output
    assert "take names as guesses" in " ".join(quick.stdout.split())
    assert "multihead report -o DIR" in quick.stdout
    monkeypatch.setattr(report, "probe", never)
    bare = call("report", TEXT, "--model", tiny, "--no-names", "--all")
    assert bare.exit_code == 0, bare.output
    assert len(re.findall(r"^  [01]\.[012] ", bare.stdout, re.MULTILINE)) == 6
    assert "no names were looked for" in bare.stdout


def test_csv_is_a_table_and_nothing_else(tiny, tmp_path):
    given = ["report", TEXT, "--model", tiny, "--no-names"]
    result = call(*given, "--csv", "-o", str(tmp_path))
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(rows) == 6
    assert result.stdout == (tmp_path / "heads.csv").read_text("utf-8")
    assert f"are in\n  {tmp_path}\n" in result.stderr


def test_a_file_is_read(tiny, tmp_path):
    path = tmp_path / "story.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    given = ["report", "--model", tiny, "--no-names", "--json"]
    result = json.loads(call(*given, "--file", str(path)).stdout)
    assert result["text"]["source"] == "story.txt"
    assert result["text"]["words"][0] == "The"  # and no mark of the byte order
    piped = json.loads(call(*given, "--file", "-", input=TEXT).stdout)
    assert piped["text"]["words"] == result["text"]["words"]
    assert piped["heads"] == result["heads"]
    mistaken = call(*given, str(path))
    assert mistaken.exit_code == 2
    assert f"is a file; give it with --file {path}" in mistaken.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the text is empty"),
        (b"the red light", "at least 8 tokens, and it has 3"),
        (b"caf\xe9 " * 20, "must be text in UTF-8, and is not"),
        (b"a \0 b " * 20, "has NUL bytes"),
    ],
)
def test_a_file_that_will_not_do(tiny, tmp_path, content, said):
    (tmp_path / "story.txt").write_bytes(content)
    result = call("report", "--model", tiny, "--no-names", "--file", str(tmp_path / "story.txt"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert isinstance(result.exception, SystemExit)
    assert said in result.stderr


def test_a_model_that_will_not_do(tiny, tmp_path):
    most = call("report", TEXT, "--model", tiny, "--tokens", "161", "--no-names")
    assert most.exit_code == 2
    assert "--tokens may be 160 at most" in most.stderr
    assert call("report", TEXT * 5, "--model", tiny, "--no-names").exit_code == 0  # 512 by default
    small = save_model(tmp_path / "small", max_position_embeddings=64)
    short = call("report", TEXT, "--model", str(small))
    assert short.exit_code == 2
    assert "a context of 128 tokens, and this model has 64; give --no-names" in short.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no config.json" in call("report", TEXT, "--model", str(empty)).stderr


@pytest.mark.parametrize("command", [("report",), ("explain",), ("look", "--get", "/api/session")])
def test_a_tokenizer_that_knows_more_than_its_model_is_a_line(tmp_path, command):
    small = str(save_model(tmp_path / "small", vocab_size=6))
    result = call(*command, TEXT if command[0] != "explain" else " ".join(WORDS), "--model", small)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert "the text has the token 6, but the model knows those from 0 to 5" in result.stderr


def test_a_disk_that_fills_up_loses_no_findings(tiny, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    result = call("report", TEXT, "--model", tiny, "--no-names", "-o", str(tmp_path))
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert "what was found" in result.stdout
    assert "No space left on device; make room" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", [False, True])
def test_ctrl_c_leaves_no_empty_folder(tiny, tmp_path, monkeypatch, kept):
    from multihead.views import report

    def stop(*_, **__):
        raise KeyboardInterrupt

    out = tmp_path / "new" / "folder"
    if kept:
        out.mkdir(parents=True)  # the user's own
    monkeypatch.setattr(report, "record", stop)
    assert call("report", TEXT, "--model", tiny, "-o", str(out)).exit_code == 130
    assert out.exists() == kept
    assert (tmp_path / "new").exists() == kept


def test_too_little_memory_is_a_line(tiny, monkeypatch):
    from multihead.views import report

    def burst(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    monkeypatch.setattr(report, "record", burst)
    result = call("report", TEXT, "--model", tiny)
    assert result.exit_code == 2
    assert "512 tokens took more memory than there is; give fewer with --tokens" in result.stderr


# ---- explain --model ----------------------------------------------------------------------------


def numbers(page: str, label: str) -> list[float]:
    line = next(x for x in page.splitlines() if x.startswith(f"  {label}"))
    return [float(n) for n in re.findall(r"-?\d+\.\d+|-inf", line)]


def test_a_real_head_is_followed_with_its_own_numbers(tiny):
    text = " ".join(WORDS[:7])
    result = call("explain", text, "--model", tiny, "--layer", "1", "--head", "2")
    assert result.exit_code == 0, result.output
    page = result.stdout
    titles = re.findall(r"^── (\d) (.+?) ─", page, re.MULTILINE)
    assert [t for _, t in titles] == ["score", "scale", "mask", "softmax", "weigh the values", "join the heads"]  # fmt: skip
    assert "rope" in page
    assert "layer 1, head 2 · 3 heads of 8 · 1 key head" in page

    model, tokenizer = mh.load_model(tiny, attn_implementation="eager")
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions[1][0, 2, 5]
    shown = re.findall(r"(\d+) %", next(x for x in page.splitlines() if x.startswith("  weights")))
    assert shown == [f"{100 * w:.0f}" for w in weights.tolist()]
    masked = numbers(page, "masked")
    assert masked[6] == -torch.inf
    again = torch.tensor(masked).softmax(-1)
    assert torch.allclose(again, weights, atol=0.01)
    assert numbers(page, "scaled")[:6] == masked[:6]
    dots = torch.tensor(numbers(page, "q · k"))
    assert torch.allclose(dots / 8**0.5, torch.tensor(numbers(page, "scaled")), atol=0.03)


def test_every_weight_is_accounted_for(tiny):
    """What is not told one by one is told together."""
    page = call("explain", " ".join(WORDS), "--model", tiny).stdout
    rows = page[page.index("‖v W_O‖    moves") :].splitlines()[1:8]
    percents = [int(re.search(r"(\d+) %", row)[1]) for row in rows]
    assert re.match(r"  \d+ others? ", rows[6])
    assert sum(percents) == pytest.approx(100, abs=4)


def test_the_shares_of_heads_are_those_of_the_output_projection(tiny):
    from multihead.views.followed import follow

    model, tokenizer = mh.load_model(tiny)
    seen = follow(model, tokenizer, " ".join(WORDS), layer=0)
    projection = model.model.layers[0].self_attn.o_proj
    kept = []
    handle = projection.register_forward_hook(lambda _, given, out: kept.extend([given[0], out]))
    with torch.no_grad():
        model(torch.tensor([tokenizer(" ".join(WORDS))["input_ids"]]))
    handle.remove()
    for head in range(3):
        own = kept[0][0, :, head * 8 : head * 8 + 8] @ projection.weight[:, head * 8 : head * 8 + 8].T  # fmt: skip
        assert torch.allclose(seen.shares[head], own, atol=1e-5)
    assert torch.allclose(seen.shares.sum(0), kept[1][0], atol=1e-5)


def test_the_head_chosen_reads_most_of_the_token_before(tiny):
    from multihead.views.followed import follow

    model, tokenizer = mh.load_model(tiny)
    text = " ".join(WORDS)
    best = follow(model, tokenizer, text)
    every = {
        (layer, head): follow(model, tokenizer, text, layer=layer, head=head).previous
        for layer in range(2)
        for head in range(3)
    }
    assert best.previous == max(every.values())
    assert (best.layer.index, best.head) == max(every, key=every.__getitem__)
    assert follow(model, tokenizer, text, head=1).head == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a b c", "--layer", "2"], "--layer must be 0 to 1 in this model, and 2 came"),
        (["a b c", "--head", "-1"], "--head must be 0 to 2 in this model, and -1 came"),
        (["a", "--dims", "8"], "--dims shapes a layer of random weights"),
        (["a", "--no-mask"], "--no-mask shapes a layer of random weights"),
        ([" "], "the text has no words"),
        (["a " * 161], "160 tokens at most, and it has 161"),
        (["light"], "at least 3 tokens, and it has 1"),
    ],
)
def test_what_cannot_be_followed_is_said(tiny, arguments, said):
    result = call("explain", *arguments, "--model", tiny)
    assert (result.exit_code, result.stdout) == (2, "")
    assert isinstance(result.exception, SystemExit)
    assert said in result.stderr


@pytest.mark.parametrize("width", ["80", "50"])
def test_a_page_fits(tiny, width):
    result = call("explain", TEXT, "--model", tiny, env={"COLUMNS": width})
    assert result.exit_code == 0, result.output
    for line in result.stdout.splitlines():
        assert cell_len(line) <= int(width)
        assert line == line.rstrip()


def test_three_tokens_are_enough(tiny):
    assert call("explain", "the red light", "--model", tiny).exit_code == 0


def test_a_sentence_of_ours_where_none_is_given(tiny):
    result = call("explain", "--model", tiny)
    assert result.exit_code == 0, result.output
    assert "8 tokens" in result.stdout


def test_a_plain_stream_and_a_shell(tiny):
    code = "import sys; sys.argv[0] = 'multihead'; from multihead.cli import main; main()"
    given = ["report", TEXT, "--model", tiny, "--no-names"]
    result = subprocess.run(
        [sys.executable, "-c", code, *given], capture_output=True, text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "-- model and text ---" in result.stdout
    assert "?" not in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("where", "said"),
    [("k_proj", r"in 1 layer a weight is not a number, first in .*1"), ("o_proj", "is not a num")],
)
def test_explain_says_what_is_not_a_number(tiny, where, said):
    from multihead.views.followed import follow

    model, tokenizer = mh.load_model(tiny)
    with torch.no_grad():
        getattr(model.model.layers[1].self_attn, where).weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=said):
        follow(model, tokenizer, " ".join(WORDS), layer=1)
