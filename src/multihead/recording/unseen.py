"""Attention that a model works out by itself, known by where its scores come from.

    activation ─┐
                ├─ product: scores ── mask, bias, … ── softmax, exp, … ── weights ─┐
    activation ─┘                                        values, an activation ────┴─ attention

Each step alone does not tell: a router's or a pooling's scores come from a layer's parameters, and
CLIP's similarities are a product that weighs nothing. So results are followed from the product of
two activations to the sum of a third that they weigh. What is made of parameters, buffers or
constants alone is the model's own, and no activation. A softmax over (…, heads, query, key) is
taken for attention at once, where nothing else was seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .names import identity
from .products import sums_over

KERNELS = ("scaled_dot_product", "flex_attention")
_SOFTMAX = {"softmax", "special_softmax", "_softmax", "softmin", "gumbel_softmax",
            "log_softmax", "special_log_softmax", "_log_softmax"}  # fmt: skip
_POSITIVE = {"exp", "exp_", "exp2", "special_exp2", "sigmoid", "sigmoid_", "relu", "relu_"}
_PRODUCTS = {"matmul", "linalg_matmul", "__matmul__", "bmm", "mm", "mv", "inner",
             "baddbmm", "baddbmm_", "addbmm", "addmm", "einsum", "cdist"}  # fmt: skip
_PAIRS = {"mul", "__mul__", "__rmul__", "multiply", "add", "__add__", "__radd__", "sub", "__sub__"}
_SUMS = {"sum", "nansum"}
_ENDS = {"linear", "conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm", "group_norm",
         "batch_norm", "instance_norm", "zeros_like", "ones_like", "empty_like", "rand_like",
         "randn_like"}  # fmt: skip


_KNOWN: dict[Any, tuple[str, str]] = {}  # functions of torch: what they are called, and are


def _known(func: Any) -> tuple[str, str]:
    """A function's name and kind, worked out once: it is asked of every one that is called."""
    known = _KNOWN.get(func)
    if known is None:
        name = getattr(func, "__name__", "").partition(".")[0]  # an overload: _softmax.default
        kind = (
            "kernel" if any(kernel in name for kernel in KERNELS)
            else "product" if name in _PRODUCTS
            else "softmax" if name in _SOFTMAX
            else "pair" if name in _PAIRS
            else "other"
        )  # fmt: skip
        known = _KNOWN[func] = name, kind
    return known


@dataclass(frozen=True)
class _Mark:
    """What is known of a tensor that scores were made into."""

    path: str
    batched: bool  # one matrix by another, batch by batch: no layer whose weights we do not know
    pairs: bool = False  # every query beside every key, by broadcasting: not yet summed, perhaps
    keys: frozenset[int] = frozenset()  # how many there are, once they are weights
    spread: bool = False  # weights times values, not yet summed


