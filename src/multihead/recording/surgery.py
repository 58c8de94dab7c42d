"""Take a head's output away, or ask how much the loss minds it.

All of it inside the same interception that records, in any model that `record` sees; a recording
inside sees what was left. Links of a head are cut in cutting.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .call import Call, crosses
from .chosen import Chosen, Heads, whole
from .padding import real_of_call
from .watch import Hand, Place, watching


@contextlib.contextmanager
def ablate(model: nn.Module, heads: Heads, by: str = "zero", seed: int = 0) -> Iterator[None]:
    """Take away what some heads say, inside the with statement.

    - `"zero"`: nothing in its place.
    - `"mean"`: its mean over all rows of the call, so that what it always says stays.
    - `"resample"`: what it says at some other row, drawn by `seed`.

    Rows of padding are none of these rows where the call's mask tells of them: tokens that nobody
    may see. Padding that a model is not told of counts as text.

    >>> import multihead as mh
    >>> attn = mh.MultiHeadAttention(8, 2, out_bias=False)
    >>> with torch.no_grad(), mh.ablate(attn, heads=[(0, 0), (0, 1)]):
    ...     y = attn(torch.randn(1, 5, 8))
    >>> y.abs().max()
    tensor(0.)
    """
    if not isinstance(by, str) or by not in _BY:
        raise ValueError(f"by must be one of {', '.join(map(repr, _BY))}, but {by!r} came.")
    if whole(seed) is None:
        raise ValueError(f"seed is a whole number, but {seed!r} came; give 0, say.")
    hand = _Ablate(Chosen(heads), by, torch.Generator().manual_seed(seed))
    with watching(model, hand):
        yield
    hand.chosen.check_met()


class _Ablate(Hand):
    recomputes = False

    def __init__(self, chosen: Chosen, by: str, random: torch.Generator) -> None:
        self.chosen, self.by, self.random = chosen, by, random
        self._real: Tensor | None = None  # (batch, query) of the text that was at work last

    def output(self, place: Place, call: Call, out: Tensor) -> Tensor:
        real = self._rows(place, call)
        heads = self.chosen.of(place, out.shape[1])
        if not heads:
            return out
        rows = out.transpose(1, 2)[real][:, heads]  # (row, heads, dim)
        if self.by != "zero" and len(rows) == 1:
            raise ValueError(
                f"by={self.by!r} needs other rows than the one that came (a single step of "
                "generation); call the model on the whole text, or give by='zero'."
            )
        new = _BY[self.by](rows, self.random)
        changed, (batch, query) = out.clone(), real.nonzero(as_tuple=True)
        for n, head in enumerate(heads):
            changed[batch, head, query] = new[:, n]
        return changed

    def _rows(self, place: Place, call: Call) -> Tensor:
        """Those to be changed, (batch, query): without padding, which no row of the text sees."""
        shape = call.query.shape[:3:2]
        every = torch.ones(shape, dtype=torch.bool, device=call.query.device)
        if self.by == "zero":
            return every
        if not crosses(place, call):  # else its rows are those of the text just before
            self._real = real_of_call(call)
        known = self._real
        return every if known is None or known.shape != shape else known


def _resample(rows: Tensor, random: torch.Generator) -> Tensor:
    """Each row's place taken by another's: the next in a random round, in which none is its own."""
    order = torch.randperm(len(rows), generator=random)
    taken = torch.empty_like(order)
    taken[order] = order.roll(1)
    return rows[taken.to(rows.device)]


_BY: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "zero": lambda rows, _: torch.zeros_like(rows),
    "mean": lambda rows, _: rows.mean(0, keepdim=True).expand_as(rows),
    "resample": _resample,
}


def head_importance(
    model: nn.Module, batches: Iterable[Any], loss: Callable[[Any, Any], Tensor]
) -> list[dict[str, Any]]:
    """How much the loss minds each head: |∂L/∂ξ| at ξ = 1, with ξ a gate on the head's output.

    Michel et al. 2019 (arXiv:1905.10650): the mean over texts, normalised within a layer (its
    squares sum to 1; a layer that the loss does not use has 0). `batches` are what the model is
    called with, a dict, a tuple or a tensor. One dict a layer and head, as `rec.heads()`.

    `loss(output, batch)` gives one number, *a mean over the texts of the batch*: each text's
    gradient in it is its own divided by their number, and is multiplied back, so that batches of
    any size give the same. A mean over tokens is one too where the texts of a batch have the same
    number of them; else give those one at a time. For a sum, give batches of one size.
    """
    _check_importance(loss)
    hand, count = _Gates(), 0
    with watching(model, hand), torch.enable_grad():
        for batch in several(batches):
            hand.gates.clear()
            output = call_model(model, batch)
            if not hand.gates:
                raise ValueError(
                    f"no attention call of {type(model).__name__} was seen in batch {count}: it "
                    "works attention out by itself; have it use F.scaled_dot_product_attention."
                )
            hand.add(_number(loss(output, batch), count), count)
            count += 1
    if not count:
        raise ValueError("batches are empty; give at least one text to work the loss out on.")
    return hand.rows()


def _check_importance(loss: object) -> None:
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "head_importance needs gradients, and under torch.inference_mode there are none; call "
            "it outside of it (torch.no_grad does no harm)."
        )
    if not callable(loss):
        raise ValueError(
            f"loss is a function of output and batch, but a {type(loss).__name__} came; give "
            "lambda output, batch: output.loss, say."
        )


def _number(loss: object, batch: int) -> Tensor:
    came = f"a {type(loss).__name__}"
    if isinstance(loss, Tensor):
        if loss.numel() == 1 and loss.requires_grad:
            if not bool(loss.isfinite()):
                raise ValueError(
                    f"the loss of batch {batch} is {loss.detach().item()}, and no importance "
                    "follows from it; leave that batch out, or see what is not a number in it."
                )
            return loss.reshape(())
        came = f"one of shape {tuple(loss.shape)}" if loss.numel() != 1 else "one with no gradient"
    raise ValueError(
        "loss(output, batch) must give a tensor of one number that comes from the output, with its "
        f"gradient, but {came} came; give the mean of the losses, say, and do not detach it."
    )


class _Gates(Hand):
    """One gate for each head and text: a text's own gradient, before its absolute value."""

    recomputes = False

    def __init__(self) -> None:
        self.gates: dict[Place, Tensor] = {}
        self.totals: dict[Place, Tensor] = {}

    def output(self, place: Place, call: Call, out: Tensor) -> Tensor:
        gate = out.new_ones(*out.shape[:2], 1, 1, requires_grad=True)
        self.gates[place] = gate
        return out * gate

    def add(self, loss: Tensor, batch: int) -> None:
        """The gradients of one batch, each text's as if it had been alone."""
        gates = [*self.gates.values()]
        grads = torch.autograd.grad(loss, gates, allow_unused=True)
        for place, gate, grad in zip(self.gates, gates, grads, strict=True):
            total = self.totals.setdefault(place, torch.zeros(gate.shape[1]))
            if grad is None:  # the loss does not come from there
                continue
            if not bool(grad.isfinite().all()):
                raise ValueError(
                    f"the gradient of batch {batch} in layer {place.index}, {place.name}, is not a "
                    "number, though its loss is; see what the loss does at 0, say."
                )
            texts = gate.shape[0]
            total += texts * grad.detach().abs().float().sum((0, 2, 3)).cpu()

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for place, total in self.totals.items():
            scaled = total / total.norm().clamp(min=1e-30)
            found += [
                {"layer": place.index, "name": place.name, "head": h, "importance": float(one)}
                for h, one in enumerate(scaled)
            ]
        return found


def several(batches: Any) -> Iterable[Any]:
    """Batches as they were given; one alone would be taken for as many as it has rows or names."""
    if isinstance(batches, Tensor | Mapping | str):
        raise ValueError(
            "batches are a list of what the model is called with, but one "
            f"{type(batches).__name__} came; put it into a list."
        )
    if not isinstance(batches, Iterable):
        raise ValueError(
            "batches are a list of what the model is called with, but a "
            f"{type(batches).__name__} came; give [ids], say."
        )
    return batches


def call_model(model: nn.Module, batch: Any) -> Any:
    """A model on a batch in whichever form it comes."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, str | list):
        raise ValueError(
            f"a batch is what the model is called with, but a {type(batch).__name__} came; give "
            "tokenizer(text, return_tensors='pt'), or a tensor of token ids."
        )
    return model(*batch) if isinstance(batch, tuple) else model(batch)
