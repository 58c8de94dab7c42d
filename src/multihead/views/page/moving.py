"""How much each head moves the output, measured: ‖context · W_O‖ of a row, on average.

A recording keeps no values, and so only knows the most that it can be, Σ weight × ‖v W_O‖: vectors
that point different ways cancel. With the model at hand one more forward tells what is left.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...recording.call import Call
from ...recording.watch import Hand, Place, watching
from .making import Text, forward

_AT_ONCE = 512  # rows
_ROUNDED = 1.05  # how far a norm may pass its bound: a recording may be of bfloat16


def measured(model: Any, text: Text) -> dict[int, Tensor]:
    """The mean over the text's rows for every head, by layer; without those whose W_O is unseen."""
    hand = _Moves(text.real[: text.end])
    with torch.no_grad(), watching(model, hand):
        forward(model, text)
    return hand.found


def check_bound(found: dict[int, Tensor], most: dict[int, list[float | None] | None]) -> None:
    """That norms were measured in the model that was recorded: else they may pass their bound."""
    for index, bound in most.items():
        moves = found.get(index)
        if bound is None or moves is None:
            continue
        pairs = zip(moves.tolist(), bound, strict=False)
        if len(moves) != len(bound) or any(b is not None and m > _ROUNDED * b for m, b in pairs):
            raise ValueError(
                f"the heads of layer {index} move more in this model than was recorded: it is "
                "another one; start look with the --model that was recorded."
            )


class _Moves(Hand):
    """Looks on: a layer's context and its W_O come one after the other, in either order."""

    def __init__(self, real: Tensor) -> None:
        self.real = real  # (row,): padding moves nothing that is read
        self.found: dict[int, Tensor] = {}
        self._context: tuple[Place, Tensor] | None = None
        self._weight: tuple[Place, Tensor] | None = None

    def output(self, place: Place, call: Call, out: Tensor) -> Tensor:
        self._context = (place, out)
        self._meet()
        return out

    def projected(self, place: Place, weight: Tensor) -> None:
        self._weight = (place, weight)
        self._meet()

    def _meet(self) -> None:
        if self._context is None or self._weight is None or self._context[0] != self._weight[0]:
            return
        place, out = self._context
        if out.shape[2] == len(self.real):  # else its rows are not those of the text
            real = self.real.to(out.device)
            self.found[place.index] = mean_norms(out[0][:, real], self._weight[1])
        self._context = self._weight = None


def mean_norms(context: Tensor, weight: Tensor) -> Tensor:
    """The mean of ‖context · W_O‖ over the rows of (heads, row, dim), one number a head.

    >>> mean_norms(torch.tensor([[[3.0], [-1.0]]]), torch.tensor([[0.0, 2.0]]))
    tensor([4.])
    """
    heads, rows, dim = context.shape
    own = weight.float().reshape(heads, dim, -1)  # (heads, dim, model)
    total = torch.zeros(heads, device=context.device)
    for some in context.float().split(_AT_ONCE, dim=1):
        total += (some @ own).norm(dim=-1).sum(-1)
    return (total / max(1, rows)).cpu()
