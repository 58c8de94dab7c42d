"""A floor under the entropy of heads: a penalty whose gradient lifts those that fall below."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention.problem import pose
from ..observation import observe
from ..recording import check_seen
from ..recording.call import Call
from ..recording.chosen import Chosen, Heads
from ..recording.padding import real_of_call
from ..recording.rules import Rules
from ..recording.watch import Hand, Place, check_model, watching
from .allowed import relative
from .looking import sample_rows


class EntropyFloor(Hand):
    """What `mh.entropy_floor` gives; lay it around a forward, then add `penalty` to the loss."""

    recomputes = False
    beside = True

    def __init__(
        self, model: nn.Module, at_least: float, weight: float, chosen: Chosen | None, rows: int
    ) -> None:
        self.model, self.at_least, self.weight = model, at_least, weight
        self.chosen, self.rows = chosen, rows
        self.penalty: Float[Tensor, ""] = torch.zeros(())
        self._open = contextlib.ExitStack()
        self._passes = 0
        self._rules = Rules()

    def __enter__(self) -> EntropyFloor:
        self.penalty = torch.zeros(())
        self._watch = self._open.enter_context(watching(self.model, self))
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self._open.close()
        if kind is None:
            check_seen(self._watch, self.model)
            if self.chosen is not None:
                self.chosen.check_met()

    def begin(self) -> None:
        self._passes += 1  # other rows each time

    def question(self, place: Place, call: Call) -> Call:
        count = call.query.shape[1]
        heads = [*range(count)] if self.chosen is None else self.chosen.of(place, count)
        if heads and torch.is_grad_enabled():
            term = self.weight * self._shortage(call)[heads].sum()
            self.penalty = self.penalty.to(term.device) + term
        return call

    def _shortage(self, call: Call) -> Float[Tensor, "heads"]:
        """By how much the mean entropy of each head is too low, of the rows looked at."""
        with torch.no_grad():
            call = self._rules.simplify(call)
            problem = pose(call.query, call.key, call.value, dropout=0.0, **call.asked)
            real = real_of_call(call)
        rows = sample_rows(call.query.shape[2], self.rows, self._passes).to(call.query.device)
        plain = call.replace(sinks=None).asked  # entropy among the keys alone, as a monitor's is
        seen = observe(call.query, call.key, call.value, stats="entropy", rows=rows, **plain)
        counted = seen.lse.detach() != -torch.inf
        if real is not None:
            counted = counted & real.to(rows.device)[:, None, rows]
        total, count = relative(seen.entropy, problem, rows, counted)
        short = (self.at_least - total / count.clamp(min=1)).clamp(min=0.0)
        return short.masked_fill(count == 0, 0.0)


def entropy_floor(
    model: nn.Module,
    *,
    at_least: float,
    weight: float,
    heads: Heads | None = None,
    rows: int = 64,
) -> EntropyFloor:
    """A penalty for heads whose entropy falls below a floor, to be added to the loss.

        penalty = weight · Σ over heads  max(0, at_least − entropy / ln keys allowed)

    The entropy is the head's mean over `rows` rows of each text, as `mh.monitor` tells it: 1 looks
    at all keys alike, 0 at one, whatever share a sink takes. `heads` are pairs of layer and head,
    all unless given. The model's output is what it is without; the gradient flows to queries and
    keys, through `observe`. It is weak where a head looks at one key alone: lay the floor before
    that happens.

    >>> import multihead as mh, torch
    >>> attn = mh.MultiHeadAttention(8, 2, mask=mh.causal())
    >>> with mh.entropy_floor(attn, at_least=1.0, weight=0.1, heads=[(0, 1)]) as floor:
    ...     loss = attn(torch.randn(1, 5, 8)).square().mean()
    >>> (loss + floor.penalty).backward()
    >>> bool(floor.penalty > 0)
    True
    """
    check_model(model)
    for name, given, most in (("at_least", at_least, 1.0), ("weight", weight, float("inf"))):
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or not 0 < given <= most:
            limit = "above 0 and at most 1, relative to looking at all keys alike"
            wanted = limit if most == 1.0 else "above 0"
            raise ValueError(f"{name} is a number {wanted}, but {given!r} came; give 0.1, say.")
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise ValueError(f"rows is a whole number from 1 on, but {rows!r} came.")
    return EntropyFloor(model, at_least, weight, None if heads is None else Chosen(heads), rows)
