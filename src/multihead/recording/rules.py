"""A mask of bits as the rule that made it, where there is one.

Models hand out masks as n × n bits, or as numbers that forbid. A rule takes no room in a file, lets
tiles be skipped, and says what it is; what follows no rule stays as bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..masks import Mask, causal, dense, window
from .call import Call, forbids

_AT_ONCE = 512  # rows compared at a time


class Rules:
    """Rules found so far: the layers of a model share one mask, and it is read once."""

    def __init__(self) -> None:
        self._known: list[tuple[weakref.ref[Tensor], tuple, object]] = []

    def simplify(self, call: Call) -> Call:
        """The same call, its bits as a rule and a bias that only forbids as a mask."""
        bias = call.bias
        if isinstance(bias, Tensor) and call.mask is None and not bias.requires_grad:
            bits = self._once(bias, (), lambda: _only_forbids(bias))
            if bits is not None:
                call = call.replace(mask=dense(bits), bias=None)
        if isinstance(call.mask, dense):
            bits = call.mask.allowed
            place = call.key.shape[2] - call.query.shape[2] if call.offset is None else call.offset
            if isinstance(place, int):
                asked = (call.query.shape[2], place)
                rule = self._once(bits, asked, lambda: find_rule(bits, *asked))
                call = call.replace(mask=rule)
        return call

    def _once(self, tensor: Tensor, asked: tuple, work: Callable[[], Any]) -> Any:
        if tensor.is_inference():  # which does not tell whether it was written to
            return work()
        self._known = [entry for entry in self._known if entry[0]() is not None]
        for ref, known, found in self._known:
            if ref() is tensor and known == (tensor._version, *asked):
                return found
        found = work()
        self._known.append((weakref.ref(tensor), (tensor._version, *asked), found))
        return found


def _only_forbids(bias: Tensor) -> Tensor | None:
    """Where a bias allows, if it does nothing but forbid and leaves every row something."""
    allowed = bias == 0
    if not bool((allowed | forbids(bias)).all()) or not bool(allowed.any(-1).all()):
        return None
    least = -1e30 if bias.dtype != torch.float16 else -6e4
    # −10,000 is not nothing beside scores of that size; the least float is.
    return allowed if bool((allowed | (bias <= least)).all()) else None


def find_rule(bits: Tensor, queries: int, place: int) -> Mask | None:
    """causal, a window, both or none of them, and keys that nobody sees; else the bits.

    >>> find_rule(torch.ones(4, 4).tril().bool()[None, None], 4, 0)
    causal()
    """
    whole = bits[(None,) * (4 - bits.ndim)].detach()
    if bool(whole.all()):
        return None
    if whole.shape[1] > 1 or whole.shape[2] != queries:
        return dense(bits)
    keys = whole.shape[3]
    ahead = bool(whole[:, :, 0, place + 1 :].any()) if 0 <= place < keys - 1 else False
    count = int(whole[:, :, -1].sum(-1).max())
    rules: list[Mask] = [] if ahead else [causal()]
    if count:
        rules += [window(count)] if ahead else [causal() & window(count)]
    if queries > 1:
        seen = dense(whole.any(2, keepdim=True))  # (batch, 1, 1, key): keys that some query sees
        rules += [rule & seen for rule in rules] + [seen]
    found = next((rule for rule in rules if _same(rule, whole, place)), None)
    return dense(bits) if found is None else found


def _same(rule: Mask, whole: Tensor, place: int) -> bool:
    every = torch.arange(whole.shape[3], device=whole.device)
    for rows in torch.arange(whole.shape[2], device=whole.device).split(_AT_ONCE):
        here = whole[:, :, rows]
        if not torch.equal(rule.allows(rows, every, place).expand_as(here), here):
            return False
    return True
