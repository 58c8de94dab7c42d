"""Attention that a model works out by itself: a softmax whose result weighs something.

    scores ── softmax ── dropout, a view, another dtype, … ── matmul, bmm or einsum ── attention
                                                           └─ anything else ────────── a router

A softmax alone does not tell, so its result is followed until a product sums over what it was taken
over. One over (…, heads, query, key) is taken for attention at once, where nothing else was seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SOFTMAX = {
    torch.softmax, F.softmax, Tensor.softmax, torch.log_softmax, F.log_softmax, Tensor.log_softmax
}  # fmt: skip
KERNELS = ("scaled_dot_product", "flex_attention")
_PRODUCTS = {"matmul", "__matmul__", "bmm", "mm", "baddbmm", "addmm", "einsum"}


class Unseen:
    """The modules, by path, in which attention went by that could not be seen."""

    def __init__(self) -> None:
        self.likely: set[str] = set()  # by the shape of a softmax, or by a kernel's name
        self.certain: set[str] = set()  # by what its result was multiplied with
        self._flows: dict[int, tuple[weakref.ref[Tensor], int, str]] = {}  # keys, path

    def among(self, seen: set[str]) -> list[str]:
        """Where something was missed: a module that was seen may have a softmax for other ends."""
        return sorted((self.likely - seen) | self.certain)

    @property
    def follows(self) -> bool:
        return bool(self._flows)

    def saw_kernel(self, path: str) -> None:
        self.likely.add(path)
        self.certain.add(path)

    def saw_softmax(self, path: str, args: tuple, kwargs: dict, out: Tensor) -> None:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        if out.ndim > 3:
            self.likely.add(path)
        if out.ndim > 1 and isinstance(dim, int):
            self._follow(out, out.shape[dim], path)

    def saw(self, func: Any, args: tuple, kwargs: dict, out: Any) -> None:
        """Any other function: a product ends what is followed; what keeps its size goes on."""
        given = [*_tensors(args), *_tensors(kwargs.values())]
        for tensor in given:
            flow = self._flows.get(id(tensor))
            if flow is None or flow[0]() is not tensor:
                continue
            _, keys, path = flow
            if getattr(func, "__name__", "") in _PRODUCTS:
                if _weighs(func, args, given, tensor, keys):
                    self.certain.add(path)
            elif isinstance(out, Tensor) and out.numel() == tensor.numel():
                self._follow(out, keys, path)

    def _follow(self, tensor: Tensor, keys: int, path: str) -> None:
        self._flows = {i: flow for i, flow in self._flows.items() if flow[0]() is not None}
        self._flows[id(tensor)] = (weakref.ref(tensor), keys, path)


def _tensors(given: Iterable[Any]) -> list[Tensor]:
    found = []
    for one in given:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += [inner for inner in one if isinstance(inner, Tensor)]
    return found


def _weighs(func: Any, args: tuple, given: list[Tensor], weights: Tensor, keys: int) -> bool:
    """Whether a product sums over the keys, and what is weighed is no table of the model's own."""
    if func is torch.einsum:
        return isinstance(args[0], str) and _sums_over(args[0], given, weights, keys)
    left, right = given[-2:]
    other = right if left is weights else left
    summed = weights.shape[-1] if left is weights else weights.shape[max(-2, -weights.ndim)]
    return summed == keys and not _is_parameter(other)


def _sums_over(equation: str, given: list[Tensor], weights: Tensor, keys: int) -> bool:
    terms, _, out = equation.replace(" ", "").replace("...", "").partition("->")
    letters = list(zip(terms.split(","), given, strict=False))
    if "->" not in equation:
        out = "".join(letter for letter in terms if terms.count(letter) == 1)
    for term, tensor in letters:
        if tensor is not weights:
            continue
        sizes = dict(zip(reversed(term), reversed(weights.shape), strict=False))
        for other, what in letters:
            shared = {*term} & {*other} - {*out}
            if what is not weights and any(sizes[letter] == keys for letter in shared):
                return not _is_parameter(what)
    return False


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
