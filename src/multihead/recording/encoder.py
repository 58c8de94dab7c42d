"""`nn.TransformerEncoder` leaves padded rows empty on its fast path, which a watched model misses.

That path packs the real tokens of a padded batch and unpacks them into zeros, before the last norm.
It is closed while PyTorch's functions are watched, so the zeros are put there by hand.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_DEVICES = ("cpu", "cuda", "xpu", torch._C._get_privateuse1_backend_name())
_FORWARD = inspect.signature(nn.TransformerEncoder.forward)


@contextlib.contextmanager
def emptied_padding(model: nn.Module) -> Iterator[None]:
    """Have every encoder inside give what it gives when nobody looks."""
    hooks = [
        hook
        for module in model.modules()
        if type(module).forward is nn.TransformerEncoder.forward
        for hook in _Emptier().hooks(module)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Emptier:
    """Notes which rows an encoder is about to pack, and empties them behind its last layer."""

    def __init__(self) -> None:
        self.padded: Tensor | None = None  # (batch, token), while a packed pass is under way

    def hooks(self, encoder: nn.Module) -> list[Any]:
        begins = encoder.register_forward_pre_hook(self.begin, with_kwargs=True)
        if isinstance(encoder.norm, nn.Module):
            return [begins, encoder.norm.register_forward_pre_hook(self.before_norm)]
        return [begins, encoder.register_forward_hook(self.after)]

    def begin(self, encoder: nn.Module, args: tuple, kwargs: dict) -> None:
        given = _FORWARD.bind(encoder, *args, **kwargs).arguments
        src, padding = given["src"], given.get("src_key_padding_mask")
        self.padded = None
        if padding is not None and given.get("mask") is None and _packs(encoder, src, padding):
            self.padded = padding != 0

    def before_norm(self, norm: nn.Module, args: tuple) -> tuple:
        return (self.after(norm, (), args[0]), *args[1:])

    def after(self, module: nn.Module, args: tuple, out: Tensor) -> Tensor:
        padded, self.padded = self.padded, None
        return out if padded is None else out.masked_fill(padded[..., None], 0.0)


def _packs(encoder: Any, src: Tensor, padding: Tensor) -> bool:
    """Whether the fast path would be taken: the conditions of its own forward."""
    first = encoder.layers[0]
    if not getattr(encoder, "use_nested_tensor", False) or first.training:
        return False
    if not torch.backends.mha.get_fastpath_enabled() or torch.is_autocast_enabled():
        return False
    if src.dim() != 3 or src.is_nested or src.device.type not in _DEVICES:
        return False
    left_aligned = torch._nested_tensor_from_mask_left_aligned  # type: ignore[attr-defined]
    if getattr(encoder, "mask_check", True) and not left_aligned(src, padding == 0):
        return False
    tensors = [src, first.self_attn.in_proj_weight, first.self_attn.in_proj_bias]
    parts = (first.self_attn.out_proj, first.norm1, first.norm2, first.linear1, first.linear2)
    tensors += [tensor for part in parts for tensor in (part.weight, part.bias)]
    if any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
