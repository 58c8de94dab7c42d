"""Files of tensors: whole or not at all, memory-mapped when opened. Pickle is never read.

Each tensor has a sum of its bytes (CRC-32) in the file's metadata, and they have one together. A
tensor is held against its sum when it is first read: a file opens as fast as without. Files of
before there were sums have none, and are believed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FORMAT = "multihead recording 1"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DamagedError(ValueError):
    """A file that does not hold what was written into it."""

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(f"{path} is damaged ({why}); record again.")


class OnDisk(Mapping[str, Tensor]):
    """The tensors of one safetensors file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open(path)
        self._names = list(self._file.keys())
        self._checked: set[str] = set()

    @property
    def metadata(self) -> dict[str, str]:
        return self._file.metadata() or {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor = self._file.get_tensor(name)
        if name not in self._checked:
            said = self._sums()
            if said is not None and said.get(name) != _sum(tensor):
                raise DamagedError(
                    self.path, f"the bytes of {name} are not those that were written"
                )
            self._checked.add(name)
        return tensor

    def _sums(self) -> dict[str, int] | None:
        said = self.metadata.get("sums")
        if said is None:
            return None
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(sums := json.loads(said), dict):
                return sums
        raise DamagedError(self.path, "its sums cannot be read")

    def check_metadata(self) -> None:
        """Hold what the file says of itself against its own sum, where it has one."""
        said = self.metadata
        if "sums" in said and said.get("sum") != _sum_of_words(said):
            raise DamagedError(self.path, "what it says of itself is not what was written")

    def nbytes(self, name: str) -> int:
        """How large a tensor is, which is not read for it."""
        return self._file.get_tensor(name).nbytes

    def header(self, name: str) -> tuple[list[int], str]:
        """Shape and dtype of a tensor (`F32`, `BF16`, `I64`, …), which is not read for it."""
        if name not in self._names:
            raise ValueError(f"{name} is missing")
        part = self._file.get_slice(name)
        return list(part.get_shape()), part.get_dtype()

    def __contains__(self, name: object) -> bool:  # a Mapping's own would read the tensor
        return name in self._names

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
        with open(partial, "wb") as file:  # who may read it is as the umask says
            mode = os.stat(file.fileno()).st_mode
        write(partial)  # safetensors makes it for its owner alone
        with open(partial, "rb+") as file:
            with contextlib.suppress(OSError):  # some systems know no such modes
                os.chmod(partial, mode & 0o777)
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
    """Write tensors and what is said of them, with sums of both."""
    own = _own(tensors)
    said = {**metadata, "sums": json.dumps({name: _sum(tensor) for name, tensor in own.items()})}
    _write(path, own, {**said, "sum": _sum_of_words(said)})


def _own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each apart: two names may be views of one tensor, which the format does not know."""
    return {
        n: t.clone() if t._is_view() or t.untyped_storage().nbytes() > t.nbytes else t.contiguous()
        for n, t in tensors.items()
    }


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file

    write_whole(path, lambda where: save_file(tensors, where, metadata=metadata))


def _sum(tensor: Tensor) -> int:
    """Of the bytes as they lie in the file."""
    return zlib.crc32(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _sum_of_words(said: Mapping[str, str]) -> str:
    words = sorted((name, text) for name, text in said.items() if name != "sum")
    return str(zlib.crc32(json.dumps(words).encode()))


def moved_to_disk(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, written to a file and mapped from it: their memory can be given back."""
    try:
        _write(path, _own(tensors), {"format": FORMAT})  # no sums: it is gone with the process
    except OSError as error:
        raise OSError(
            f"{error} Layers beyond max_bytes are kept where TMPDIR says: set it to a folder with "
            "room, or give a larger max_bytes."
        ) from error
    return dict(OnDisk(path))
