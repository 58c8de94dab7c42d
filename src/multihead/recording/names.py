"""Which module is at work: the path of the innermost one, and when a forward pass begins or is
run again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

# As id(), a hundred times a layer, but without a word to audit hooks: libraries lay those.
identity = object.__hash__

_SHELL = "_orig_mod"  # of torch.compile, around a module


def in_backward() -> bool:
    """Whether gradients are being worked out: a forward in there is one that is run again."""
    return torch._C._current_graph_task_id() != -1


def in_checkpoint() -> bool:
    """Whether what runs now will be run again for its gradient (activation checkpointing).

    Such a run has no mark of its own. With gradients, torch's checkpoint stands on the stack, or
    its hooks lie on what is saved; without, an autograd function does whose inputs want gradients.
    """
    again = torch.utils.checkpoint.__name__
    if torch.is_grad_enabled():
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)  # type: ignore[attr-defined]
        if hooks is not None and getattr(hooks[0], "__module__", None) == again:
            return True
    frame = sys._getframe(1)
    while frame is not None:
        if torch.is_grad_enabled():
            if frame.f_globals.get("__name__") == again:
                return True
        elif frame.f_code.co_name == "forward" and frame.f_code.co_argcount:
            first = frame.f_locals.get(frame.f_code.co_varnames[0])
            if isinstance(first, torch._C._FunctionBase) and any(first.needs_input_grad):  # type: ignore[attr-defined]
                return True
        frame = frame.f_back
    return False


def _plain(name: str) -> str:
    """A path without the shells that torch.compile puts around modules."""
    if _SHELL not in name:
        return name
    return ".".join(part for part in name.split(".") if part != _SHELL)


class _Calls:
    """Every call of a module, while some model is watched, in this thread or another.

    In place of nn.Module.__call__, as torch.fx does it: hooks on all modules would take a tenth of
    the time of looking. Inside a compiled graph no call is one: compiled models run as written.
    """

    paths: tuple[Path, ...] = ()
    lock = threading.Lock()
    plain: Callable[..., Any] = nn.Module.__call__
    as_written = contextlib.ExitStack()

    @classmethod
    def begin(cls, path: Path) -> None:
        with cls.lock:
            if not cls.paths:
                cls.as_written.enter_context(torch.compiler.set_stance("force_eager"))
            cls.paths = (*cls.paths, path)
            if nn.Module.__call__ is not _call:
                cls.plain, nn.Module.__call__ = nn.Module.__call__, _call

    @classmethod
    def end(cls, path: Path) -> None:
        with cls.lock:
            cls.paths = tuple(one for one in cls.paths if one is not path)
            if cls.paths:
                return
            cls.as_written.close()
            if nn.Module.__call__ is _call:
                nn.Module.__call__ = cls.plain


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    inside = [path for path in _Calls.paths if path.enter(module)]
    try:
        return _Calls.plain(module, *args, **kwargs)
    finally:
        for path in inside:
            path.leave()


class Path:
    """The modules of a model that are running, outermost first.

    Every call of a module comes by, in whichever thread it runs: in another one than ours PyTorch's
    modes are blind, and half a model would go unseen.
    """

    def __init__(
        self, model: nn.Module, begins: Callable[[], None], runs_again: Callable[[], None]
    ) -> None:
        own = type(getattr(model, "_orig_mod", model)).__name__  # what a path of nothing is called
        self.every = dict(model.named_modules())
        self.names = {identity(module): _plain(name) for name, module in self.every.items()}
        self.names[identity(model)] = own
        self.model, self.modules = model, []
        self._begins, self._runs_again = begins, runs_again
        self._owner = threading.get_ident()
        self._elsewhere = False  # whether it was called in a thread that nobody may listen to

    def __enter__(self) -> Path:
        _Calls.begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        _Calls.end(self)

    def enter(self, module: nn.Module) -> bool:
        """A module is called, of this model or of another: whether it is on the path now."""
        elsewhere = threading.get_ident() != self._owner
        if identity(module) not in self.names and not (
            elsewhere and hasattr(module, "_is_replica")
        ):
            return False
        if in_backward():  # which has threads of its own
            self._runs_again()
            return False
        if elsewhere:
            self._elsewhere = True
            self.refuse_other_threads()
        if not self.modules:
            self._begins()
        self.modules.append(module)
        return True

    def leave(self) -> None:
        self.modules.pop()

    def refuse_other_threads(self) -> None:
        """Raise where the model was called in one: there, and again where the with statement ends.

        What is raised in a thread may never be heard of, and some texts would be missing.
        """
        if self._elsewhere:
            raise RuntimeError(
                "the model runs in another thread than the one that watches it, where its calls "
                "cannot be seen; call it in the thread of the with statement "
                "(not through nn.DataParallel)."
            )

    def owns(self, module: nn.Module) -> bool:
        return identity(module) in self.names

    @property
    def name(self) -> str | None:
        """The path of the innermost module at work; None outside of the model."""
        return self.names[identity(self.modules[-1])] if self.modules else None
