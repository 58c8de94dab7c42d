"""The command line: what it prints, where, with which exit code, and never a traceback."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import IO

import pytest
import typer
from rich.cells import cell_len
from typer.testing import CliRunner

import multihead
from multihead import cli
from multihead.cli import errors

TEXT = "The cat that I saw yesterday ran away"


def call(*arguments: str):
    return CliRunner().invoke(cli.build(), [*arguments], prog_name="multihead")


def run(
    *arguments: str, stdout: int | IO[str] = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command as a shell runs it, its output going to a pipe."""
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    code = "import sys; sys.argv[0] = 'multihead'; from multihead.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        stdout=stdout, stderr=subprocess.PIPE, text=True, encoding=environment.get("PYTHONIOENCODING", "utf-8"), env={**clean, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(arguments):
    result = call(*arguments)
    assert result.exit_code == 0
    assert "Usage: multihead" in result.stdout
    for command in ("look", "report", "explain", "train", "bench"):
        assert re.search(rf"^  {command} ", result.stdout, re.MULTILINE)
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_of_explain_names_its_options():
    result = call("explain", "--help")
    assert result.exit_code == 0
    for option in (
        "TEXT",
        "--heads",
        "--dims",
        "--seed",
        "--no-mask",
        "--no-costs",
        "--model",
        "--page",
    ):
        assert option in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(("command", "page"), [("train", "training"), ("bench", "performance")])
def test_a_page_shows_the_help_as_it_is(command, page):
    written = (Path(__file__).parent.parent / "docs" / f"{page}.md").read_text("utf-8")
    shown = re.search(r"<!-- help -->\n```text\n(.*?)```\n<!-- /help -->", written, re.DOTALL)
    assert shown is not None
    assert shown[1].rstrip() == call(command, "--help").stdout.rstrip()


def test_version():
    result = call("--version")
    assert (result.exit_code, result.stdout) == (0, f"multihead {multihead.__version__}\n")


def test_explain_has_a_sentence_of_its_own():
    assert call("explain", "--no-costs").stdout == call("explain", TEXT, "--no-costs").stdout


