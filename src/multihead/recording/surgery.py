"""Cut and see: take a head's output away, or some of its links, or ask how much the loss minds.

All of it inside the same interception that records, in any model that `record` sees; a recording
inside sees what the cut left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..masks import Mask, dense
from .call import Call
from .watch import Hand, Place, watching

Heads = Iterable[tuple[int | str, int]]


class _Chosen:
    """Which heads of which layers were asked for, and which of them came by."""

    def __init__(self, heads: Heads) -> None:
        self.by_layer: dict[int | str, list[int]] = {}
        pairs: list[Any] = [heads] if _is_pair(heads) else list(heads)
        for pair in pairs:
            if not _is_pair(pair):
                raise ValueError(
                    f"heads are pairs of layer and head, but {pair!r} came; give [(18, 6)], say."
                )
            layer, head = pair
            self.by_layer.setdefault(layer, []).append(head)
        self._met: set[int | str] = set()

    def of(self, place: Place, count: int) -> list[int]:
        """The heads chosen in this layer, which has `count`."""
        asked = [name for name in (place.index, place.name) if name in self.by_layer]
        heads = sorted({head for name in asked for head in self.by_layer[name]})
        self._met |= {*asked}
        for head in heads:
            if not 0 <= head < count:
                raise ValueError(
                    f"layer {place.index}, {place.name}, has heads 0 to {count - 1}, "
                    f"but head {head} was asked for; choose one of those."
                )
        return heads

    def check_met(self) -> None:
        missed = [layer for layer in self.by_layer if layer not in self._met]
        if missed:
            raise ValueError(
                f"no layer {missed[0]!r} was called, so its heads were left as they are; layers "
                "are counted in order of first call, or named by their path: see rec.layers."
            )


def _is_pair(given: object) -> bool:
    return (
        isinstance(given, tuple)
        and len(given) == 2
        and isinstance(given[0], int | str)
        and isinstance(given[1], int)
    )


@contextlib.contextmanager
def ablate(model: nn.Module, heads: Heads, by: str = "zero", seed: int = 0) -> Iterator[None]:
    """Take away what some heads say, inside the with statement.

    - `"zero"`: nothing in its place.
    - `"mean"`: its mean over all rows of the call, so that what it always says stays.
    - `"resample"`: what it says at some other row, drawn by `seed`.

    >>> import multihead as mh
    >>> attn = mh.MultiHeadAttention(8, 2, out_bias=False)
    >>> with torch.no_grad(), mh.ablate(attn, heads=[(0, 0), (0, 1)]):
    ...     y = attn(torch.randn(1, 5, 8))
    >>> y.abs().max()
    tensor(0.)
    """
    if by not in _BY:
        raise ValueError(f"by must be one of {', '.join(map(repr, _BY))}, but {by!r} came.")
    hand = _Ablate(_Chosen(heads), by, torch.Generator().manual_seed(seed))
    with watching(model, hand):
        yield
    hand.chosen.check_met()


class _Ablate(Hand):
    recomputes = False

    def __init__(self, chosen: _Chosen, by: str, random: torch.Generator) -> None:
        self.chosen, self.by, self.random = chosen, by, random

    def output(self, place: Place, call: Call, out: Tensor) -> Tensor:
        heads = self.chosen.of(place, out.shape[1])
        if not heads:
            return out
        if self.by != "zero" and out.shape[0] * out.shape[2] == 1:
            raise ValueError(
                f"by={self.by!r} needs other rows than the one that came (a single step of "
                "generation); call the model on the whole text, or give by='zero'."
            )
        changed = out.clone()
        changed[:, heads] = _BY[self.by](out[:, heads], self.random)
        return changed


def _resample(out: Tensor, random: torch.Generator) -> Tensor:
    rows = out.transpose(1, 2).flatten(0, 1)  # (batch · query, heads, dim)
    order = torch.randperm(len(rows), generator=random).to(out.device)
    return rows[order].unflatten(0, (out.shape[0], -1)).transpose(1, 2)


_BY: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "zero": lambda out, _: torch.zeros_like(out),
    "mean": lambda out, _: out.mean((0, 2), keepdim=True).expand_as(out),
    "resample": _resample,
}


@contextlib.contextmanager
def cut(model: nn.Module, heads: Heads, links: Mask | Tensor) -> Iterator[None]:
    """Forbid some heads the links inside a mask, inside the with statement.

    What is left of a row is renormalised, as if the mask had never allowed them: softmax over the
    rest. A row with nothing left gives 0.
    """
    links = dense(links) if isinstance(links, Tensor) else links
    if not isinstance(links, Mask):
        raise ValueError(
            f"links are a mask, but a {type(links).__name__} came; give mh.offset(-1), say."
        )
    hand = _Cut(_Chosen(heads), links)
    with watching(model, hand):
        yield
    hand.chosen.check_met()


class _Cut(Hand):
    recomputes = False

    def __init__(self, chosen: _Chosen, links: Mask) -> None:
        self.chosen, self.links = chosen, links

    def question(self, place: Place, call: Call) -> Call:
        heads = self.chosen.of(place, call.query.shape[1])
        if not heads:
            return call
        mine = torch.zeros(1, call.query.shape[1], 1, 1, dtype=torch.bool)
        mine[:, heads] = True
        kept = ~(self.links & dense(mine)).to(call.query.device)
        return call.replace(mask=kept if call.mask is None else call.mask & kept)


def head_importance(
    model: nn.Module, batches: Iterable[Any], loss: Callable[[Any, Any], Tensor]
) -> list[dict[str, Any]]:
    """How much the loss minds each head: |∂L/∂ξ| at ξ = 1, with ξ a gate on the head's output.

    Michel et al. 2019 (arXiv:1905.10650): the mean over texts, normalised within a layer (its
    squares sum to 1). `batches` are what the model is called with, a dict, a tuple or a tensor;
    `loss(output, batch)` gives a number. One dict a layer and head, as `rec.heads()`.
    """
    hand, count = _Gates(), 0
    with watching(model, hand), torch.enable_grad():
        for batch in several(batches):
            hand.gates.clear()
            found = _number(loss(call_model(model, batch), batch))
            places, gates = [*hand.gates], [*hand.gates.values()]
            for place, grad in zip(places, torch.autograd.grad(found, gates), strict=True):
                total = hand.totals.setdefault(place, torch.zeros(grad.shape[1]))
                total += grad.detach().abs().float().sum((0, 2, 3)).cpu()
            count += 1
    if not count:
        raise ValueError("batches are empty; give at least one text to work the loss out on.")
    rows = []
    for place, total in hand.totals.items():
        scaled = total / total.norm().clamp(min=1e-30)
        rows += [
            {"layer": place.index, "name": place.name, "head": h, "importance": float(scaled[h])}
            for h in range(len(scaled))
        ]
    return rows


def _number(loss: object) -> Tensor:
    came = f"a {type(loss).__name__}"
    if isinstance(loss, Tensor):
        if loss.numel() == 1 and loss.requires_grad:
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


def several(batches: Any) -> Iterable[Any]:
    """Batches as they were given; one alone would be taken for as many as it has rows or names."""
    if isinstance(batches, Tensor | Mapping | str):
        raise ValueError(
            "batches are a list of what the model is called with, but one "
            f"{type(batches).__name__} came; put it into a list."
        )
    return batches


def call_model(model: nn.Module, batch: Any) -> Any:
    """A model on a batch in whichever form it comes."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)