class Unseen:
    """The modules, by path, in which attention went by that could not be seen."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.likely: set[str] = set()  # by the shape of a softmax, or by a kernel's name
        self.certain: set[str] = set()  # by what its result was multiplied with
        self._marks: dict[int, tuple[weakref.ref[Tensor], _Mark]] = {}
        self._own: dict[int, tuple[weakref.ref[Tensor], None]] = {}  # beside the parameters
        for buffer in (b for module in modules for b in module._buffers.values() if b is not None):
            _note(self._own, buffer, None)

    def among(self, seen: set[str]) -> list[str]:
        """Where something was missed: a module that was seen may have a softmax for other ends."""
        return sorted((self.likely - seen) | self.certain)

    def passes(self, func: Any, args: tuple, out: Any) -> bool:
        """Whether a function can be passed over at a glance, as most can: it is asked of every one.

        While no scores are followed, a function of an activation is of no interest unless it may
        make some: products, softmaxes, and pairs that grow by broadcasting.
        """
        if self._marks or not args:
            return False
        kind = _known(func)[1]
        first = args[0]
        if type(first) is Tensor:
            if kind == "other":
                return self._is_activation(first)
            keeps = kind == "pair" and out is not first and type(out) is Tensor
            return keeps and out.shape == first.shape and self._is_activation(first)
        if type(first) is nn.Parameter:  # a norm's weight: what it makes is an activation again
            return kind == "pair" and len(args) > 1 and self._is_activation(args[1])
        if type(first) is tuple or type(first) is list:
            return kind == "other" and bool(first) and all(map(self._is_activation, first))
        return False

    def is_far(self, args: Any) -> bool:
        """Whether no scores are about, and what a module is given begins with an activation."""
        return not self._marks and bool(args) and self._is_activation(args[0])

    def _is_activation(self, tensor: Any) -> bool:
        """Whether it is surely one, told fast."""
        if type(tensor) is not Tensor or identity(tensor) in self._own:
            return False
        base = tensor._base
        return base is None or type(base) is Tensor or not isinstance(base, nn.Parameter)

    def saw(self, func: Any, args: tuple, kwargs: dict, out: Any, path: str) -> None:
        """A function of torch that the model called, and what it gave."""
        name, kind = _known(func)
        if kind == "kernel":
            self.likely.add(path)
            self.certain.add(path)
        elif kind == "product":
            self._saw_product(name, args, kwargs, out, path)
        elif kind == "softmax":
            self._saw_softmax(name, args, kwargs, out, path)
        elif self._marks or kind == "pair" or not args or self._is_own(args[0]) is not False:
            self._saw_other(name, args, kwargs, out, path)

    def _saw_product(self, name: str, args: tuple, kwargs: dict, out: Any, path: str) -> None:
        operands = _tensors((*args, *kwargs.values()))
        if name.startswith(("baddbmm", "add")):
            operands = operands[1:]
        if len(operands) < 2 or not isinstance(out, Tensor):
            return
        owned = [bool(self._is_own(tensor)) for tensor in operands]
        for at, tensor in enumerate(operands):
            mark = self._mark(tensor)
            if mark is None or name == "cdist":  # which makes scores, but weighs nothing
                continue
            others = [one for i, one in enumerate(operands) if i != at and not owned[i]]
            equation = args[0] if name == "einsum" else "i,i" if name == "inner" else None
            if any(sums_over(equation, operands, at, other, mark.keys) for other in others):
                self.certain.add(mark.path)
            if name == "einsum" and not others and out.shape == tensor.shape:
                _note(self._marks, out, mark)  # heads that talk to one another
        if all(owned):
            _note(self._own, out, None)
        elif not any(owned):
            one, two = operands[:2]
            self._follow(out, _Mark(path, batched=one.ndim == two.ndim))

    def _saw_softmax(self, name: str, args: tuple, kwargs: dict, out: Any, path: str) -> None:
        dim = kwargs.get("dim", args[1] if len(args) > 1 and name != "gumbel_softmax" else -1)
        if not isinstance(dim, int) or not isinstance(out, Tensor) or not out.ndim:
            return
        if out.ndim > 3 and dim % out.ndim >= out.ndim - 2:
            self.likely.add(path)
        mark = self._mark(next(iter(_tensors((*args, *kwargs.values()))), None))
        if mark is not None:
            self._follow(out, replace(mark, path=path, keys=frozenset([out.shape[dim]])))

    def _saw_other(self, name: str, args: tuple, kwargs: dict, out: Any, path: str) -> None:
        """What keeps its size goes on; what is weighed waits for its sum."""
        given = _tensors((*args, *kwargs.values()))
        gives = given[:1] if name == "__setitem__" else _tensors((out,))
        outs = [one for one in gives if one.is_floating_point()]
        marks = [(one, self._mark(one)) for one in given] if self._marks else []
        marks.sort(key=lambda both: both[1] is not None and bool(both[1].keys))  # weights last
        owned = [bool(self._is_own(one)) for one in given]
        if given and outs and outs[0] is given[0]:
            self._written(given, owned)
        if all(owned) and name not in _ENDS:
            for one in gives:
                _note(self._own, one, None)
            return
        for tensor, mark in marks:
            if mark is None:
                continue
            if name in _SUMS and mark.spread and _summed(tensor, args, kwargs) & mark.keys:
                self.certain.add(mark.path)
            for one in outs:
                grown = _goes_on(name, mark, tensor, one, given, owned)
                if grown is not None:
                    self._follow(one, grown)
        if name in _PAIRS and len(given) == 2 and not any(owned) and outs:
            larger = outs[0].numel() > max(one.numel() for one in given)
            if larger and min(one.ndim for one in given) > 1 and self._mark(outs[0]) is None:
                self._follow(outs[0], _Mark(path, batched=False, pairs=True))

    def _written(self, given: list[Tensor], owned: list[bool]) -> None:
        """A buffer that an activation is written into, a cache, is the model's own no more."""
        if not given or not owned[0]:
            return
        if not any(t.is_floating_point() and not own for t, own in zip(given, owned, strict=True)):
            return
        place = _place(given[0])
        for i, (ref, _) in list(self._own.items()):
            tensor = ref()
            if tensor is None or _place(tensor) == place:
                self._own.pop(i, None)

    def _is_own(self, tensor: Any) -> bool | None:
        """Whether a tensor is made of the model's own alone; None for what is no tensor."""
        if not isinstance(tensor, Tensor):
            return None
        if identity(tensor) in self._own or isinstance(tensor, nn.Parameter):
            return True
        return isinstance(tensor._base, nn.Parameter)

    def _mark(self, tensor: Any) -> _Mark | None:
        found = self._marks.get(identity(tensor))
        return None if found is None or found[0]() is not tensor else found[1]

    def _follow(self, tensor: Tensor, mark: _Mark) -> None:
        self._own.pop(identity(tensor), None)
        _note(self._marks, tensor, mark)


