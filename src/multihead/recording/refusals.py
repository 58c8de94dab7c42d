"""Calls that have no numbers to look at, or not those of one text: they are refused, and why."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention.problem import is_mapped


def is_fake(tensor: object) -> bool:
    """Whether it has a size alone and no numbers, as in torch.export."""
    return type(tensor).__name__ == "FakeTensor"  # known by name: its module takes long to import


def refuse_traced(tensor: Tensor) -> None:
    if is_fake(tensor):
        raise ValueError(
            "attention under torch.export cannot be recorded: there are no numbers to look at; "
            "export the model outside of the with statement."
        )
    if torch._C._get_tracing_state() is not None:
        raise ValueError(
            "attention under torch.jit.trace cannot be recorded: what a look works out would "
            "become a part of the traced module; trace the model outside of the with statement."
        )


def refuse_mapped(*tensors: object) -> None:
    if any(map(is_mapped, tensors)):
        raise ValueError(
            "attention under torch.func.vmap cannot be recorded: one call stands for many; "
            "call the model on a batch instead."
        )


def refuse_nested(*tensors: object) -> None:
    if any(isinstance(tensor, Tensor) and tensor.is_nested for tensor in tensors):
        raise ValueError(
            "attention over nested tensors cannot be recorded: the texts of a batch have no common "
            "length; give a padded batch and a mask instead."
        )
