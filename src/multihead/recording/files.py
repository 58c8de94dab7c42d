"""Files of tensors: whole or not at all, memory-mapped when opened. Pickle is never read."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

FORMAT = "multihead recording 1"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OnDisk(Mapping[str, Tensor]):
    """The tensors of one safetensors file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open(path)
        self._names = list(self._file.keys())

    @property
    def metadata(self) -> dict[str, str]:
        return self._file.metadata() or {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._file.get_tensor(name)

    def header(self, name: str) -> tuple[list[int], str]:
        """Shape and dtype of a tensor (`F32`, `BF16`, `I64`, …), which is not read for it."""
        if name not in self._names:
            raise ValueError(f"{name} is missing")
        part = self._file.get_slice(name)
        return list(part.get_shape()), part.get_dtype()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ValueError(f"{path} is missing; the recording is not whole: record again.")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is damaged or no safetensors file ({error}); record again."
        ) from None


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file beside `path`, then rename it into place."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        # The second is what safetensors makes of a full disk.
        if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
            raise cannot_write(path, error) from error
        raise


def cannot_write(path: Path, error: BaseException) -> OSError:
    """One line: what could not be written, why, and what to do about that reason."""
    reason = getattr(error, "strerror", None) or str(error)
    told = re.search(r"os error (\d+)", reason)
    number = int(told[1]) if told else getattr(error, "errno", None)
    advice = (
        "make room, or choose another folder" if number in _FULL
        else "choose a folder that can be written"
    )  # fmt: skip
    return OSError(f"cannot write {path}: {reason}; {advice}.")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file

    # Two names may be views of one tensor, which the format does not know.
    own = {n: t.clone() if t._is_view() else t.contiguous() for n, t in tensors.items()}
    write_whole(path, lambda where: save_file(own, where, metadata=metadata))


def moved_to_disk(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, written to a file and mapped from it: their memory can be given back."""
    write_tensors(path, tensors, {"format": FORMAT})
    return dict(OnDisk(path))
