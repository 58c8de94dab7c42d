"""One call to attention, in whatever words a model made it, as `attend` would have it asked.

SDPA, `nn.MultiheadAttention` and `attend` itself: each is read here into the same few fields.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import attend
from ..attention.dense import steps
from ..attention.problem import pose, without_autocast
from ..convert import masks_from_torch
from ..masks import Mask, causal, dense
from ..observation import observe
from ..positions import Alibi
from .refusals import refuse_nested


@dataclasses.dataclass(frozen=True)
class Call:
    """What was asked, and how to give the answer in the caller's words."""

    query: Tensor  # (batch, heads, query, dim)
    key: Tensor  # (batch, kv_heads, key, dim)
    value: Tensor  # (batch, kv_heads, key, value_dim)
    mask: Mask | None = None
    bias: Tensor | Alibi | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0
    offset: int | Tensor | None = None
    # The answer as the model would have had it, for what a look must not change: dropout, weights.
    plain: Callable[[], Any] | None = None
    only_plain: bool = False  # whether nothing but that answer will do
    give: Callable[[Tensor], Any] = lambda out: out  # from (batch, heads, query, dim) to its words
    # The answer with the weights, (batch, heads, query, key), beside it, where they were asked for.
    give_weights: Callable[[Tensor, Tensor], Any] | None = None
    crosses: bool | None = None  # whether the keys are of another text; None where it is not told
    projection: Tensor | None = None  # W_O, (heads · value_dim, model), where the call holds it
    observing: dict[str, Any] | None = None  # what `observe` was asked beside: statistics, rows

    @property
    def asked(self) -> dict[str, Any]:
        """Everything but query, key and value and dropout, as `observe` takes it."""
        names = ("mask", "bias", "scale", "softcap", "sinks", "offset")
        return {name: getattr(self, name) for name in names}

    def attend(self) -> Tensor:
        return attend(self.query, self.key, self.value, dropout=self.dropout, **self.asked)

    def weights(self) -> Tensor:
        """All of them, before dropout, with their gradient: who asks for the matrix pays for it."""
        problem = pose(self.query, self.key, self.value, dropout=0.0, **self.asked)
        with without_autocast(self.query.device.type):
            return steps(problem).weights.to(problem.query.dtype)

    def answered(self, out: Tensor) -> Any:
        """The answer in the caller's words; weights and statistics are as they became."""
        if self.give_weights is not None:
            return self.give_weights(out, self.weights())
        if self.observing is None:
            return self.give(out)
        if self.observing.get("lse") is not None:
            raise ValueError(
                "observe(lse=) is of rows as they were, and heads are being cut or ablated; leave "
                "lse= out meanwhile."
            )
        seen = observe(self.query, self.key, self.value, **self.asked, **self.observing)
        seen.out = out
        return seen

    def replace(self, **changes: Any) -> Call:
        return dataclasses.replace(self, **changes)


def crosses(place: Any, call: Call) -> bool:
    """Whether the keys are of another text: as the call says, or as the layer's name does."""
    return call.crosses if call.crosses is not None else _sounds_crossing(place.name)


@functools.lru_cache(4096)
def _sounds_crossing(name: str) -> bool:
    return bool(re.search(r"cross|enc_?dec|encoder_attn", name, re.IGNORECASE))


def last_seen(call: Call) -> int:
    """How many keys there are up to the last that the last row may see."""
    keys = call.key.shape[2]
    if isinstance(call.offset, int):
        return min(keys, call.offset + call.query.shape[2])
    bits = call.mask.allowed if isinstance(call.mask, dense) else None
    if bits is None and isinstance(call.bias, Tensor):
        bits = ~forbids(call.bias)
    if bits is None or bits.shape[-1] != keys or bits.ndim < 2:
        return keys
    seen = bits[..., -1, :].reshape(-1, keys).any(0).nonzero()
    return int(seen[-1]) + 1 if len(seen) else keys


