"""Rung 2: one head, all tokens at once, as matrices.

Adds   matrices. The tokens stand in rows, and a few products do for all of them what rung 1
       did for one:

           scores = q kᵀ / √d_out     weights = softmax(scores)     context = weights v

       The future is in the matrix too, so it has to be hidden: a triangular mask marks the later
       keys, their scores become −inf and their weights 0.
Cost   O(n·d_in·d_out + n²·d_out) time, of which the hidden half is wasted; O(n²) memory for the
       scores, which rung 1 did not need, and O(context_length²) for the mask.
Limit  one set of weights for each token: it cannot look at its subject and at its adjective with
       different questions. The next rung puts several heads side by side.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


def triangle(context_length: int) -> Float[Tensor, "context_length context_length"]:
    """The mask: 1 where a key comes after the query.

    >>> triangle(3)
    tensor([[0., 1., 1.],
            [0., 0., 1.],
            [0., 0., 0.]])
    """
    return torch.triu(torch.ones(context_length, context_length), diagonal=1)


def future(mask: Tensor, tokens: int) -> Bool[Tensor, "tokens tokens"]:
    """The corner of the mask that so many tokens need: True where a key is still to come."""
    if tokens > len(mask):
        raise ValueError(
            "x must have no more tokens than context_length, since the mask ends there; "
            "pass fewer, or build with a longer context_length.\n"
            f"  tokens {tokens}  context_length {len(mask)}"
        )
    return mask[:tokens, :tokens].bool()


class CausalAttention(nn.Module):
    """One head of attention over the tokens so far.

    >>> head = CausalAttention(d_in=3, d_out=2, context_length=6, dropout=0.0)
    >>> head(torch.randn(2, 5, 3)).shape
    torch.Size([2, 5, 2])
    >>> list(head.state_dict())
    ['mask', 'W_query.weight', 'W_key.weight', 'W_value.weight']
    """

    mask: Float[Tensor, "context_length context_length"]

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, qkv_bias: bool = False
    ):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)  # in training, some weights are 0 and the rest larger
        self.register_buffer("mask", triangle(context_length))

    def forward(self, x: Float[Tensor, "batch tokens d_in"]) -> Float[Tensor, "batch tokens d_out"]:
        query = self.W_query(x)  # (batch, tokens, d_out)
        key = self.W_key(x)
        value = self.W_value(x)
        hidden = future(self.mask, tokens=x.shape[-2])
        scores = query @ key.mT / query.shape[-1] ** 0.5  # (batch, tokens, tokens)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        return self.dropout(weights) @ value  # (batch, tokens, d_out)
