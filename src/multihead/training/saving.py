"""A model in one file: safetensors, with its shape, its alphabet and what made it in the header.

A file is written whole under another name, then renamed: who is killed, or finds the disk full,
leaves the one before as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .alphabet import Alphabet
from .gpt import GPT, GPTConfig

FORMAT = 1
MODEL = "model."  # what the names of its tensors begin with; a checkpoint holds others too
_HEADER = "multihead"


def write_model(path: Path, model: GPT, alphabet: Alphabet, made: dict[str, Any]) -> None:
    """The weights, and in the header all that is needed to read and to judge them."""
    write(path, tensors_of(model), told_of(model, alphabet) | {"made": made})


def read_model(path: Path) -> tuple[GPT, Alphabet, dict[str, Any]]:
    """A model that `write_model` or a checkpoint holds, in `eval` mode, and what made it."""
    tensors, told = read(path)
    try:
        model = GPT(GPTConfig(**told["config"]))
        model.load_state_dict(
            {k.removeprefix(MODEL): v for k, v in tensors.items() if k.startswith(MODEL)}
        )
        return model.eval(), Alphabet.read(told["alphabet"]), told.get("made", {})
    except (KeyError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{path} does not hold the model that its header tells of: {_first_line(error)}; "
            "train it anew."
        ) from None


def tensors_of(model: GPT) -> dict[str, Tensor]:
    return {f"{MODEL}{name}": weight.detach() for name, weight in model.state_dict().items()}


def told_of(model: GPT, alphabet: Alphabet) -> dict[str, Any]:
    return {"config": dataclasses.asdict(model.config), "alphabet": alphabet.written()}


def write(path: Path, tensors: dict[str, Tensor], told: dict[str, Any]) -> None:
    """Tensors and a record, as one file that is there whole or not at all."""
    from safetensors.torch import save

    plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    header = {_HEADER: json.dumps({"format": FORMAT} | told)}
    put(path, save(plain, metadata=header))


def put(path: Path, content: bytes) -> None:
    """A file's new content, whole or not at all."""
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else a power cut could leave the name without its bytes
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        was = "what was there before is as it was" if path.exists() else "nothing is there"
        raise ValueError(
            f"{path} cannot be written: {error.strerror or error}; {was}. Make room, or give "
            "another folder."
        ) from None


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file and the record in its header."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            told = json.loads((file.metadata() or {}).get(_HEADER, "{}"))
            for name in file.keys():  # noqa: SIM118, it is no dict
                tensors[name] = file.get_tensor(name)
    except (OSError, SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read: {_first_line(error)}; if it is damaged, remove it and train "
            "anew."
        ) from None
    if told.get("format") != FORMAT:
        raise ValueError(
            f"{path} must be a model of format {FORMAT} that multihead wrote, and its header says "
            f"{told.get('format', 'nothing of that')}; give another file, or train anew."
        )
    return tensors, told


def optimizer_tensors(model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser, by the names of what it moves."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    return {
        f"optimizer.{names[id(weight)]}.{what}": value
        for weight, state in optimizer.state.items()
        for what, value in state.items()
    }


def restore_optimizer(
    model: GPT, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    for name, weight in model.named_parameters():
        begin = f"optimizer.{name}."
        optimizer.state[weight] = {
            key.removeprefix(begin): value.to(weight.device)
            for key, value in tensors.items()
            if key.startswith(begin)
        }


@runtime_checkable
class Data(Protocol):
    """What a run learns, as far as a checkpoint tells it from other data."""

    @property
    def alphabet(self) -> Alphabet: ...
    @property
    def digest(self) -> str: ...
    @property
    def what(self) -> str: ...


def check_same_data(path: Path, told: dict[str, Any], data: Data) -> None:
    """Refuse to go on where the data is not what the checkpoint learnt.

    Its weights mean the numbers of its own alphabet; with another they would say other letters.
    Checkpoints of before there was a digest are known by their alphabet alone.
    """
    was, now = Alphabet.read(told["alphabet"]), data.alphabet
    if was != now:
        changed = f"its characters were {_some(was)} and are {_some(now)}"
    elif told.get("digest", data.digest) != data.digest:
        changed = "it says other things with the same characters"
    else:
        return
    raise ValueError(
        f"{data.what} has changed since {path} was written: {changed}; put it back as it was to "
        "go on, or give another --out to learn it anew."
    )


def _some(alphabet: Alphabet) -> str:
    symbols = alphabet.symbols
    if symbols is None:
        return "bytes"
    return repr(symbols if len(symbols) <= 40 else f"{symbols[:40]}…")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
