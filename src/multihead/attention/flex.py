"""FlexAttention: every mask and bias on a GPU, compiled once for each kind of mask.

PyTorch's own kernel asks two small functions about single places, which its compiler writes into
it: `mask_mod`, whether a query may see a key, and `score_mod`, what its score becomes. Which blocks
of the map are empty or full it is told by our masks (flex_blocks.py), so that nothing n × n is ever
made. In a compiled graph it is compiled with the rest.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import masks
from ..masks import Mask
from ..masks.mask import both, either, outside
from ..positions import Alibi
from .flex_blocks import BLOCK, lists_of
from .merge import add_sinks
from .problem import Partial, Problem, in_an_export

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

ABOUT = "PyTorch's FlexAttention on a GPU: every mask, bias, softcap, sinks"
_LITTLE = 2**24  # fewer scores than this are there before it is compiled
_KINDS = 4096  # of masks and shapes; PyTorch stops compiling after 8, and then builds the matrix

At = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (batch, head, query, key), single places


def refuses(problem: Problem) -> str | None:
    """Why this backend cannot answer, or None."""
    p = problem
    if p.query.device.type != "cuda":
        return f"the kernel needs a GPU, and these tensors are on {p.query.device.type}"
    if (reason := in_an_export()) is not None:
        return reason
    if p.query.dtype == torch.float64:
        return "the kernel knows no float64"
    if p.dropout:
        return "the kernel knows no dropout"
    if p.forward_mode or torch._C._are_functorch_transforms_active():
        return "the kernel knows neither forward-mode derivatives nor torch.func transforms"
    if p.mask is not None and not masks.known(p.mask):
        return f"{p.mask} holds a mask that is not in the table multihead.masks.MASKS"
    bias = p.bias.slopes if isinstance(p.bias, Alibi) else p.bias
    if bias is not None and bias.requires_grad and torch.is_grad_enabled():
        return "the kernel gives no gradient to a bias"
    if min(p.query.shape[3], p.value.shape[3]) < 16:
        return "the kernel takes heads of 16 numbers or more"
    if torch.compiler.is_compiling():
        return None  # however few scores there are, it is compiled with the rest
    batch, heads, queries, _ = p.query.shape
    if batch * heads * queries * p.key.shape[2] < _LITTLE:
        return "it is compiled at its first call, which so few scores are not worth"
    return None


def run(problem: Problem) -> Partial:
    """Attention by FlexAttention."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    p = problem
    kernel: Callable = flex_attention
    limits = contextlib.nullcontext()
    if not torch.compiler.is_compiling():  # else it is compiled with the rest of the graph
        kernel = _kernel()
        limits = torch._dynamo.config.patch(
            recompile_limit=_KINDS, accumulated_recompile_limit=_KINDS,
            fail_on_recompile_limit_hit=True,
        )  # fmt: skip
    with limits:
        out, aux = kernel(
            p.query, p.key, p.value, score_mod=_score_mod(p), block_mask=_block_mask(p),
            scale=p.scale, enable_gqa=p.group > 1, return_aux=AuxRequest(lse=True),
        )  # fmt: skip
    dead = aux.lse == -torch.inf
    part = Partial(out.masked_fill(dead[..., None], 0.0), aux.lse)
    if p.sinks is None:
        return part
    out, lse = add_sinks(part, p.sinks)
    return Partial(out.to(p.query.dtype), lse)


@functools.cache
def _kernel() -> Callable:
    from torch.nn.attention.flex_attention import flex_attention

    def ours(*given, **asked):  # kinds are counted by function, and this one is nobody else's
        return flex_attention(*given, **asked)

    return torch.compile(ours)


# ---- masks and biases, a place at a time --------------------------------------------------------


def _score_mod(p: Problem) -> Callable | None:
    bias, cap = p.bias, p.softcap
    if bias is None and cap is None:
        return None
    if cap is not None and torch.compiler.is_compiling():  # where a number may stand for any
        cap = torch.full((), cap, device=p.query.device)
    stand = _stand(p.offset)
    added = None if bias is None or isinstance(bias, Alibi) else _read(bias)
    slopes = bias.slopes.float() if isinstance(bias, Alibi) else None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if cap is not None:
            score = torch.tanh(score / cap) * cap
        if slopes is not None:
            score = score - slopes[h] * (stand(b, q) - k).abs()
        return score if added is None else score + added(b, h, q, k)

    return score_mod


def _block_mask(p: Problem) -> BlockMask | None:
    from torch.nn.attention.flex_attention import BlockMask

    if p.mask is None:
        return None
    return BlockMask(
        (p.query.shape[2], p.key.shape[2]), *lists_of(p), BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=at_places(p.mask.to(p.query.device), p.offset),
    )  # fmt: skip


def at_places(mask: Mask, offset: int | Tensor) -> At:
    """A mask as a function of single places; as its `allows`, which is the definition."""
    if isinstance(mask, both | either):
        left, right = at_places(mask.left, offset), at_places(mask.right, offset)
        if isinstance(mask, both):
            return lambda b, h, q, k: left(b, h, q, k) & right(b, h, q, k)
        return lambda b, h, q, k: left(b, h, q, k) | right(b, h, q, k)
    if isinstance(mask, outside):
        inner = at_places(mask.inner, offset)
        return lambda b, h, q, k: ~inner(b, h, q, k)
    stand = _stand(offset)
    match mask:
        case masks.causal():
            return lambda b, h, q, k: k <= stand(b, q)
        case masks.window():
            size = mask.size
            return lambda b, h, q, k: (k - stand(b, q)).abs() < size
        case masks.offset():
            distance = mask.distance
            return lambda b, h, q, k: k - stand(b, q) == distance
        case masks.prefix():
            size = mask.size
            return lambda b, h, q, k: k < size
        case masks.padding():
            lengths, one = mask.lengths, mask.lengths.shape[0] == 1
            return lambda b, h, q, k: k < (lengths[0] if one else lengths[b])
        case masks.dense():
            return _read(mask.allowed[(None,) * (4 - mask.allowed.ndim)])
    assert isinstance(mask, masks.documents | masks.same_token | masks.after_same_token)
    ids = torch.atleast_2d(mask.ids)
    one, last = ids.shape[0] == 1, ids.shape[1] - 1
    documents, same_token = (isinstance(mask, c) for c in (masks.documents, masks.same_token))

    def id_at(b: Tensor, place: Tensor) -> Tensor:
        return ids[0 if one else b, place.clamp(0, last)]

    def by_id(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        place = stand(b, q)
        mine, known = id_at(b, place), (place >= 0) & (place <= last)
        if documents:
            return known & (mine == id_at(b, k))
        if same_token:
            return known & (k < place) & (mine == id_at(b, k))
        return known & (k > 0) & (k < place) & (mine == id_at(b, k - 1))

    return by_id


def _stand(offset: int | Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    if isinstance(offset, Tensor):
        return lambda b, q: q + offset[b]
    return lambda b, q: q + offset


def _read(table: Tensor) -> At:
    """A table (#batch, #heads, #query, #key) at a place; an axis of 1 is the same everywhere."""
    same = [size == 1 for size in table.shape]

    def read(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        at = [0 if one else index for one, index in zip(same, (b, h, q, k), strict=True)]
        return table[at[0], at[1], at[2], at[3]]

    return read
