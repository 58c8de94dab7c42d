"""What a layer and a call of it must fulfil, and the message where they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..attention.checks import dropout_of
from ..attention.problem import autocasts
from ..cache import Cache
from ..masks import Mask
from ..positions import Alibi, Rope

if TYPE_CHECKING:
    from . import MultiHeadAttention


def check(
    layer: MultiHeadAttention,
    x: Tensor,
    context: Tensor | None,
    positions: Tensor | None,
    cache: Cache | None,
) -> None:
    """Raise a ValueError where a call does not fit its layer: expected, came, what to do."""
    for name, given in (("x", x), ("context", context), ("positions", positions)):
        if not isinstance(given, Tensor) and (name == "x" or given is not None):
            raise ValueError(
                f"{name} must be a torch.Tensor, but a {type(given).__name__} came; convert it."
            )
    if cache is not None and not isinstance(cache, Cache):
        raise ValueError(
            f"cache must come from new_cache, but a {type(cache).__name__} came; make one."
        )
    if x.ndim not in (2, 3) or x.shape[-1] != layer.d_model:
        raise ValueError(
            f"x must be (batch, tokens, {layer.d_model}) or (tokens, {layer.d_model}), "
            f"but {tuple(x.shape)} came."
        )
    size = layer.d_context or layer.d_model
    if context is not None and (context.ndim != x.ndim or context.shape[-1] != size):
        raise ValueError(
            f"context must have the axes of x and {size} features, but it does not.\n"
            f"  x {tuple(x.shape)}  context {tuple(context.shape)}"
        )
    known = cache is not None and cache.context
    if layer.d_context is not None and context is None and not known:
        raise ValueError(
            f"this layer attends to a context of {size} features, but none came; "
            "give one, as in attn(x, context)."
        )
    if context is not None and known:
        raise ValueError(
            "the cache holds a context already, and another came; leave it out, or make another."
        )
    if layer.rope is not None and context is not None:
        raise ValueError(
            "rope places the tokens of one text, and a context is another; "
            "build a layer without rope to attend to a context."
        )
    if positions is not None and layer.rope is None:
        raise ValueError("positions place tokens by rope, and this layer has none; leave them out.")
    own = layer.out.weight.dtype
    for name, given in (("x", x), ("context", context)):
        if given is not None and given.dtype != own and not autocasts(given.device.type):
            raise ValueError(
                f"{name} is {given.dtype} and the layer {own}; convert one of them with .to()."
            )


def require(holds: bool, rule: str, **came: int) -> None:
    if not holds:
        raise ValueError(f"{rule}.\n  " + "  ".join(f"{name} {n}" for name, n in came.items()))


def check_cache(cache: Cache, mask: Mask | None) -> None:
    """Raise a ValueError where a mask wants more of a cache than it can give."""
    if mask is not None and not isinstance(mask, Mask):
        return  # attend says what is wrong with it
    if mask is None or mask.reach()[1] > 0:
        raise ValueError(
            f"with a cache no query may look ahead, but the mask is {mask}; add mh.causal()."
        )
    if cache.back is None:
        return
    if not mask.relative():
        raise ValueError(
            f"this cache keeps {cache.back} keys, and {mask} looks at where keys stand in the "
            "whole text; build the layer without a window, or leave this mask out."
        )
    if -mask.reach()[0] > cache.back:
        raise ValueError(
            f"this cache keeps {cache.back} keys, and {mask} looks further back; "
            "make a new cache with new_cache of this layer."
        )


def check_options(sizes: dict, *, mask, rope, alibi, head_gate, dropout) -> None:
    """Raise a ValueError where a layer cannot be built as asked."""
    for name, size in sizes.items():
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(
                f"{name} must be a whole number from 1 on, but {size!r} came; give one."
            )
    kinds = {"mask": (mask, Mask, "mh.causal()"), "rope": (rope, Rope, "mh.rope(10_000)")}
    for name, (given, kind, example) in kinds.items():
        if given is not None and not isinstance(given, kind):
            raise ValueError(f"{name} must be {example} or the like, but {given!r} came; give one.")
    if not isinstance(alibi, bool | Alibi):
        raise ValueError(f"alibi must be True or mh.alibi(slopes), but {alibi!r} came; give one.")
    if isinstance(alibi, Alibi):
        alibi.check(sizes["num_heads"])
    if not (isinstance(head_gate, bool) or (isinstance(head_gate, str) and head_gate == "trained")):
        raise ValueError(f"head_gate must be True, False or 'trained', but {head_gate!r} came.")
    dropout_of(dropout)


def described(layer: MultiHeadAttention) -> str:
    """A layer in a line, with what differs from the usual."""
    words = [f"{layer.d_model}, {layer.num_heads}"]
    words.append(f"num_kv_heads={layer.num_kv_heads}, head_dim={layer.head_dim}")
    if layer.v_head_dim != layer.head_dim:
        words.append(f"v_head_dim={layer.v_head_dim}")
    for name in ("d_context", "mask", "rope", "alibi", "softcap", "scale"):
        if (value := getattr(layer, name)) is not None:
            words.append(f"{name}={value}")
    return ", ".join(words + ([f"dropout={layer.dropout}"] if layer.dropout else []))
