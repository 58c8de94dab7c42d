"""One frozen record of everything asked of `attend`.

Each backend gets a `Problem` that is known to be sound, and answers with a `Partial`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from ..masks import Mask
from ..positions import Alibi
from .checks import (
    bias_of,
    check_shapes,
    check_tensors,
    dropout_of,
    mask_of,
    number_of,
    offset_of,
    sinks_of,
)

_Function = TypeVar("_Function", bound=Callable)


# Kernels look for the largest score, and some mask, before they scale. A smaller scale may be 0 in
# float32, and −∞ · 0 is NaN; a larger one may send a score beyond what they take for "never".
LEAST_SCALE, MOST_SCALE = 1e-30, 1e15


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
    seed: Int[Tensor, ""] | None  # decides which weights drop; `answer` draws it
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
        return self.in_training

    @property
    def in_training(self) -> bool:
        """Whether a gradient may be asked of this, in a graph or not."""
        bias = self.bias.slopes if isinstance(self.bias, Alibi) else self.bias
        given = (self.query, self.key, self.value, bias, self.sinks)
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)

    @property
    def forward_mode(self) -> bool:
        """Whether forward-mode derivatives are being taken, which fused kernels do not have."""
        if torch.compiler.is_compiling():
            return False
        return torch.autograd.forward_ad._current_level >= 0

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


def constant(function: _Function) -> _Function:
    """To a compiler its result is a constant: it is called, not traced.

    As `torch.compiler.assume_constant_result`, which would load the compiler to say so.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def remembered(function: _Function) -> _Function:
    """Worked out once for each argument, and a constant to a compiler, which looks into caches."""
    known = functools.cache(function)
    told = constant(functools.wraps(function)(lambda *given: known(*given)))
    told.cache_clear = known.cache_clear  # pyright: ignore[reportAttributeAccessIssue]
    return told  # pyright: ignore[reportReturnType]


def in_a_graph() -> str | None:
    """Why what is no operator leaves a compiled graph to those that are."""
    compiling = torch.compiler.is_compiling()
    return "inside a compiled graph our own operators answer" if compiling else None


@constant  # PyTorch 2.11 traces is_exporting() as True in any graph
def in_an_export() -> str | None:
    """Why a kernel of a GPU leaves a graph that may go elsewhere to what runs anywhere."""
    exporting = torch.compiler.is_exporting()
    return "in an exported graph the tiled operator answers" if exporting else None


@remembered
def capability(device: torch.device) -> tuple[int, int]:
    """Of an NVIDIA GPU: which generation it is. AMD's numbers would pass for those of another."""
    return (0, 0) if torch.version.hip else torch.cuda.get_device_capability(device)


def is_mapped(tensor: object) -> bool:
    """Whether this tensor carries an axis that torch.func.vmap maps over."""
    if torch.compiler.is_compiling() or not isinstance(tensor, Tensor):
        return False
    return is_batchedtensor(tensor)


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
    check_tensors(query, key, value)
    query, key, value = _autocast(query, key, value)
    check_shapes(query, key, value)
    if torch.compiler.is_compiling():  # a graph takes no tensor twice in one differentiable step
        key = key.view_as(key) if key is query else key
        value = value.view_as(value) if value is query or value is key else value
    queries, keys, dim = query.shape[2], key.shape[2], query.shape[3]
    return Problem(
        query=query,
        key=key,
        value=value,
        mask=mask_of(mask, query, key),
        bias=bias_of(bias, query, key),
        scale=number_of("scale", scale, positive=False) if scale is not None else dim**-0.5,
        softcap=number_of("softcap", softcap, positive=True) if softcap is not None else None,
        sinks=sinks_of(sinks, query),
        dropout=dropout_of(dropout),
        seed=None,
        offset=offset_of(offset, query) if offset is not None else keys - queries,
    )


def autocasts(kind: str) -> bool:
    """Whether autocast is on for this kind of device (meta tensors have none to ask about)."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def without_autocast(kind: str) -> contextlib.AbstractContextManager[object]:
    """Where exact stays exact: what is asked already has the dtype that autocast wants."""
    return torch.autocast(kind, enabled=False) if autocasts(kind) else contextlib.nullcontext()


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast the tensors take its dtype, as they do for PyTorch's own SDPA."""
    kind = tensors[0].device.type
    if not autocasts(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in tensors)
