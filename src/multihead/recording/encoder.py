"""What PyTorch's modules give on their fast paths, which a watched model misses.

`nn.TransformerEncoder` packs the real tokens of a padded batch and unpacks them into zeros, before
the last norm; `nn.MultiheadAttention` and the layer around it answer a row that may see nothing
with NaN. These paths are closed while PyTorch's functions are watched, so both are done by hand.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .names import in_backward, of_kind
from .refusals import refuse_nested

_DEVICES = ("cpu", "cuda", "xpu", torch._C._get_privateuse1_backend_name())
_FORWARD = inspect.signature(nn.TransformerEncoder.forward)
_ATTENTION = inspect.signature(nn.MultiheadAttention.forward)


@contextlib.contextmanager
def as_fast_paths_give(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Have every encoder and attention inside give what it gives when nobody looks."""
    kinds = {
        nn.TransformerEncoder.forward: _Emptier,
        nn.TransformerEncoderLayer.forward: _Layer,
        nn.MultiheadAttention.forward: _Attention,
    }
    some = of_kind(modules, lambda kind: kind.forward in kinds)
    found = [(module, kinds[type(module).forward](module)) for module in some]
    hooks = [hook for module, one in found for hook in one.hooks(module)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Emptier:
    """Notes which rows an encoder is about to pack, and empties them behind its last layer."""

    def __init__(self, _: nn.Module) -> None:
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


class _Layer:
    """Tells the attention inside an encoder layer whether the layer's own fast path is missed."""

    def __init__(self, layer: Any) -> None:
        # Hooks of the model's own close the path; at this time none is ours.
        self.hooked = any(m._forward_hooks or m._forward_pre_hooks for m in layer.modules())

    def hooks(self, layer: nn.Module) -> list[Any]:
        return [layer.register_forward_pre_hook(self.begin, with_kwargs=True)]

    def begin(self, layer: Any, args: tuple, kwargs: dict) -> None:
        attention = layer.self_attn
        if not isinstance(attention, nn.MultiheadAttention) or self.hooked:
            return
        src = args[0] if args else kwargs["src"]
        _INSIDE[attention] = (
            _is_even(attention)
            and attention.in_proj_bias is not None
            and bool(layer.activation_relu_or_gelu)
            and layer.norm1.eps == layer.norm2.eps
            and _open(src, _tensors(layer, src))
        )


_INSIDE: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


class _Attention:
    """Puts NaN where the fast path has it: in rows of which some head may see nothing."""

    def __init__(self, _: nn.Module) -> None:
        pass

    def hooks(self, attention: nn.Module) -> list[Any]:
        return [
            attention.register_forward_pre_hook(self.begin, with_kwargs=True),
            attention.register_forward_hook(self.after, with_kwargs=True),
        ]

    def begin(self, attention: nn.Module, args: tuple, kwargs: dict) -> None:
        refuse_nested(*args, *kwargs.values())  # its slow path would give a reason of its own

    def after(self, attention: Any, args: tuple, kwargs: dict, output: Any) -> Any:
        given = _ATTENTION.bind(attention, *args, **kwargs).arguments
        inside = _INSIDE.pop(attention, False)
        masks = [given.get(name) for name in ("attn_mask", "key_padding_mask")]
        if all(mask is None for mask in masks) or in_backward():
            return output
        if not inside and not _takes_fast_path(attention, given, masks):
            return output
        blind = _sees_nothing(*masks, heads=attention.num_heads)  # (batch, row)
        return output[0].masked_fill(blind[..., None], torch.nan), *output[1:]


def _takes_fast_path(attention: Any, given: dict[str, Any], masks: list[Tensor | None]) -> bool:
    """The conditions of nn.MultiheadAttention's own forward."""
    query, parts = given["query"], (attention.in_proj_weight, attention.in_proj_bias)
    if query is not given["key"] or query is not given["value"] or not _is_even(attention):
        return False
    if any(mask is not None and mask.is_floating_point() for mask in masks):
        return False
    if attention.bias_k is not None or attention.bias_v is not None or attention.add_zero_attn:
        return False
    if any(part is not None and part.dtype != query.dtype for part in parts):
        return False
    own = (*parts, attention.out_proj.weight, attention.out_proj.bias)
    return _open(query, [query, *(tensor for tensor in own if tensor is not None)])


def _is_even(attention: Any) -> bool:
    return (
        not attention.training
        and attention.batch_first
        and attention._qkv_same_embed_dim
        and attention.num_heads % 2 == 0
    )


def _sees_nothing(links: Tensor | None, padding: Tensor | None, heads: int) -> Tensor:
    """Which rows, (batch or 1, row or 1), have a head to which every key is hidden."""
    hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    if links is not None:
        bits = links if links.dtype == torch.bool else links == -torch.inf
        hidden = bits[None, None] if bits.ndim == 2 else bits.unflatten(0, (-1, heads))
    if padding is not None:
        bits = padding if padding.dtype == torch.bool else padding == -torch.inf
        hidden = hidden.to(bits.device) | bits[:, None, None]
    return hidden.all(-1).any(1)


def _packs(encoder: Any, src: Tensor, padding: Tensor) -> bool:
    """Whether the fast path would be taken: the conditions of its own forward."""
    first = encoder.layers[0]
    if not getattr(encoder, "use_nested_tensor", False) or first.training:
        return False
    left_aligned = torch._nested_tensor_from_mask_left_aligned  # type: ignore[attr-defined]
    if not _open(src, _tensors(first, src)):
        return False
    return not getattr(encoder, "mask_check", True) or left_aligned(src, padding == 0)


def _tensors(layer: Any, src: Tensor) -> list[Tensor]:
    """What an encoder layer works with."""
    parts = (layer.self_attn.out_proj, layer.norm1, layer.norm2, layer.linear1, layer.linear2)
    own = [layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias]
    return [src, *own, *(tensor for part in parts for tensor in (part.weight, part.bias))]


def _open(src: Tensor, tensors: list[Tensor]) -> bool:
    """Whether nothing about the tensors, nor the mode we run in, closes a fast path."""
    if not torch.backends.mha.get_fastpath_enabled() or torch.is_autocast_enabled():
        return False
    if src.dim() != 3 or src.is_nested or src.device.type not in _DEVICES:
        return False
    if any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
        return False
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
