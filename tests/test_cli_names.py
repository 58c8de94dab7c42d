"""The commands on the model that comes with the package, which needs no network."""

import json

import pytest
from typer.testing import CliRunner

from multihead import cli


def call(*arguments: str):
    return CliRunner().invoke(cli.build(), [*arguments], prog_name="multihead")


def test_report_reads_a_single_name():
    result = call("report", "--model", "names", "emma")
    assert result.exit_code == 0, result.output
    assert "3 layers × 4 heads" in result.stdout
    assert "5; the tokenizer put a BOS before them, ⏎" in result.stdout
    assert "a model of characters has too few" in " ".join(result.stdout.split())
    assert "--no-names" not in result.stdout


def test_report_has_an_example_of_the_models_own():
    result = call("report", "--model", "names", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["text"]["source"] == "what it has not trained on"
    assert told["text"]["words"][:6] == ["\n", "f", "e", "l", "i", "x"]
    assert len(told["heads"]) == 12
    assert 1 < told["loss"] < 3


@pytest.mark.parametrize("path", ["/", "/home.json", "/names.json", "/head/2/0.json"])
def test_look_answers_without_a_socket(path):
    result = call("look", "--model", "names", "--get", path)
    assert result.exit_code == 0, result.output
    if path == "/home.json":
        told = json.loads(result.stdout)
        assert told["can_cut"]
        assert "A small GPT of first names" in json.dumps(told)


def test_look_writes_the_whole_page(tmp_path):
    path = tmp_path / "page.html"
    result = call("look", "--model", "names", "emma olivia", "--export", str(path))
    assert result.exit_code == 0, result.output
    assert path.stat().st_size > 50_000


def test_explain_follows_a_head():
    result = call("explain", "--model", "names", "emma", "--layer", "2", "--head", "0")
    assert result.exit_code == 0, result.output
    assert "⏎ e m m a" in result.stdout
    assert "layer 2, head 0 · 4 heads of 16" in result.stdout


@pytest.mark.parametrize("command", ["report", "look", "explain"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Zoé", "knows the characters 'abcdefghijklmnopqrstuvwxyz', and 'é' came"),
        ("a" * 40, "a document may have 16 tokens, and this one has 41"),
    ],
)
def test_a_text_that_it_cannot_read(command, text, said):
    more = ["--get", "/"] if command == "look" else []
    result = call(command, "--model", "names", text, *more)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output
