"""Modules that cannot hide attention: nobody need look at what they call.

Most functions that a model calls are called in its norms and linear layers, and each one that goes
by our mode costs several times what it costs alone. A leaf of PyTorch's own, or one whose forward
names nothing but sums and powers, works out no scores: it is let through, if what it is given is an
activation. What comes out is then one as well.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_KNOWN = (
    nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Dropout, nn.Identity,
    nn.Conv1d, nn.Conv2d, nn.GELU, nn.SiLU, nn.Tanh,
)  # fmt: skip
_MODULES = {"torch": torch, "nn": nn, "F": nn.functional}  # as they are called in a file
_HARMLESS = {
    *_MODULES, "functional", "to", "float", "type_as", "dtype", "float32", "float16", "bfloat16",
    "pow", "mean", "var", "sqrt", "rsqrt", "square", "abs", "silu", "gelu", "tanh",
    "weight", "bias", "eps", "variance_epsilon",
}  # fmt: skip

_MORE = CO_VARARGS | CO_VARKEYWORDS


@functools.lru_cache(1024)
def is_quiet(kind: type[nn.Module]) -> bool:
    """Whether leaves of this kind work out no scores, whoever wrote them."""
    if kind.__call__ is not nn.Module.__call__ or kind.__getattr__ is not nn.Module.__getattr__:
        return False
    if kind in _KNOWN:
        return True
    forward = kind.forward
    if not isinstance(forward, FunctionType):
        return False
    code = forward.__code__
    meant = all(forward.__globals__.get(n, _MODULES[n]) is _MODULES[n] for n in _MODULES)
    one_given = code.co_argcount == 2 and not code.co_kwonlyargcount and code.co_flags & _MORE == 0
    inner = code.co_freevars or any(isinstance(value, CodeType) for value in code.co_consts)
    multiplies = any("@" in step.argrepr for step in dis.get_instructions(code))
    return (
        meant and one_given and not inner and not multiplies and _HARMLESS.issuperset(code.co_names)
    )


class Aside:
    """Our mode, out of the way while a quiet module is at work. Only where it lies on top:
    somebody else's, laid over ours, is none of our business.
    """

    def __init__(self, mode: TorchFunctionMode, may_pass: Callable[[Any], bool]) -> None:
        self._mode, self._may_pass = mode, may_pass
        self._within: nn.Module | None = None

    def enter(self, module: nn.Module, args: Any) -> None:
        if module._modules or self._within is not None or not is_quiet(type(module)):
            return
        if module._forward_pre_hooks or "forward" in vars(module):  # it may do more than its kind
            return
        if torch.overrides._get_current_function_mode() is self._mode:
            torch._C._pop_torch_function_stack()  # first: to ask a tensor costs as much as a call
            self._within = module
            if not self._may_pass(args):
                self.leave(module)

    def leave(self, module: nn.Module) -> None:
        if self._within is module:
            torch._C._push_on_torch_function_stack(self._mode)
            self._within = None

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, *_: object) -> None:
        if self._within is not None:  # what broke off was no Exception: its hooks were not called
            self.leave(self._within)
