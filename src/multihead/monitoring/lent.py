"""A model's forward, lent until one call was looked at: its own otherwise, and in every copy."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Call = Callable[..., Any]
Around = Callable[[Call, Call, tuple, dict[str, Any]], Any]  # see LentForward
_COMPILED = "_compiled_call_impl"  # what model.compile() has called in place of the forward


class LentForward:
    """Stands in for `model.forward` until it is given back.

    Who borrows it is called as `around(plain, looked, args, kwargs)`: `plain` is what the model
    would do, and `looked` the same as it is written, where it is compiled. A hook would come too
    late: the with statement that watches must lie around the forward, and end where that raises.
    """

    def __init__(self, model: nn.Module, around: Around) -> None:
        self.model, self.around, self.lent = model, around, True
        compiled = model.__dict__.get(_COMPILED) is not None
        self.name = _COMPILED if compiled else "forward"
        self.before = model.__dict__.get(self.name)  # as compilers and other libraries leave it
        self.plain = model.forward if self.before is None else self.before
        self.looked = model._call_impl if compiled else self.plain
        functools.update_wrapper(self, self.plain, updated=())  # some trainers read its signature
        model.__dict__[self.name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not self.lent:  # a graph holds nothing of ours
            return self.plain(*args, **kwargs)
        return self.around(self.plain, self.looked, args, kwargs)

    def give_back(self) -> None:
        self.lent = False
        if self.model.__dict__.get(self.name) is not self:  # somebody stands in for this one
            return
        before = self.before
        while isinstance(before, LentForward) and not before.lent:
            before = before.before
        if before is None:
            del self.model.__dict__[self.name]
        else:
            self.model.__dict__[self.name] = before

    def __deepcopy__(self, memo: dict) -> Any:
        return copy.deepcopy(self.plain, memo)

    def __reduce__(self) -> tuple:
        return _itself, (self.plain,)


def _itself(forward: Any) -> Any:
    return forward
