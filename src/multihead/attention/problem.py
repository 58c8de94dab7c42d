"""One frozen record of everything asked of `attend`, and every check of it.

Each backend gets a `Problem` that is known to be sound, and answers with a `Partial`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import masks
from ..masks import Mask
from ..positions import Alibi


class Partial(NamedTuple):
    """What attention over some keys gives: enough to merge it with attention over others.

    `lse` is the log-sum-exp of each row's scores, −inf where the row saw nothing.
    """

    out: Float[Tensor, "batch heads query value_dim"]
    lse: Float[Tensor, "batch heads query"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Everything asked, checked: shapes agree, defaults are filled in, biases have four axes."""

    query: Float[Tensor, "batch heads query dim"]
    key: Float[Tensor, "batch kv_heads key dim"]
    value: Float[Tensor, "batch kv_heads key value_dim"]
    mask: Mask | None
    bias: Float[Tensor, "#batch #heads #query #key"] | Alibi | None
    scale: float
    softcap: float | None
    sinks: Float[Tensor, "heads"] | None
    dropout: float
    seed: Int[Tensor, ""] | None  # decides which weights drop; drawn where dropout > 0
    offset: int | Int[Tensor, "batch"]

    @property
    def group(self) -> int:
        """How many query heads read one key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def differentiable(self) -> bool:
        """Whether gradients or transforms may be asked of this: else a backend need not prepare."""
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return True
        bias = self.bias.slopes if isinstance(self.bias, Alibi) else self.bias
        given = (self.query, self.key, self.value, bias, self.sinks)
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)

    def row(self, rows: slice) -> Problem:
        """The same problem for some rows of the batch alone."""
        bias = self.bias
        if isinstance(bias, Tensor) and bias.shape[0] > 1:
            bias = bias[rows]
        return dataclasses.replace(
            self,
            query=self.query[rows],
            key=self.key[rows],
            value=self.value[rows],
            mask=None if self.mask is None else self.mask.row(rows),
            bias=bias,
            offset=self.offset[rows] if isinstance(self.offset, Tensor) else self.offset,
        )


def exact(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scores, softmax and lse: float32 inside, float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def pose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None,
    bias: Tensor | Alibi | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    dropout: float,
    offset: int | Tensor | None,
) -> Problem:
    """Check everything that was asked and fill in the defaults."""
    _check_tensors(query, key, value)
    query, key, value = _autocast(query, key, value)
    _check_shapes(query, key, value)
    queries, keys, dim = query.shape[2], key.shape[2], query.shape[3]
    return Problem(
        query=query,
        key=key,
        value=value,
        mask=_mask(mask, query, key),
        bias=_bias(bias, query, key),
        scale=_number("scale", scale, positive=False) if scale is not None else dim**-0.5,
        softcap=_number("softcap", softcap, positive=True) if softcap is not None else None,
        sinks=_sinks(sinks, query),
        dropout=_dropout(dropout),
        # A seed of torch's own generator, so that torch.manual_seed decides what drops.
        seed=torch.randint(2**62, (), device=query.device) if dropout else None,
        offset=_offset(offset, query) if offset is not None else keys - queries,
    )


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a torch.Tensor, but a {type(tensor).__name__} came.")
        if not tensor.is_floating_point():
            raise ValueError(
                f"{name} must hold floating-point numbers, but {tensor.dtype} came; "
                "embed or convert it first, as in tensor.float()."
            )
        if tensor.ndim != 4:
            raise ValueError(
                f"{name} must have 4 axes (batch, heads, tokens, dim), but it has {tensor.ndim}; "
                f"add the missing ones, as in {name}[None] or {name}.unflatten(-1, (heads, dim))"
                f".transpose(1, 2).\n  {_shapes(query, key, value)}"
            )
    if len({tensor.device for tensor in named.values()}) > 1:
        places = "  ".join(f"{name} {tensor.device}" for name, tensor in named.items())
        raise ValueError(f"query, key and value must be on one device; move them.\n  {places}")


def autocasts(kind: str) -> bool:
    """Whether autocast is on for this kind of device (meta tensors have none to ask about)."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast the tensors take its dtype, as they do for PyTorch's own SDPA."""
    kind = tensors[0].device.type
    if not autocasts(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in tensors)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    def require(holds: bool, rule: str) -> None:
        if not holds:
            raise ValueError(f"{rule}.\n  {_shapes(query, key, value)}")

    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            "query, key and value must have one dtype; convert them with .to().\n"
            f"  query {query.dtype}  key {key.dtype}  value {value.dtype}"
        )
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        for axis, size in zip(("heads", "tokens", "dim"), tensor.shape[1:], strict=True):
            require(size > 0, f"{name} has no {axis}; attention needs at least one")
    (batch, heads, _, dim), (_, kv_heads, keys, key_dim) = query.shape, key.shape
    require(
        batch == key.shape[0] == value.shape[0],
        "query, key and value must have one batch size; expand with .expand(batch, -1, -1, -1)",
    )
    require(
        kv_heads == value.shape[1],
        f"key has {kv_heads} heads but value has {value.shape[1]}; "
        "each key head needs its value head",
    )
    require(
        heads % kv_heads == 0,
        f"key has {kv_heads} heads but query has {heads}; "
        "query heads must be a multiple of key heads",
    )
    require(
        keys == value.shape[2],
        f"key has {keys} tokens but value has {value.shape[2]}; each key needs its value",
    )
    require(
        dim == key_dim,
        f"query has dim {dim} but key has dim {key_dim}; they are multiplied with one another and "
        "must agree (value may differ)",
    )


