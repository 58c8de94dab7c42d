"""The folder of a run: what was asked, the last good checkpoint, and the losses on the way.

    runs/names/
      config.json              every setting, and the command
      checkpoint.safetensors   model, optimiser, random state; step and data position in its header
      losses.jsonl             a line each so many steps: step, loss, held-out loss, lr, tokens/s

One process at a time works in it. Started again with the same settings, a run goes on from its
checkpoint, and lines that came after it are written again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .saving import put
from .settings import Settings

CONFIG, CHECKPOINT, LOSSES, LOCK = "config.json", "checkpoint.safetensors", "losses.jsonl", ".lock"
FREE = ("device",)  # settings that may change on the way


class Run:
    """A folder that a run lives in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint = folder / CHECKPOINT
        self.losses = folder / LOSSES
        self.had_begun = False  # before it was opened

    @contextlib.contextmanager
    def opened(self, settings: Settings, command: str) -> Iterator[Run]:
        """Ours alone, with these settings; what another run left there is not touched."""
        from filelock import FileLock, Timeout  # torch needs it too

        self._check_own()  # a folder that is no run's gets no lock either
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / LOCK)
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"another process trains in {self.folder}; wait for it, or give another --out."
            ) from None
        except OSError as error:
            raise ValueError(
                f"{self.folder} must be a folder that can be written, and is not: "
                f"{error.strerror or error}; give another --out."
            ) from None
        try:
            self._agree(settings, command)
            yield self
        finally:
            lock.release()

    def settings(self) -> Settings:
        """What the run in this folder was started with."""
        known = self._known()
        if known is None:
            raise ValueError(
                f"{self.folder} has no {CONFIG}, so it is not a run; give the folder of one."
            )
        return known

    def log(self, line: dict[str, Any]) -> None:
        try:
            with self.losses.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise ValueError(
                f"{self.losses} cannot be written: {error.strerror or error}; the last checkpoint "
                "is as it was. Make room, and start again: the run goes on."
            ) from None

    def lines(self) -> list[dict[str, Any]]:
        """The losses so far; a line that a kill cut short is left out."""
        return [line for line in map(_read, self._written()) if line is not None]

    def _written(self) -> list[bytes]:
        try:
            return self.losses.read_bytes().splitlines(keepends=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ValueError(
                f"{self.losses} cannot be read: {error.strerror or error}; give another folder."
            ) from None

    def go_back_to(self, step: int) -> None:
        """Forget the lines behind a step: they come again."""
        kept = [line for line in self.lines() if line["step"] <= step]
        put(self.losses, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def _check_own(self) -> None:
        """Refuse what a run would overwrite and no run wrote; nothing is written before that."""
        if self._known() is None:
            strange = next((p for p in (self.checkpoint, self.losses) if p.exists()), None)
            if strange is not None:
                raise ValueError(
                    f"{self.folder} is not a run: it holds {strange.name} and no {CONFIG}, and a "
                    "run would write over it; give another folder."
                )
        for line in self._written():
            if line.endswith(b"\n") and _read(line) is None:
                raise ValueError(
                    f"{self.losses} has a line that multihead train did not write, {line[:40]!r}; "
                    "move that file away, or give another folder."
                )

    def _known(self) -> Settings | None:
        """The settings in the folder, if any; those that came later are as they always were."""
        path = self.folder / CONFIG
        try:
            told = json.loads(path.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}; give another folder.") from None
        settings = told.get("settings") if isinstance(told, dict) else None
        if not isinstance(settings, dict):
            raise ValueError(
                f"{self.folder} is not a run: its {CONFIG} holds no settings that multihead train "
                "wrote; give another folder."
            )
        try:
            return Settings().of(settings)
        except ValueError as error:
            raise ValueError(
                f"{path} does not hold the settings of a run: {error} Give another folder."
            ) from None

    def _agree(self, settings: Settings, command: str) -> None:
        """The settings are those of the run that is there; else it is a new one."""
        now, known = dataclasses.asdict(settings.placed()), self._known()
        self.had_begun = known is not None
        if known is None:
            about = {"settings": now, "command": command, "torch": torch.__version__,
                     "python": platform.python_version()}  # fmt: skip
            put(self.folder / CONFIG, json.dumps(about, indent=1).encode())
            return
        was = dataclasses.asdict(known.placed())
        other = [k for k, v in now.items() if k not in FREE and was[k] != v]
        if other:
            first = other[0]
            raise ValueError(
                f"{self.folder} holds a run with {first} {was[first]!r}, and {now[first]!r} "
                "came; give another --out, or the same settings to go on with it."
            )


def _read(line: bytes) -> dict[str, Any] | None:
    """A line of losses; None where it is none, or was cut short."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) and type(told.get("step")) is int else None
