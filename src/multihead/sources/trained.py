"""Models that `multihead train` made: the one that comes with the package, and the user's runs."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import torch

from ..training import GPT, Alphabet, read_model
from ..training.run import CHECKPOINT

NAMES = "names"
SHIPPED = files("multihead.training").joinpath("names.safetensors")


def is_trained(name: str) -> bool:
    """Whether that is a model of our own: the one that ships, or the folder of a run."""
    return name == NAMES or (bool(name) and (Path(name).expanduser() / CHECKPOINT).is_file())


def read_trained(name: str, dtype: torch.dtype, attention: str) -> tuple[GPT, Alphabet]:
    """The model and its alphabet, with no network and no cache."""
    if attention != "sdpa":
        raise ValueError(
            f"{name} attends by mh.attend alone, and attn_implementation={attention!r} came; "
            "leave it out."
        )
    if name == NAMES:
        with as_file(SHIPPED) as path:
            model, alphabet, _ = read_model(path)
    else:
        model, alphabet, _ = read_model(Path(name).expanduser() / CHECKPOINT)
    return model.to(dtype), alphabet