def _note(notes: dict, tensor: Tensor, what: _Mark | None) -> None:
    """Write something down about a tensor, until it dies."""
    i = identity(tensor)

    def forget(ref: weakref.ref[Tensor]) -> None:
        if i in notes and notes[i][0] is ref:
            del notes[i]

    notes[i] = (weakref.ref(tensor, forget), what)


def _place(tensor: Tensor) -> int:
    """Where its numbers lie; inside torch.func's transforms a tensor is wrapped, and has none."""
    inner = torch._C._functorch  # type: ignore[attr-defined]
    while inner.is_functorch_wrapped_tensor(tensor):
        tensor = inner.get_unwrapped(tensor)
    return tensor.untyped_storage().data_ptr()


def _goes_on(
    name: str, mark: _Mark, tensor: Tensor, out: Tensor, given: list[Tensor], owned: list[bool]
) -> _Mark | None:
    """The mark of what a function made of a marked tensor, if it is one of scores or weights."""
    if mark.pairs and not mark.keys:
        one_each = name == "linear" and out.shape[-1] == 1
        if one_each or (name in _SUMS and out.shape == tensor.shape[: out.ndim]):
            return mark
    if name in _ENDS or name in _SUMS:
        return None
    if out.numel() == tensor.numel() or (out.ndim > 1 and out.shape[-2:] == tensor.shape[-2:]):
        if name in _POSITIVE and mark.batched and not mark.keys:
            return replace(mark, keys=frozenset(out.shape[-2:]))
        return mark
    if name in _PAIRS and mark.keys and out.numel() > tensor.numel():
        weighed = any(o is not tensor and not own for o, own in zip(given, owned, strict=True))
        return replace(mark, spread=True) if weighed else None
    return None


def _summed(tensor: Tensor, args: tuple, kwargs: dict) -> set[int]:
    """The sizes of the axes that a sum is over."""
    dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    dims = [dim] if isinstance(dim, int) else dim or range(tensor.ndim)
    return {tensor.shape[one] for one in dims}


def _tensors(given: Iterable[Any]) -> list[Tensor]:
    found = []
    for one in given:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += [inner for inner in one if isinstance(inner, Tensor)]
    return found
