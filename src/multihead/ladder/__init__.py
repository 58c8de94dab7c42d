"""The ladder: the same attention on six rungs, from single numbers to a fused kernel.

Read the rungs in order, each a page: what it adds, what it costs, and the limit that leads to the
next one. `carry` takes one set of weights up the ladder, and every rung gives the same context:
what all heads found, causal, laid end to end.

>>> weights = Weights.random(d_in=5, d_out=6, num_heads=2)
>>> x = torch.randn(3, 7, 5, dtype=torch.float64)
>>> first, last = carry(weights, "scalar"), carry(weights, "fused")
>>> torch.allclose(first(x), last(x), rtol=0, atol=1e-12)
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from .fused import FusedMultiHeadAttn
from .one_head import CausalAttention
from .scalar import attend_all
from .split import FullMultiHeadAttention, MultiHeadAttn, merge_heads, split_heads
from .stacked import MultiHeadAttentionWrapper, MultiHeadedAttentionWrapper
from .streaming import stream
from .weights import Weights, check_x

__all__ = [
    "RUNGS",
    "Carried",
    "CausalAttention",
    "FullMultiHeadAttention",
    "FusedMultiHeadAttn",
    "MultiHeadAttentionWrapper",
    "MultiHeadAttn",
    "MultiHeadedAttentionWrapper",
    "Rung",
    "Weights",
    "carry",
    "merge_heads",
    "split_heads",
    "stream",
]


@dataclass(frozen=True)
class Carried:
    """A rung that holds the weights: call it with x for the context of all heads, end to end.

    `output` also projects, where the rung does (else None). `rung` is the thing itself: a module;
    for `one_head` a list of them, for `scalar` the dict of matrices, for `streaming` the function.
    Call and `output` take one text, (tokens, d_in), or several, (batch, tokens, d_in).
    """

    rung: Any
    context: Callable[[Tensor], Tensor]
    output: Callable[[Tensor], Tensor] | None = None

    def __call__(
        self, x: Float[Tensor, "*batch tokens d_in"]
    ) -> Float[Tensor, "*batch tokens d_out"]:
        return self.context(x)


def _scalar(w: Weights, context_length: int) -> Carried:
    if w.biases:
        raise ValueError(
            "the scalar rung has no biases; carry weights without them, or take another rung.\n"
            f"  came with {', '.join(w.biases)}"
        )
    matrices = {"q": w.query, "k": w.key, "v": w.value, "o": w.out}
    state_dict = {f"layer0.attn_w{letter}": matrix.tolist() for letter, matrix in matrices.items()}

    def output(x: Tensor) -> Tensor:
        return x.new_tensor([attend_all(row, state_dict, w.num_heads)[0] for row in x.tolist()])

    def context(x: Tensor) -> Tensor:
        return x.new_tensor([attend_all(row, state_dict, w.num_heads)[1] for row in x.tolist()])

    return Carried(state_dict, context, output)


def _one_head(w: Weights, context_length: int) -> Carried:
    def head(h: int) -> CausalAttention:
        one = CausalAttention(w.d_in, w.head_dim, context_length, 0.0, w.qkv_bias).to(w.query)
        rows = slice(h * w.head_dim, (h + 1) * w.head_dim)
        w.fill(rows, query=one.W_query, key=one.W_key, value=one.W_value)
        return one

    heads = [head(h) for h in range(w.num_heads)]
    return Carried(heads, lambda x: torch.cat([head(x) for head in heads], dim=-1))


def _stacked(w: Weights, context_length: int) -> Carried:
    stacked = MultiHeadAttentionWrapper(
        w.d_in, w.head_dim, context_length, 0.0, w.num_heads, w.qkv_bias
    ).to(w.query)
    for ours, head in zip(stacked.heads, _one_head(w, context_length).rung, strict=True):
        ours.load_state_dict(head.state_dict())
    return Carried(stacked, stacked)


def _split(w: Weights, context_length: int) -> Carried:
    split = MultiHeadAttn(w.d_in, w.d_out, context_length, 0.0, w.num_heads, w.qkv_bias).to(w.query)
    w.fill(query=split.W_query, key=split.W_key, value=split.W_value, out=split.out_proj)
    return Carried(split, split.context, split)


def _full(w: Weights, context_length: int) -> Carried:
    if w.d_in != w.d_out:
        raise ValueError(
            "the full rung has one width, d_model, so d_in must be d_out; take the split rung.\n"
            f"  d_in {w.d_in}  d_out {w.d_out}"
        )
    full = FullMultiHeadAttention(w.d_in, w.num_heads).to(w.query)
    w.fill(query=full.W_q, key=full.W_k, value=full.W_v, out=full.W_o)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return full(x, x, x, mask=x.new_ones(x.shape[-2], x.shape[-2]).tril())

    def context(x: Tensor) -> Tensor:
        weights = both(x)[1]
        return merge_heads(weights @ split_heads(full.W_v(x), w.num_heads))

    return Carried(full, context, lambda x: both(x)[0])


def _streaming(w: Weights, context_length: int) -> Carried:
    maps = ((w.query, w.query_bias), (w.key, w.key_bias), (w.value, w.value_bias))
    own = [(m.detach().clone(), None if b is None else b.detach().clone()) for m, b in maps]

    def context(x: Tensor) -> Tensor:
        projected = (split_heads(linear(x, *pair), w.num_heads) for pair in own)
        query, key, value = (t.double().numpy(force=True) for t in projected)
        found = [torch.from_numpy(stream(*row)[0]) for row in zip(query, key, value, strict=True)]
        return merge_heads(torch.stack(found)).to(x)

    return Carried(stream, context)


def _fused(w: Weights, context_length: int) -> Carried:
    fused = FusedMultiHeadAttn(w.d_in, w.d_out, 0.0, w.num_heads, w.qkv_bias).to(w.query)
    w.fill(query=fused.W_query, key=fused.W_key, value=fused.W_value, out=fused.out_proj)
    return Carried(fused, fused.context, fused)


class Rung(NamedTuple):
    """A step of the ladder: which one, what it is, and how it takes the weights."""

    number: int
    about: str
    take: Callable[[Weights, int], Carried]


# A new rung is one more line here; the shared tests then hold it against all others.
RUNGS: dict[str, Rung] = {
    "scalar": Rung(1, "plain Python numbers, one token at a time", _scalar),
    "one_head": Rung(2, "one head, all tokens at once, as matrices", _one_head),
    "stacked": Rung(3, "several heads, side by side", _stacked),
    "split": Rung(4, "one large projection, split into heads", _split),
    "full": Rung(4, "the same for any query, key and value, with its weights", _full),
    "streaming": Rung(5, "a running softmax, tile by tile, and no matrix", _streaming),
    "fused": Rung(6, "the same weights through attend", _fused),
}


def carry(weights: Weights, rung: str, *, context_length: int = 256) -> Carried:
    """Put one set of weights into the rung of that name, as a copy.

    Rungs 2, 3 and 4 build their mask for `context_length` tokens; the others have no such end.

    >>> weights = Weights.random(d_in=5, d_out=6, num_heads=3)
    >>> x = torch.randn(1, 4, 5, dtype=torch.float64)
    >>> carry(weights, "streaming")(x).shape
    torch.Size([1, 4, 6])
    >>> carry(weights, "one_head").rung[2](x).shape  # the third head alone
    torch.Size([1, 4, 2])
    """
    if not isinstance(weights, Weights):
        raise ValueError(
            "carry takes the Weights of the ladder; make them of your matrices, "
            "Weights(query, key, value, out, num_heads), or draw them with Weights.random.\n"
            f"  came {type(weights).__name__}"
        )
    if not isinstance(rung, str) or rung not in RUNGS:
        raise ValueError(f"there is no rung {rung!r}; choose one of {', '.join(map(repr, RUNGS))}.")
    with torch.random.fork_rng(devices=[]):  # layers draw numbers that these weights replace
        return _checked(RUNGS[rung].take(weights, context_length), weights)


def _checked(carried: Carried, weights: Weights) -> Carried:
    """The same, but x is checked first, and one text becomes a batch of one."""
    own = carried.rung[0] if isinstance(carried.rung, list) else carried.rung
    # A module may be moved later, and says then what it takes; what is no module stays as it is.
    d_in, fixed = weights.d_in, weights.query.new_empty(0)
    parameter = (lambda: next(own.parameters())) if isinstance(own, nn.Module) else lambda: fixed

    def checked(answer: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            check_x(x, d_in, parameter())
            return answer(x) if x.ndim == 3 else answer(x[None])[0]

        return call

    output = carried.output and checked(carried.output)
    return Carried(carried.rung, checked(carried.context), output)
