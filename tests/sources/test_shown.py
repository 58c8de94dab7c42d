"""What is shown meanwhile."""

import io
import subprocess
import sys
import time

from multihead.cli.progress import telling
from multihead.sources import fetch
from multihead.sources.progress import shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_without_a_terminal_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with shown(None) as report:
        report("Fetching it", None)
        report("Fetching it", 0.5)
        report("Converting it", 0.5)
    assert sys.stderr.getvalue() == "multihead: Fetching it\n"


def test_progress_on_a_terminal_is_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with shown(None) as report:
        report("Fetching it", None)
        report("Fetching it", 0.5)
    assert "Fetching it" in sys.stderr.getvalue()
    assert "50%" in sys.stderr.getvalue()


def test_the_clock_of_the_bar_goes_on(monkeypatch):
    """A step that is done does not stop it."""
    now = [1000.0]
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with shown(None) as report:
        report("One", 1.0)
        now[0] += 3725.5
        report("Two", 0.2)
    assert "1:02:05" in sys.stderr.getvalue()


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    with shown(None) as report:
        report("Fetching it", 0.5)
    assert sys.stderr.getvalue() == "multihead: Fetching it\n"
    with telling() as tell:
        tell("Naming heads: one", 0.5)
        tell("Naming heads: two", 0.5)
    assert sys.stderr.getvalue().splitlines()[1:] == ["multihead: Naming heads …"]


def test_progress_without_rich_or_stderr(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with shown(None) as report:
        report("Fetching it", 0.5)
    assert sys.stderr.getvalue() == "multihead: Fetching it\n"
    monkeypatch.setattr(sys, "stderr", None)
    with shown(None) as report:
        report("Fetching it", 0.5)


def test_the_bar_follows_the_file_that_grows(tmp_path, monkeypatch):
    """A pip that writes where pip does, and goes on when the last that it wrote was reported."""
    fake = """
import os, pathlib, sys, time
into = pathlib.Path(sys.argv[sys.argv.index("-d") + 1])
def wait_for(heard):
    while not (into / heard).exists(): time.sleep(0.01)
wait_for("None")
folder = pathlib.Path(os.environ["TMPDIR"], "pip-unpack-x")
folder.mkdir()
with open(folder / "a.whl", "wb", buffering=0) as file:
    file.write(b"x" * 500); wait_for("0.5")
    file.write(b"x" * 500); wait_for("1.0")
os.replace(folder / "a.whl", into / "a.whl")
"""
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda command, **k: real([sys.executable, "-c", fake, *command[3:]], **k),
    )
    heard = []

    def report(message: str, done: float | None) -> None:
        heard.append(done)
        (tmp_path / str(done)).touch()

    wheel = fetch.Wheel("a", "1", "a.whl", 1000, "", "", "")
    assert fetch.fetch(wheel, "A", tmp_path, report) == tmp_path / "a.whl"
    assert list(dict.fromkeys(heard)) == [None, 0.5, 1.0]