def forbids(bias: Tensor) -> Tensor:
    """Where a bias hides a key: models add −inf, the least float, or −10,000."""
    return bias <= -1e4


def of_sdpa(args: tuple, kwargs: dict) -> Call:
    """`F.scaled_dot_product_attention`: top-left causal, boolean True = may attend."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    inputs = [given["query"], given["key"], given["value"]]
    refuse_nested(*inputs)
    query, key, value, lead = _broadcast(*inputs, grouped=bool(given.get("enable_gqa")))
    extra, place = _causal_bias(given.get("attn_mask"), query.shape[-2], key.shape[-2])
    if given.get("is_causal"):
        place = 0
    if len(lead) != 2:  # (…, heads, tokens, dim): what stands before the heads is batch
        query, key, value = (_four(t) for t in (query, key, value))
        if extra is not None and extra.ndim > 2:
            extra = _four(extra.expand(*lead, *extra.shape[-2:]))
    mask, bias = _mask_or_bias(extra)
    if place is not None:
        mask = causal() if mask is None else mask & causal()

    def give(out: Tensor) -> Tensor:
        return out.reshape(*lead, *out.shape[-2:])

    return Call(
        query, key, value, mask=mask, bias=bias, scale=given.get("scale"),
        dropout=given.get("dropout_p", 0.0), offset=place,
        plain=lambda: F.scaled_dot_product_attention(*args, **kwargs), give=give,
        only_plain=bool(given.get("dropout_p", 0.0)),
    )  # fmt: skip


def _broadcast(
    query: Tensor, key: Tensor, value: Tensor, grouped: bool
) -> tuple[Tensor, Tensor, Tensor, torch.Size]:
    """SDPA lays one text, or one head, beside many; what stands before (tokens, dim) comes too."""
    tensors = (query, key, value)
    if grouped:  # heads as they are
        batch = torch.broadcast_shapes(*(t.shape[:-3] for t in tensors))
        query, key, value = (t.expand(*batch, *t.shape[-3:]) for t in tensors)
        return query, key, value, query.shape[:-2]
    lead = torch.broadcast_shapes(*(t.shape[:-2] for t in tensors))
    query, key, value = (t.expand(*lead, *t.shape[-2:]) for t in tensors)
    return query, key, value, lead


def _causal_bias(extra: Any, queries: int, keys: int) -> tuple[Tensor | None, int | None]:
    """A mask of a kind of its own: (None, where the first query stands) of one that is causal."""
    if extra is None or type(extra) in (Tensor, nn.Parameter):
        return extra, None
    known = sys.modules.get("torch.nn.attention.bias")  # else nothing can be one
    if known is None or not isinstance(extra, known.CausalBias):
        raise ValueError(
            f"attn_mask is a {type(extra).__name__}, a kind of tensor whose meaning is not known, "
            "so that what it hides cannot be recorded; give a plain tensor."
        )
    size = (extra.seq_len_q, extra.seq_len_kv)
    if extra.variant == known.CausalVariant.UPPER_LEFT or size[0] == size[1]:
        return None, 0
    if size != (queries, keys):
        raise ValueError(
            f"attn_mask is a causal bias of {size[0]} queries and {size[1]} keys, but {queries} "
            f"queries and {keys} keys came; make it of their sizes."
        )
    return None, keys - queries


def _four(tensor: Tensor) -> Tensor:
    while tensor.ndim < 4:
        tensor = tensor.unsqueeze(-3) if tensor.ndim == 3 else tensor.unsqueeze(0)
    return tensor.flatten(0, tensor.ndim - 4) if tensor.ndim > 4 else tensor


def _mask_or_bias(extra: Tensor | None) -> tuple[Mask | None, Tensor | None]:
    if extra is None:
        return None, None
    return (dense(extra), None) if extra.dtype == torch.bool else (None, extra)


def of_attend(args: tuple, kwargs: dict) -> Call:
    query, key, value, *_ = args
    names = ("bias", "scale", "softcap", "sinks", "offset")
    known: dict[str, Any] = {name: kwargs.get(name) for name in names}
    mask = kwargs.get("mask")
    mask = dense(mask) if isinstance(mask, Tensor) else mask
    return Call(
        query, key, value, mask=mask, dropout=kwargs.get("dropout") or 0.0,
        plain=lambda: attend(*args, **kwargs), only_plain=bool(kwargs.get("dropout")), **known,
    )  # fmt: skip


def of_observe(args: tuple, kwargs: dict) -> Call:
    call = of_attend(args, kwargs)
    beside = {name: kwargs[name] for name in ("stats", "rows", "lse") if name in kwargs}
    return call.replace(observing=beside, plain=lambda: observe(*args, **kwargs), only_plain=True)


_MHA = inspect.signature(F.multi_head_attention_forward)


def of_multihead(args: tuple, kwargs: dict) -> Call:
    """`F.multi_head_attention_forward`, where `nn.MultiheadAttention` always arrives."""
    bound = _MHA.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    batched = given["query"].ndim == 3
    query, key, value = _project(given, batched)
    mask, bias = _masks(given, batched, key.shape[2] - given["key"].shape[0])
    weight, weight_bias = given["out_proj_weight"], given["out_proj_bias"]
    dropout = given["dropout_p"] if given["training"] else 0.0

    def give(out: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        joined = F.linear(out.permute(2, 0, 1, 3).flatten(2), weight, weight_bias)
        if weights is not None:
            weights = weights.mean(1) if given["average_attn_weights"] else weights
            weights = weights if batched else weights[0]
        return (joined if batched else joined[:, 0]), weights

    def plain() -> tuple[Tensor, Tensor | None]:
        return F.multi_head_attention_forward(*args, **kwargs)

    return Call(
        query, key, value, mask=mask, bias=bias, dropout=dropout, give=give, plain=plain,
        give_weights=give if given["need_weights"] else None, projection=weight.T,
        only_plain=bool(given["need_weights"] or dropout),
        offset=given["key"].shape[0] - given["query"].shape[0],  # keys of its own stand behind all
        crosses=given["key"] is not given["query"],
    )  # fmt: skip


def _project(given: dict, batched: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The projections of the module anew: (tokens, batch, model) → (batch, heads, tokens, dim)."""
    inputs = [given[name] if batched else given[name].unsqueeze(1) for name in _NAMES]
    if given["use_separate_proj_weight"]:
        weights = [given[f"{name[0]}_proj_weight"] for name in _NAMES]
    else:
        weights = given["in_proj_weight"].chunk(3)
    biases = given["in_proj_bias"].chunk(3) if given["in_proj_bias"] is not None else (None,) * 3
    made = [F.linear(*three) for three in zip(inputs, weights, biases, strict=True)]
    for place, name in ((1, "bias_k"), (2, "bias_v")):
        if given[name] is not None:
            made[place] = torch.cat([made[place], given[name].expand(-1, made[place].shape[1], -1)])
    heads = given["num_heads"]
    split = [t.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for t in made]
    for place, name in ((1, "static_k"), (2, "static_v")):
        if given[name] is not None:
            split[place] = given[name].unflatten(0, (-1, heads))
    if given["add_zero_attn"]:
        split[1:] = [F.pad(t, (0, 0, 0, 1)) for t in split[1:]]
    query, key, value = split
    return query, key, value


_NAMES = ("query", "key", "value")


def _masks(given: dict, batched: bool, more: int) -> tuple[Mask | None, Tensor | None]:
    """Its masks, True = ignore; keys that the module adds by itself are seen by everyone."""
    masks = {name: given[name] for name in ("attn_mask", "key_padding_mask")}
    if masks["key_padding_mask"] is not None and not batched:
        masks["key_padding_mask"] = masks["key_padding_mask"].unsqueeze(0)
    if more > 0:
        masks = {n: F.pad(t, (0, more)) if t is not None else None for n, t in masks.items()}
    return masks_from_torch(**masks, num_heads=given["num_heads"])
