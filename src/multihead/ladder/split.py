"""Rung 4: one large projection, split into heads.

Adds   one product in place of many. The matrices of all heads, one below the other, are one
       matrix; its output is cut into heads, and what these find is mixed by `out_proj`:

           (batch, tokens, d_out) → (batch, heads, tokens, head_dim) → (batch, tokens, d_out)
Cost   O(n·d_in·d_out + n·d_out² + n²·d_out) time: the multiplications of rung 3 with heads of
       width d_out / num_heads, but in a few large products; O(num_heads·n²) memory for weights.
Limit  that memory: twice the tokens, four times the weights. The next rung never builds them.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .one_head import future, triangle
from .weights import check_heads


def split_heads(x: Float[Tensor, "batch tokens width"], num_heads: int) -> Tensor:
    """Cut each token into heads, and bring the heads to the front."""
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)  # (batch, heads, tokens, head_dim)


def merge_heads(x: Float[Tensor, "batch heads tokens head_dim"]) -> Tensor:
    """Lay the heads of each token end to end."""
    return x.transpose(-3, -2).flatten(-2)  # (batch, tokens, heads · head_dim)


class MultiHeadAttn(nn.Module):
    """Multi-head attention over the tokens so far; d_out is the width of all heads together.

    >>> split = MultiHeadAttn(3, 4, context_length=6, dropout=0.0, num_heads=2)
    >>> split(torch.randn(2, 6, 3)).shape
    torch.Size([2, 6, 4])
    """

    mask: Float[Tensor, "context_length context_length"]

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int,
        qkv_bias: bool = False,
    ):  # fmt: skip
        super().__init__()
        check_heads("d_out", d_out, num_heads)
        self.num_heads = num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", triangle(context_length))

    def context(self, x: Float[Tensor, "batch tokens d_in"]) -> Tensor:
        """What all heads found, laid end to end, not yet mixed."""
        query = split_heads(self.W_query(x), self.num_heads)  # (batch, heads, tokens, head_dim)
        key = split_heads(self.W_key(x), self.num_heads)
        value = split_heads(self.W_value(x), self.num_heads)
        hidden = future(self.mask, tokens=x.shape[-2])
        scores = query @ key.mT / query.shape[-1] ** 0.5  # (batch, heads, tokens, tokens)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        return merge_heads(self.dropout(weights) @ value)  # (batch, tokens, d_out)

    def forward(self, x: Float[Tensor, "batch tokens d_in"]) -> Float[Tensor, "batch tokens d_out"]:
        return self.out_proj(self.context(x))


class FullMultiHeadAttention(nn.Module):
    """The same for any query, key and value, and with the weights to look at: (output, weights).

    `mask` broadcasts to (batch, heads, query, key); 0 means may not attend. A query that may see
    nothing has weights 0, so its output is the bias of `W_o` alone: no NaN, here or in gradients.

    >>> full, x, context = FullMultiHeadAttention(6, 2), torch.randn(1, 3, 6), torch.randn(1, 5, 6)
    >>> output, weights = full(x, context, context, mask=torch.tensor([1, 1, 1, 0, 0]))
    >>> output.shape, weights.shape, weights[..., 3:].sum().item()
    (torch.Size([1, 3, 6]), torch.Size([1, 2, 3, 5]), 0.0)
    """

    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        check_heads("d_model", d_model, num_heads)
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None):
        query = split_heads(self.W_q(query), self.num_heads)  # (batch, heads, query, head_dim)
        key = split_heads(self.W_k(key), self.num_heads)  # (batch, heads, key, head_dim)
        value = split_heads(self.W_v(value), self.num_heads)
        scores = query @ key.mT / query.shape[-1] ** 0.5  # (batch, heads, query, key)
        if mask is not None:  # the lowest number, not −inf: a row of −inf alone would be 0 / 0
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1)
        if mask is not None:
            weights = weights.masked_fill(mask == 0, 0)
        return self.W_o(merge_heads(weights @ value)), weights  # (batch, query, d_model)
