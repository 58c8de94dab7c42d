"""Which module is at work: the path of the innermost one, and when a forward pass begins or is
run again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterable

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from .quiet import Aside

# As id(), a hundred times a layer, but without a word to audit hooks: libraries lay those.
identity = object.__hash__

_SHELL = "_orig_mod"  # of torch.compile, around a module


def of_kind(modules: Iterable[nn.Module], wanted: Callable[[type], bool]) -> list[nn.Module]:
    """Those whose class is wanted. Of each class it is asked once: a model has hundreds of modules,
    and they are waited for.
    """
    modules = [*modules]
    kinds = {kind for kind in {*map(type, modules)} if wanted(kind)}
    return [module for module in modules if type(module) in kinds] if kinds else []


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


class _AsWritten:
    """Compiled models run as they are written while any is watched: in a graph no call is one.

    That holds for all threads; watches of two of them may end in another order than they began.
    """

    def __init__(self) -> None:
        self._lock, self._count, self._stance = threading.Lock(), 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._count:
                self._stance.enter_context(torch.compiler.set_stance("force_eager"))
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._stance.close()


_AS_WRITTEN = _AsWritten()


def _names_by_itself(kind: type) -> bool:
    return kind.named_modules is not nn.Module.named_modules


class Path:
    """The modules of a model that are running, outermost first.

    Two hooks see every module, in whichever thread it runs: in another one than ours PyTorch's
    modes are blind, and half a model would go unseen.
    """

    def __init__(
        self,
        model: nn.Module,
        begins: Callable[[], None],
        runs_again: Callable[[], None],
        aside: Aside,
    ) -> None:
        own = type(getattr(model, "_orig_mod", model)).__name__  # what a path of nothing is called
        self.every, self.names = {"": model}, {identity(model): own}  # as named_modules() has them
        self._has_shells = False
        self._walk(model, "")
        if of_kind(self.every.values(), _names_by_itself):
            self.every = dict(model.named_modules())
            self.names = {identity(module): name for name, module in self.every.items()}
            self.names[identity(model)] = own
            self._has_shells = any(_SHELL in name for name in self.every)
        if self._has_shells:
            self.names = {i: _plain(name) for i, name in self.names.items()}
        self.model, self.modules = model, []
        self._begins, self._runs_again, self._aside = begins, runs_again, aside
        self._owner, self._until_end = threading.get_ident(), contextlib.ExitStack()
        self._elsewhere = False  # whether it was called in a thread that nobody may listen to

    def _walk(self, module: nn.Module, before: str) -> None:
        for part, inner in module._modules.items():
            if inner is not None and identity(inner) not in self.names:
                name = before + part
                self._has_shells |= part == _SHELL
                self.every[name], self.names[identity(inner)] = inner, name
                if inner._modules:
                    self._walk(inner, name + ".")

    def __enter__(self) -> Path:
        self._until_end.enter_context(_AS_WRITTEN)
        if self._has_shells:  # seen beside what is in them: that is known
            self._until_end.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message=".*when there are global hooks on modules")
        for hook in (
            register_module_forward_pre_hook(self.enter),
            register_module_forward_hook(self._leave, always_call=True),
        ):
            self._until_end.callback(hook.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._until_end.close()

    def enter(self, module: nn.Module, args: object = ()) -> None:
        """A module is called, of this model or of another."""
        elsewhere = threading.get_ident() != self._owner
        if identity(module) not in self.names and not (
            elsewhere and hasattr(module, "_is_replica")
        ):
            return
        if in_backward():  # which has threads of its own
            self._runs_again()
            return
        if elsewhere:
            self._elsewhere = True
            self.refuse_other_threads()
        if not self.modules:
            self._begins()
        self.modules.append(module)
        self._aside.enter(module, args)

    def _leave(self, module: nn.Module, *_: object) -> None:
        if identity(module) not in self.names or threading.get_ident() != self._owner:
            return
        self._aside.leave(module)
        if in_backward():
            return
        if self.modules and self.modules[-1] is module:
            self.modules.pop()
        elif any(m is module for m in self.modules):  # one that raised left others behind it
            while self.modules.pop() is not module:
                pass

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
