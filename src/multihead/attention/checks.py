"""Every check of what is asked of `attend`, and its message: expected, came, what to do.

Messages are made only when needed: a compiler that saw a size in a text would fix that size.
"""

from __future__ import annotations

import contextlib
import operator

import torch
from torch import Tensor

from .. import masks
from ..masks import Mask
from ..positions import Alibi

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_FAR = 2**40  # positions beyond this would soon overflow


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    named = (("query", query), ("key", key), ("value", value))
    for name, tensor in named:
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"{name} must be a torch.Tensor, but a {type(tensor).__name__} came; "
                "convert it, as in torch.tensor(numbers)."
            )
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided:
            raise ValueError(
                f"{name} must be a dense tensor of float64, float32, bfloat16 or float16, but "
                f"{tensor.dtype} ({tensor.layout}) came; convert it, as in tensor.float()."
            )
        if tensor.ndim != 4:
            raise ValueError(
                f"{name} must have 4 axes (batch, heads, tokens, dim), but it has {tensor.ndim}; "
                f"bring it there, as in {name}.reshape(batch, heads, tokens, dim).\n"
                f"  {_shapes(query, key, value)}"
            )
    if not query.device == key.device == value.device:
        places = "  ".join(f"{name} {tensor.device}" for name, tensor in named)
        raise ValueError(f"query, key and value must be on one device; move them.\n  {places}")


def check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            "query, key and value must have one dtype; convert them with .to().\n"
            f"  query {query.dtype}  key {key.dtype}  value {value.dtype}"
        )
    wrong = None
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        for axis, size in zip(("heads", "tokens", "dim"), tensor.shape[1:], strict=True):
            if size == 0 and wrong is None:
                wrong = f"{name} has no {axis}; attention needs at least one"
    (batch, heads, _, dim), (_, kv_heads, keys, key_dim) = query.shape, key.shape
    if wrong is None and not batch == key.shape[0] == value.shape[0]:
        wrong = (
            "query, key and value must have one batch size; expand with .expand(batch, -1, -1, -1)"
        )
    elif wrong is None and kv_heads != value.shape[1]:
        wrong = (
            f"key has {kv_heads} heads but value has {value.shape[1]}; "
            "give each key head its value head"
        )
    elif wrong is None and heads % kv_heads != 0:
        wrong = (
            f"key has {kv_heads} heads but query has {heads}; "
            "query heads must be a multiple of key heads"
        )
    elif wrong is None and keys != value.shape[2]:
        wrong = f"key has {keys} tokens but value has {value.shape[2]}; give each key its value"
    elif wrong is None and dim != key_dim:
        wrong = (
            f"query has dim {dim} but key has dim {key_dim}; they are multiplied with one another, "
            "so project both to one size (value may differ)"
        )
    if wrong is not None:
        raise ValueError(f"{wrong}.\n  {_shapes(query, key, value)}")


def mask_of(mask: Mask | Tensor | None, query: Tensor, key: Tensor) -> Mask | None:
    if mask is None:
        return None
    if isinstance(mask, Tensor):
        if mask.dtype != torch.bool:
            raise ValueError(
                f"a mask tensor must be boolean, True = may attend, but {mask.dtype} came; "
                "give numbers to add to the scores as bias=, or convert with .bool()."
            )
        mask = masks.dense(mask)
    if not isinstance(mask, Mask):
        raise ValueError(
            f"mask must be a multihead mask or a boolean tensor, but a {type(mask).__name__} came; "
            "write for example mask=mh.causal() & mh.window(256)."
        )
    mask.check(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return mask


def bias_of(bias: Tensor | Alibi | None, query: Tensor, key: Tensor) -> Tensor | Alibi | None:
    if bias is None:
        return None
    if isinstance(bias, Alibi):
        bias.check(query.shape[1])
        wide = torch.promote_types(query.dtype, torch.float32)
        slopes = bias.slopes.to(query.device, wide)
        return bias if slopes is bias.slopes else Alibi(slopes)
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        came = bias.dtype if isinstance(bias, Tensor) else f"a {type(bias).__name__}"
        raise ValueError(
            f"bias must be a floating-point tensor or mh.alibi(slopes), but {came} came; "
            "say who may look at whom as mask=."
        )
    want = (*query.shape[:3], key.shape[2])
    shape = (1,) * (4 - bias.ndim) + tuple(bias.shape)
    if len(shape) != 4 or any(n != 1 and n != m for n, m in zip(shape, want, strict=True)):
        raise ValueError(
            "bias does not broadcast to (batch, heads, queries, keys); reshape it.\n"
            f"  bias {tuple(bias.shape)}  expected {want}, or 1 in place of any"
        )
    _same_device("bias", bias, query)
    return bias.reshape(shape)


def sinks_of(sinks: Tensor | None, query: Tensor) -> Tensor | None:
    if sinks is None:
        return None
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        came = sinks.dtype if isinstance(sinks, Tensor) else f"a {type(sinks).__name__}"
        raise ValueError(
            f"sinks must be a floating-point tensor, but {came} came; give one logit for each head."
        )
    if sinks.ndim != 1 or sinks.shape[0] != query.shape[1]:
        raise ValueError(
            "sinks must be one logit for each query head; give a tensor of that many.\n"
            f"  sinks {tuple(sinks.shape)}  expected ({query.shape[1]},)"
        )
    _same_device("sinks", sinks, query)
    return sinks


def offset_of(offset: int | Tensor, query: Tensor) -> int | Tensor:
    if not isinstance(offset, Tensor):
        if not isinstance(offset, int | torch.SymInt) and getattr(offset, "ndim", 0) == 0:
            with contextlib.suppress(TypeError):
                offset = operator.index(offset)  # an integer of NumPy's, say
        if isinstance(offset, bool) or not isinstance(offset, int | torch.SymInt):
            raise ValueError(
                f"offset must be an int or an integer tensor, but {offset!r} came; "
                "give the position of the first query among the keys."
            )
        if not -_FAR < offset < _FAR:
            raise ValueError(f"offset must lie within ±2**40, but {offset} came; give a position.")
        return offset
    if offset.is_floating_point() or offset.dtype == torch.bool or offset.is_complex():
        raise ValueError(
            f"offset must hold whole numbers, but {offset.dtype} came; convert it with .long()."
        )
    if offset.ndim != 1 or offset.shape[0] != query.shape[0]:
        raise ValueError(
            "offset must be an int, or one number for each batch row; give a tensor of that many.\n"
            f"  offset {tuple(offset.shape)}  expected ({query.shape[0]},)"
        )
    return offset.to(query.device, torch.int64)


def dropout_of(dropout: float) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(
            f"dropout must be at least 0 and below 1, but {dropout!r} came; give the share of "
            "weights to drop, as 0.1."
        )
    return float(dropout)


def number_of(name: str, value: float, *, positive: bool) -> float:
    number = not isinstance(value, bool) and isinstance(value, int | float | torch.SymFloat)
    if not number or not -1e300 < value < 1e300 or (positive and value <= 0):
        kind = "a positive finite number" if positive else "a finite number"
        raise ValueError(f"{name} must be {kind}, but {value!r} came; give one, or None.")
    return value * 1.0


def _same_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        raise ValueError(
            f"{name} must be on the device of query; move it.\n"
            f"  {name} {tensor.device}  query {query.device}"
        )


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    named = {"query": query, "key": key, "value": value}
    return "  ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
