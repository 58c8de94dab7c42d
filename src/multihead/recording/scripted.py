"""What torch.jit made of a model: it runs outside of Python, where no call of it can be seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

_ATTENTION = ("aten::softmax", "aten::_softmax", "aten::scaled_dot_product_attention")


def refuse_scripted(modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Raise for a scripted module, and for a scripted function that works attention out.

    Others are common (a fused GELU) and hide nothing that is looked for.
    """
    for name, module in modules:
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(
                f"{name or 'the model'} is a torch.jit module, whose calls run outside of Python "
                "and cannot be seen; give the module it was made from."
            )
        for function in _functions(module):
            if any(kind in str(function.graph) for kind in _ATTENTION):
                raise ValueError(
                    f"{name or 'the model'} calls {function.name}, a torch.jit function with a "
                    "softmax, which runs outside of Python and cannot be seen; have it call the "
                    "function it was made from."
                )


def _functions(module: nn.Module) -> Iterator[torch.jit.ScriptFunction]:
    """Those that it holds, and those of its file that its forward names."""
    forward = type(module).forward
    named = getattr(forward, "__code__", None)
    around = getattr(forward, "__globals__", {})
    held = [*vars(module).values(), *(around.get(n) for n in (named.co_names if named else ()))]
    yield from (one for one in held if isinstance(one, torch.jit.ScriptFunction))
