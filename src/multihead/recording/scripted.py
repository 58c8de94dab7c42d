"""What torch.jit made of a model: it runs outside of Python, where no call of it can be seen."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from types import FunctionType

import torch
from torch import nn

_SOFTMAX = ("aten::softmax", "aten::_softmax", "aten::scaled_dot_product_attention")
_PRODUCTS = re.compile(r"aten::(matmul|bmm|baddbmm|einsum)\b")
_DEEP = 4  # helpers that call helpers
_EVERY_MODULES = frozenset(vars(nn.Module()))  # fields that hold none: parameters, modules, hooks


def refuse_modules(modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Raise for a scripted module."""
    for name, module in modules:
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{name or 'the model'} is a torch.jit module, whose calls run outside of Python "
                "and cannot be seen; give the module it was made from."
            )


def refuse_functions(modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Raise for a scripted function that works attention out.

    Others are common (a fused GELU) and hide nothing that is looked for.
    """
    for name, module in modules:
        fields = vars(module)
        if _is_torchs_own(type(module)) and not module._modules and "forward" not in fields:
            continue  # a layer that runs what PyTorch wrote: most of a model's modules are such
        own = (value for key, value in fields.items() if key not in _EVERY_MODULES)
        for function in (*_held(own), *_named(type(module))):
            if _works_attention_out(str(function.graph)):
                raise ValueError(
                    f"{name or 'the model'} calls {function.name}, a torch.jit function that works "
                    "attention out, outside of Python where it cannot be seen; have it call the "
                    "function it was made from."
                )


@functools.lru_cache(1024)
def _is_torchs_own(kind: type) -> bool:
    return kind.__module__.startswith("torch.nn.modules.")


@functools.lru_cache(1024)  # isinstance would ask a configuration for its class, which takes long
def _holds(kind: type) -> bool:
    """Whether a value of this kind is a scripted function, or may hold some."""
    return issubclass(kind, torch.jit.ScriptFunction | list | tuple) or kind is dict


def _works_attention_out(graph: str) -> bool:
    return any(kind in graph for kind in _SOFTMAX) or len(_PRODUCTS.findall(graph)) > 1


def _held(values: Iterable[object]) -> Iterator[torch.jit.ScriptFunction]:
    """Those that a module keeps, in lists and dicts too."""
    for value in values:
        if not _holds(type(value)):
            continue
        if isinstance(value, torch.jit.ScriptFunction):
            yield value
        elif isinstance(value, list | tuple):
            yield from _held(value)
        elif type(value) is dict:
            yield from _held(value.values())


@functools.lru_cache(1024)  # a model has many modules of a kind
def _named(kind: type) -> tuple[torch.jit.ScriptFunction, ...]:
    """Those that a module's own methods name, or the functions of its file that they call."""
    found: list[torch.jit.ScriptFunction] = []
    own = [c for c in kind.__mro__ if not c.__module__.startswith("torch.")]
    todo = [f for c in own for f in vars(c).values() if isinstance(f, FunctionType)]
    seen: set[int] = set()
    for _ in range(_DEEP):
        values = [f.__globals__.get(n) for f in todo for n in f.__code__.co_names]
        found += _held(values)
        todo = [
            v for v in values
            if isinstance(v, FunctionType) and v.__module__ == kind.__module__ and id(v) not in seen
        ]  # fmt: skip
        seen |= {id(v) for v in todo}
    return tuple(found)
