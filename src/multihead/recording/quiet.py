"""Modules that cannot hide attention: nobody need look at what they call.

Most functions that a model calls are called in its norms and linear layers, and each one that goes
by our mode costs several times what it costs alone. PyTorch's own and transformers' norms and
activations work out no scores, as long as they are what they were when they were written: they are
let through, if what they are given is an activation. What comes out is then one as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

_TORCH = {
    nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Dropout, nn.Identity,
    nn.Conv1d, nn.Conv2d, nn.GELU, nn.SiLU, nn.Tanh,
}  # fmt: skip


@functools.lru_cache(1024)
def is_quiet(kind: type[nn.Module], forward: Any) -> bool:
    """Whether leaves of this kind, which run this forward, work out no scores."""
    written = isinstance(forward, FunctionType) and forward.__module__ == kind.__module__
    if not written or kind.__call__ is not nn.Module.__call__:
        return False
    norm = kind.__module__.startswith("transformers.models.") and kind.__name__.endswith("RMSNorm")
    return kind in _TORCH or norm or kind.__module__ == "transformers.activations"


class Aside:
    """Our mode, out of the way while a quiet module is at work. Only where it lies on top:
    somebody else's, laid over ours, is none of our business.
    """

    def __init__(self, mode: TorchFunctionMode, may_pass: Callable[[Any], bool]) -> None:
        self._mode, self._may_pass = mode, may_pass
        self._within: nn.Module | None = None

    def enter(self, module: nn.Module, args: Any) -> None:
        self.restore()
        if module._modules or not is_quiet(type(module), type(module).forward):
            return
        if module._forward_pre_hooks or "forward" in vars(module):  # it may do more than its kind
            return
        if len(hooks._global_forward_pre_hooks) > 1 or len(hooks._global_forward_hooks) > 1:
            return  # and so may others', beside ours
        if torch.overrides._get_current_function_mode() is self._mode:
            torch._C._pop_torch_function_stack()  # first: to ask a tensor costs as much as a call
            self._within = module
            if not self._may_pass(args):
                self.restore()

    def leave(self, module: nn.Module) -> None:
        if self._within is module:
            self.restore()

    def restore(self) -> None:
        """Put our mode back, also where a module broke off by what is no Exception: no hook is
        called then.
        """
        if self._within is not None:
            torch._C._push_on_torch_function_stack(self._mode)
            self._within = None

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
