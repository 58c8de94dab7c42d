"""Names for the heads of a model, found in a process of its own while the page is already open.

Names need minutes: random tokens repeated, controls, cuts. They belong to the model and not to the
text, so they are found once and kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from ...patterns import Name, Verdict
from ...sources import SOURCES, cache_folder
from ..files import plain, put

_VERIFIED = 3  # names that hold, to be shown first
_TRIES = 8  # names that are tried for them, at most
_FORMAT = 3  # of what is kept: one more when patterns/ measures otherwise


class Naming:
    """What is known of the names so far; `state` is none, running, done or failed."""

    def __init__(self) -> None:
        self.state, self.message, self.share = "none", "", 0.0
        self.names: list[Name] | None = None
        self.scores: list[dict[str, Any]] = []
        self.verdicts: list[Verdict] | None = None
        self.version = 0  # counts what came
        self._process: subprocess.Popen | None = None

    def start(self, model: str) -> None:
        """Take what is kept of this model, else begin to find it."""
        if self.take_kept(model):
            return
        self.state, self.message = "running", "Naming heads"
        # -m with the module's own name: a process of its own leaves the page's model alone.
        command = [sys.executable, "-m", __name__, model]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()

    def refuse(self, why: str) -> None:
        """Say why there will be none."""
        self.state, self.message = "failed", why

    def take_kept(self, model: str) -> bool:
        """Take what the cache has of this model, if it has it."""
        kept = _kept(model)
        if kept is None:
            return False
        try:
            self._take(kept)
        except (KeyError, TypeError, AttributeError):  # another version's, or damaged
            self.names, self.scores, self.verdicts = None, [], None
            return False
        self.state = "done"
        return True

    def _listen(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        for line in process.stdout:
            # A library may print there too.
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                said = json.loads(line)
                if "names" in said:
                    self._take(said)
                elif "failed" in said:
                    self.state, self.message = "failed", said["failed"]
                else:
                    self.message, self.share = said["message"], said["share"] or 0.0
        process.wait()
        if self.state == "running":
            finished = self.verdicts is not None
            self.state = "done" if finished else "failed"
            self.message = "" if finished else "Naming heads ended early"

    def _take(self, said: dict[str, Any]) -> None:
        self.names = [Name(**_numbers(name)) for name in said["names"]]
        self.scores = said["scores"]
        if said.get("verdicts") is not None:
            self.verdicts = [
                Verdict(**{**_numbers(v), "name": Name(**_numbers(v["name"]))})
                for v in said["verdicts"]
            ]
        self.version += 1

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def told(self) -> dict[str, Any]:
        return {
            "state": self.state, "message": self.message, "share": self.share,
            "version": self.version,
            "names": plain([dataclasses.asdict(n) for n in self.names or ()]),
            "scores": plain(self.scores),
            "verdicts": plain([dataclasses.asdict(v) for v in self.verdicts or ()]),
        }  # fmt: skip


def _numbers(given: dict[str, Any]) -> dict[str, Any]:
    """null was no number."""
    return {key: float("nan") if value is None else value for key, value in given.items()}


def _place(model: str) -> Path | None:
    """Where the names of a model are kept: by what its files are; None where that is not known."""
    source = SOURCES.get(model)
    if source is not None and source.wheel is not None:
        what = source.wheel.gguf_sha256
    elif (folder := Path(model).expanduser()).is_dir():
        files = sorted(folder.glob("*.safetensors"))
        states = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
        what = json.dumps([str(folder.resolve()), states])
    else:
        return None
    digest = hashlib.sha256(f"{_FORMAT} {what}".encode()).hexdigest()[:16]
    return cache_folder() / "names" / f"{digest}.json"


def _kept(model: str) -> dict[str, Any] | None:
    place = _place(model)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(place.read_text("utf-8")) if place else None
        if found and found["verdicts"] is not None and found["names"] is not None:
            return found
    return None


def find(model: str) -> None:
    """Probe and verify a model; each step is a line of JSON on stdout."""
    from ...patterns import DEFAULT_TEXT, probe, verify
    from ...sources import load_model
    from ..report import TRIED, tokenise

    def tell(message: str, share: float | None) -> None:
        print(json.dumps({"message": message, "share": share}), flush=True)

    loaded, tokenizer = load_model(model, progress=tell)
    ids, _ = tokenise(tokenizer, DEFAULT_TEXT, 512)
    seen = probe(
        loaded, tokenizer, text=ids, vocab=loaded.config.get_text_config().vocab_size,
        progress=lambda what, share: tell(f"Naming heads: {what}", 0.6 * share),
    )  # fmt: skip
    names = seen.names()
    told: dict[str, Any] = {
        "names": [dataclasses.asdict(n) for n in names],
        "scores": _scores(seen),
        "verdicts": None,
    }
    print(json.dumps(plain(told)), flush=True)
    verdicts: list[Verdict] = []
    for n, name in enumerate(_to_try([name for name in names if name.where == "on cue"], TRIED)):
        if n >= len(TRIED) and sum(v.holds for v in verdicts) >= _VERIFIED:
            break
        tell(f"Cutting links: {name.layer}.{name.head} {name.pattern}", 0.6 + 0.4 * n / _TRIES)
        verdicts += verify(seen, [name])
    told["verdicts"] = [dataclasses.asdict(v) for v in verdicts]
    place = _place(model)
    if place is not None:
        with contextlib.suppress(OSError, ValueError):  # a full disk costs the next start minutes
            place.parent.mkdir(parents=True, exist_ok=True)
            put(place, json.dumps(plain(told)).encode())
    print(json.dumps(plain(told)), flush=True)


def _to_try(names: list[Name], patterns: tuple[str, ...]) -> list[Name]:
    """The strongest of each pattern, then the next strongest, until enough were tried."""
    by = [[name for name in names if name.pattern == pattern] for pattern in patterns]
    rounds = itertools.zip_longest(*by)
    return [name for some in rounds for name in some if name is not None][:_TRIES]


def _scores(seen: Any) -> list[dict[str, Any]]:
    """Every head in every pattern, with its 95 % interval: one dict a head."""
    rows = []
    for i, (layer, head) in enumerate(seen.heads):
        scores = {}
        for score in seen.scores:
            mean, low = float(score.mean[i]), float(score.low[i])
            if math.isnan(mean):  # it never had an opportunity
                continue
            scores[f"{score.pattern.name}, {score.where}"] = [mean, low, 2 * mean - low]
        rows.append({"layer": layer, "head": head, "scores": scores})
    return rows


def _end_with_the_page() -> None:
    """Nobody writes to us: our input ends when the page's process does, however that ended."""
    os.read(0, 1)  # and not sys.stdin, whose lock would be held at our own end
    os._exit(1)


def main() -> None:
    threading.Thread(target=_end_with_the_page, daemon=True).start()
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)  # the page comes first
    try:
        find(sys.argv[1])
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        print(json.dumps({"failed": str(error)}), flush=True)


if __name__ == "__main__":
    main()
