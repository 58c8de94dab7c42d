"""`multihead look` as a command: answers, files, Ctrl-C, a kill; and names, found beside it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from page_server import TEXT, Served
from small_reports import save_model
from typer.testing import CliRunner

from multihead import cli
from multihead.views.page import naming

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MULTIHEAD_CACHE", str(tmp_path / "cache"))


# ---- the command


def look(*arguments):
    return CliRunner().invoke(cli.build(), ["look", *arguments], prog_name="multihead")


def test_one_answer_without_a_server(tiny):
    found = look(TEXT, "--model", str(tiny), "--get", "/home.json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["tokens"] == 54
    lost = look(TEXT, "--model", str(tiny), "--get", "/nothing")
    assert (lost.exit_code, lost.stdout) == (1, "")
    assert "answered 404" in lost.stderr


def test_the_export_is_written_whole(tiny, tmp_path):
    place = tmp_path / "page.html"
    found = look(TEXT, "--model", str(tiny), "--export", str(place), "--heads", "1.2")
    assert found.exit_code == 0, found.output
    assert place.read_text("utf-8").rstrip().endswith("</html>")
    assert [f.name for f in tmp_path.iterdir() if f.suffix != ""] == ["page.html"]
    nowhere = look(TEXT, "--model", str(tiny), "--export", str(tmp_path / "no" / "page.html"))
    assert nowhere.exit_code == 2
    assert "could not be written" in nowhere.stderr
    assert "another file with --export" in " ".join(nowhere.stderr.split())


@pytest.mark.parametrize(
    "given",
    [["--port", "99999"], ["--tokens", "7"], ["--tokens", "99999"], ["x", "--recording", "y"],
     ["--recording", "/nowhere/run.heads"], ["--model", "/nowhere"], ["--heads", "x", "--export", "page.html"]],
)  # fmt: skip
def test_a_wrong_option_is_a_line(given, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = [] if {"--model", "--recording"} & {*given} else ["--model", str(tiny)]
    found = look(*given, *more)
    assert found.exit_code == 2, found.output
    said = [line for line in found.stderr.splitlines() if not line.startswith("multihead: ")]
    assert said[0].startswith("multihead look: ")
    assert "Traceback" not in found.stderr


def children(pid):
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def until(holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextlib.contextmanager
def looking(*arguments):
    """`multihead look` in a process of its own, and its server once it has one."""
    command = [sys.executable, "-m", "multihead", "look", "--no-browser", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            address = next(line.strip() for line in process.stdout if "http://" in line)
            yield process, Served(None, address)
        finally:
            process.kill()


@linux
def test_ctrl_c_ends_it_while_a_text_is_recorded(tmp_path):
    folder = save_model(tmp_path, max_position_embeddings=8192)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with looking(TEXT, "--model", str(folder), "--port", str(port)) as (process, served):
            until(lambda: children(process.pid))
            (child,) = children(process.pid)
            assert served.json("/names.json")[1]["state"] == "running"
            body = json.dumps({"text": "w1 w2 " * 4096, "tokens": 8192}).encode()
            head = f"POST /record.ndjson HTTP/1.1\r\nHost: {served.host}\r\nOrigin: http://{served.host}\r\n"
            head += f"x-multihead-token: {served.token}\r\nContent-Length: {len(body)}\r\n\r\n"
            with served.connection() as one, served.connection():
                one.sendall(head.encode() + body)
                assert b" 200 " in one.recv(20)
                time.sleep(0.3)  # and now the model is at work
                start = time.monotonic()
                process.send_signal(signal.SIGINT)
                assert process.wait(10) == 0
                assert time.monotonic() - start < 2
            assert not alive(child)
            said = process.stderr.read()
    assert f"Port {port} is busy; port {served.port} is free" in said
    assert [line for line in said.splitlines() if not line.startswith("multihead: ")][1:] == []


@linux
def test_names_are_not_looked_for_after_a_kill(tmp_path):
    folder = save_model(tmp_path)
    with looking(TEXT, "--model", str(folder), "--port", "0") as (process, _):
        until(lambda: children(process.pid))
        (child,) = children(process.pid)
        process.kill()
        until(lambda: not alive(child), 30)  # it may be in the midst of its imports
        assert "busy" not in process.stderr.read()


# ---- names


def test_a_naming_ends_when_the_page_is_gone_though_it_says_nothing():
    code = "import sys, time; from multihead.views.page import naming; naming.find = time.sleep; "
    code += "sys.argv = ['naming', 60]; print('begun', flush=True); naming.main()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            with pytest.raises(subprocess.TimeoutExpired):  # while the page is there it goes on
                process.wait(0.3)
            process.stdin.close()
            assert process.wait(5) == 1
        finally:
            process.kill()


def test_a_naming_that_is_killed_is_told(served, tiny):
    found = served.session.naming = naming.Naming()
    found.start(str(tiny))
    assert served.json("/names.json")[1]["state"] == "running"
    os.kill(found._process.pid, signal.SIGKILL)
    until(lambda: served.json("/names.json")[1]["state"] != "running")
    told = served.json("/names.json")[1]
    assert (told["state"], told["message"]) == ("failed", "Naming heads ended early")


def test_names_are_kept_for_the_next_time(tiny, capfd):
    naming.find(str(tiny))
    *_, last = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    found = naming.Naming()
    found.start(str(tiny))  # at once, and no process
    assert (found.state, found._process) == ("done", None)
    told = found.told()
    assert {key: told[key] for key in ("names", "scores", "verdicts")} == last
    (place,) = (Path(os.environ["MULTIHEAD_CACHE"]) / "names").iterdir()
    for damaged in ("{", "[]", '{"names": [1], "verdicts": [], "scores": []}', '{"names": [], "verdicts": []}',
                    '{"names": [{"layer": 0}], "verdicts": [], "scores": []}'):  # fmt: skip
        place.write_text(damaged)
        found = naming.Naming()
        assert not found.take_kept(str(tiny))
        assert (found.state, found.names) == ("none", None)


def test_a_model_too_small_to_be_named_says_so(tmp_path, capfd, monkeypatch):
    folder = save_model(tmp_path, max_position_embeddings=16)
    monkeypatch.setattr(sys, "argv", ["naming", str(folder)])
    monkeypatch.setattr(naming, "_end_with_the_page", lambda: None)
    monkeypatch.setattr(os, "nice", lambda _: None)
    naming.main()
    assert "too small to be named" in json.loads(capfd.readouterr().out.splitlines()[-1])["failed"]
