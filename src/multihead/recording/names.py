"""Which module is at work: the path of the innermost one, and when a forward pass begins."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import nn


def in_backward() -> bool:
    """Whether gradients are being worked out: a forward in there is one that is run again."""
    return torch._C._current_graph_task_id() != -1


class Path:
    """The modules of a model that are running, outermost first.

    Its hooks see a module in whichever thread it runs: in another one than ours PyTorch's modes
    are blind, and half a model would go unseen.
    """

    def __init__(
        self, model: nn.Module, begins: Callable[[], None], runs_again: Callable[[], None]
    ) -> None:
        own = type(getattr(model, "_orig_mod", model)).__name__  # what a path of nothing is called
        self.names = {
            id(module): ".".join(part for part in name.split(".") if part != "_orig_mod") or own
            for name, module in model.named_modules()
        }
        self.model, self.modules = model, []
        self._begins, self._runs_again = begins, runs_again
        self._owner, self._hooks = threading.get_ident(), []

    def __enter__(self) -> Path:
        for module in self.model.modules():
            self._hooks += [
                module.register_forward_pre_hook(self._enter, prepend=True),
                module.register_forward_hook(self._leave, always_call=True),
            ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _enter(self, module: nn.Module, _: object) -> None:
        if in_backward():  # which has threads of its own
            self._runs_again()
            return
        if threading.get_ident() != self._owner:
            raise RuntimeError(
                "the model runs in another thread than the one that watches it, where its calls "
                "cannot be seen; call it in the thread of the with statement "
                "(not through nn.DataParallel)."
            )
        if not self.modules:
            self._begins()
        self.modules.append(module)

    def _leave(self, module: nn.Module, *_: object) -> None:
        # A module that raised may have left others behind it.
        if not in_backward() and any(m is module for m in self.modules):
            while self.modules.pop() is not module:
                pass

    def owns(self, module: nn.Module) -> bool:
        return id(module) in self.names

    @property
    def name(self) -> str | None:
        """The path of the innermost module at work; None outside of the model."""
        return self.names[id(self.modules[-1])] if self.modules else None