def _mask(mask: Mask | Tensor | None, query: Tensor, key: Tensor) -> Mask | None:
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


def _bias(bias: Tensor | Alibi | None, query: Tensor, key: Tensor) -> Tensor | Alibi | None:
    if bias is None:
        return None
    if isinstance(bias, Alibi):
        bias.check(query.shape[1])
        slopes = bias.slopes.to(query.device, exact(query.dtype))
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
            "bias does not broadcast to (batch, heads, queries, keys).\n"
            f"  bias {tuple(bias.shape)}  expected {want}, or 1 in place of any"
        )
    _same_device("bias", bias, query)
    return bias.reshape(shape)


def _sinks(sinks: Tensor | None, query: Tensor) -> Tensor | None:
    if sinks is None:
        return None
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        raise ValueError("sinks must be a floating-point tensor (heads,): one logit for each head.")
    if tuple(sinks.shape) != (query.shape[1],):
        raise ValueError(
            "sinks must hold one logit for each query head.\n"
            f"  sinks {tuple(sinks.shape)}  expected ({query.shape[1]},)"
        )
    _same_device("sinks", sinks, query)
    return sinks


def _offset(offset: int | Tensor, query: Tensor) -> int | Tensor:
    if not isinstance(offset, Tensor):
        if isinstance(offset, bool | float) or not hasattr(offset, "__index__"):
            raise ValueError(f"offset must be an int or an integer tensor, but {offset!r} came.")
        return offset
    if offset.is_floating_point() or offset.dtype == torch.bool or offset.is_complex():
        raise ValueError(f"offset must hold whole numbers, but {offset.dtype} came.")
    if tuple(offset.shape) != (query.shape[0],):
        raise ValueError(
            "offset must be an int, or hold one number for each batch row.\n"
            f"  offset {tuple(offset.shape)}  expected ({query.shape[0]},)"
        )
    return offset.to(query.device)


def _dropout(dropout: float) -> float:
    if not isinstance(dropout, int | float) or not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be at least 0 and below 1, but {dropout!r} came.")
    return float(dropout)


def _number(name: str, value: float, *, positive: bool) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or (positive and value <= 0):
        kind = "a positive finite number" if positive else "a finite number"
        raise ValueError(f"{name} must be {kind} or None, but {value!r} came.")
    return float(value)


def _same_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        raise ValueError(
            f"{name} must be on the device of query; move it.\n"
            f"  {name} {tensor.device}  query {query.device}"
        )


def _shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    named = {"query": query, "key": key, "value": value}
    return "  ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
