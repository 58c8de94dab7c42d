"""A small GPT, and how it is trained: settings in, a run in a folder out."""

from __future__ import annotations

from .alphabet import Alphabet
from .gpt import GPT, GPTConfig
from .run import Run
from .saving import read_model, write_model
from .settings import PRESETS, Settings
from .trainer import Step, Trainer

__all__ = [
    "GPT", "PRESETS", "Alphabet", "GPTConfig", "Run", "Settings", "Step", "Trainer", "read_model",
    "write_model",
]  # fmt: skip