def test_explain_takes_a_sentence_quoted_or_not():
    quoted = call("explain", TEXT, "--no-costs")
    assert quoted.exit_code == 0
    assert "9 project" in quoted.stdout
    assert call("explain", *TEXT.split(), "--no-costs").stdout == quoted.stdout
    assert call("explain", TEXT, "--no-costs", "--no-mask").stdout != quoted.stdout
    assert call("explain", TEXT, "--no-costs", "--seed", "1").stdout != quoted.stdout
    assert (
        "2 heads of 5" in call("explain", "a", "--heads", "2", "--dims", "10", "--no-costs").stdout
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", ""], "the text has no words"),
        (["explain", "  \t "], "the text has no words"),
        (["explain", "a b", "--heads", "3"], "do not make 3 equal heads"),
        (["explain", "a", "--heads", "0"], "heads must be 1 to 64"),
        (["explain", "a", "--heads", "-2"], "heads must be 1 to 64"),
        (["explain", "a", "--dims", "100000"], "dims must be 1 to 1,024"),
        (["explain", "word " * 10_000], "256 words at most, and it has 10,000"),
        (["explain", "a", "--seed", "-1"], "a seed must be"),
        (["explain", "a", "--heads", "four"], "--heads"),
        (["explain", "a", "--wat"], "--wat"),
        (["explain", "a", "--layer", "3"], "--layer and --head choose in a real model"),
        (
            ["explain", "a", "--model", "smollm2", "--heads", "2"],
            "--heads shapes a layer of random",
        ),
        (["explain", "a b c", "--model", "no such model!"], "is not a name known here"),
        (["explain", " ", "--model", "no such model!"], "the text has no words"),
        (["report", ""], "the text is empty"),
        (
            ["report", "a b", "--model", "no such model!"],
            "must have at least 8 tokens, and these 3 letters cannot",
        ),
        (["report", "a", "--file", "b"], "a text and --file both came"),
        (["report", "--file", "/no/such/file"], "No such file or directory"),
        (["report", "--file", "/"], "Is a directory"),
        (["report", "--tokens", "7"], "--tokens must be 8 or more, and 7 came"),
        (["report", "--tokens", "many"], "--tokens"),
        (["report", "--json", "--csv"], "--json and --csv both came"),
        (["report", "--model", "no such model!"], "is not a name known here"),
        (["report", "-o", "/dev/null"], "must be a folder that can be written"),
        (["explan", "a"], "explain"),
        (["nothing"], "nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_input_is_a_message_and_exit_code_2(arguments, said):
    result = call(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert said in result.stderr
    assert result.stdout == ""
    assert len(result.stderr) < 500


@pytest.mark.parametrize("arguments", [["explain", ""], ["explain", "a", "--heads", "3"], ["nope"]])
def test_no_traceback_reaches_the_shell(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr
    assert result.stdout == ""


def test_the_whole_command_in_a_pipe():
    result = run("explain", TEXT, "--heads", "4", COLUMNS="200")  # a page for reading stays narrow
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert "Measured on this machine" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_colours_come_and_go():
    coloured = run("explain", TEXT, "--no-costs", FORCE_COLOR="1", TERM="xterm").stdout
    plain = run("explain", TEXT, "--no-costs", FORCE_COLOR="1", TERM="xterm", NO_COLOR="1").stdout
    colour = re.compile(r"\x1b\[(\d+;)*3[0-7]m")
    assert colour.search(coloured)
    assert not colour.search(plain)


def test_text_is_text_and_nothing_a_terminal_obeys():
    result = run("explain", "a \x1b[31mred [bold]b[/bold] :smile:", "--no-costs")
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert "a \ufffd[31mred [bold]b[/bold] :smile:" in result.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_stream_that_knows_no_shades_gets_plain_ones(encoding):
    result = run("explain", "naïve cat", "--no-costs", PYTHONIOENCODING=encoding)
    assert (result.returncode, result.stderr) == (0, "")
    assert "@@" in result.stdout
    assert "-- 1 project ---" in result.stdout


def test_a_plain_stream_keeps_the_columns():
    """A wide character takes two cells: so do the question marks in its place."""
    text = "日本語 は cat 😀 e\u0301te\u0301"
    shown = run("explain", text, "--no-costs").stdout.splitlines()
    plain = run("explain", text, "--no-costs", PYTHONIOENCODING="ascii").stdout.splitlines()
    assert "??????" in "".join(plain)
    assert [len(line) for line in plain] == [cell_len(line) for line in shown]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["explain", "a", "--no-costs"], ["--help"], ["--version"]])
def test_a_full_disk_is_a_line_and_exit_code_1(arguments):
    with open("/dev/full", "w") as full:
        result = run(*arguments, stdout=full)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "No space left on device; make room" in result.stderr


def test_a_reader_that_leaves_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        result = run("explain", "a", "--no-costs", stdout=pipe)
    assert (result.returncode, result.stderr) == (1, "")


@pytest.mark.parametrize("when", ["build", "app"])
def test_ctrl_c_is_exit_code_130_and_no_traceback(when):
    stop = "def stop(*_, **__): raise KeyboardInterrupt"
    set_up = (
        "cli.build = stop"
        if when == "build"
        else "from multihead.views import walk; walk.walk = stop"
    )
    code = f"import sys\nfrom multihead import cli\n{stop}\n{set_up}\ncli.main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "explain", "a"], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr == "multihead: stopped\n"


def test_ctrl_c_while_torch_loads_is_no_traceback():
    """The key is pressed when torch is asked for, by a finder that finds nothing."""
    code = """
import os, signal, sys
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == "torch": os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
from multihead_command import main
assert "torch" not in sys.modules
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr.strip() == "multihead: stopped"


def test_the_command_is_the_one_that_is_installed():
    code = "from multihead_command import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True
    )
    assert result.stdout == f"multihead {multihead.__version__}\n"
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["scripts"] == {"multihead": "multihead_command:main"}


def test_python_dash_m():
    command = [sys.executable, "-m", "multihead", "--version"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == (f"multihead {multihead.__version__}\n", "")


def test_a_message_is_wrapped_on_a_terminal_alone(capfd, monkeypatch):
    path = "/a/very/long/path" * 8
    error = ValueError(
        f"the folder {path} must have files in it, {'and more, ' * 12}\n  Give more."
    )
    for tty in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda tty=tty: tty, raising=False)
        with pytest.raises(typer.Exit):
            errors.fail("report", error, 1)
        lines = capfd.readouterr().err.splitlines()
        assert (len(lines) == 2) == (not tty)
        assert path in " ".join(lines)
        if tty:
            assert all(len(line) <= 80 for line in lines if line.strip() != path)


def test_an_error_about_a_file_is_not_taken_for_output(monkeypatch):
    def build():
        raise FileNotFoundError(2, "No such file", "weights.bin")

    monkeypatch.setattr(cli, "build", build)
    with pytest.raises(FileNotFoundError):
        cli.main()


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing):
    code = f"import sys; sys.modules['{missing}'] = None; from multihead.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert missing in result.stderr
    assert "pip install 'multihead[explorer]'" in result.stderr


def test_importing_needs_no_extra():
    code = "import sys, multihead, multihead.cli; print({'typer', 'rich'} & {*sys.modules})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n"
