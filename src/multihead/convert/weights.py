"""Parameters taken from one module and given to another: rows cut, stacked, copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear


class Piece(NamedTuple):
    """Rows of a parameter, with its name for messages and whether it is trained."""

    name: str
    rows: Tensor
    trained: bool

    def cut(self, change: Callable[[Tensor], Tensor]) -> Piece:
        return self._replace(rows=change(self.rows))


def take(owner: nn.Module, name: str) -> Piece | None:
    """A parameter of a module, or None where the module does without."""
    parameter: Tensor | None = getattr(owner, name)
    if parameter is None:
        return None
    return Piece(name, parameter.detach(), parameter.requires_grad)


def give(target: nn.Module, name: str, *pieces: Piece | None) -> None:
    """Make a parameter of `target` a copy of the pieces, one below the other; or None if all are.

        q (6, 4)  k (2, 4)  v (2, 4)   ↦   (10, 4)

    >>> heads, linear = nn.MultiheadAttention(4, 2), nn.Linear(4, 16, device="meta")
    >>> bias = take(heads, "in_proj_bias")
    >>> give(linear, "bias", bias, bias.cut(lambda rows: rows[:4]))
    >>> linear.bias.shape, linear.bias.device
    (torch.Size([16]), device(type='cpu'))
    """
    here = [piece for piece in pieces if piece is not None]
    kinds = {(piece.rows.dtype, piece.rows.device, piece.trained) for piece in here}
    if len(kinds) > 1 or 0 < len(here) < len(pieces):
        came = [
            f"{p.name}: {p.rows.dtype}, {p.rows.device}, requires_grad {p.trained}" for p in here
        ]
        came += ["none"] * (len(pieces) - len(here))
        raise ValueError(
            f"what becomes one {name} must be there alike in dtype, device and requires_grad, "
            "and it is not; make it alike, then convert.\n  " + "\n  ".join(came)
        )
    rows = [piece.rows for piece in here]
    target.register_parameter(
        name, nn.Parameter(torch.cat(rows), here[0].trained) if rows else None
    )


def load(target: nn.Linear, owner: nn.Module, *names: str) -> None:
    """Give a linear map the weights and biases of some maps of `owner`, in that order."""
    maps = {name: projection(owner, name) for name in names}
    for part in ("weight", "bias"):
        pieces = []
        for name, module in maps.items():
            piece = take(module, part)
            if piece is not None:
                turn = part == "weight" and not isinstance(module, nn.Linear)  # Conv1D: (in, out)
                rows = piece.rows.t() if turn else piece.rows
                piece = Piece(f"{name}.{part}", rows, piece.trained)
            pieces.append(piece)
        give(target, part, *pieces)


def projection(owner: nn.Module, name: str) -> Any:
    """A linear map of a module, if its weight and bias say all it does."""
    found = getattr(owner, name)
    kind = type(found)
    conv1d = kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")
    if kind in (nn.Linear, NonDynamicallyQuantizableLinear) or conv1d:
        return found
    raise ValueError(
        f"{name} must be a plain linear map, whose weight and bias say all it does; merge "
        "adapters, dequantize or remove parametrizations, then convert.\n"
        f"  {name}: {kind.__module__}.{kind.__qualname__}"
    )
