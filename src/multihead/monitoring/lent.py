"""A model's forward, lent for one call: the model's own otherwise, and in every copy of it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from torch import nn

Around = Callable[[Callable[..., Any], tuple, dict[str, Any]], Any]  # plain forward, args, kwargs


class LentForward:
    """Stands in for `model.forward` until it is given back.

    A hook would come too late: the with statement that watches must lie around the forward, so that
    it ends where the forward raises.
    """

    def __init__(self, model: nn.Module, around: Around) -> None:
        self.model, self.around, self.lent = model, around, True
        self.before = model.__dict__.get("forward")  # as compilers and other libraries leave it
        self.plain = model.forward if self.before is None else self.before
        functools.update_wrapper(self, self.plain, updated=())  # some trainers read its signature
        model.__dict__["forward"] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.around(self.plain, args, kwargs) if self.lent else self.plain(*args, **kwargs)

    def give_back(self) -> None:
        self.lent = False
        if self.model.__dict__.get("forward") is not self:  # somebody stands in for this one
            return
        before = self.before
        while isinstance(before, LentForward) and not before.lent:
            before = before.before
        if before is None:
            del self.model.__dict__["forward"]
        else:
            self.model.__dict__["forward"] = before

    def __deepcopy__(self, memo: dict) -> Any:
        return copy.deepcopy(self.plain, memo)

    def __reduce__(self) -> tuple:
        return _itself, (self.plain,)


def _itself(forward: Any) -> Any:
    return forward
