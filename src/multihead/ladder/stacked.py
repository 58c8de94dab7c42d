"""Rung 3: several heads, side by side.

Adds   more than one question a token. Every head has its own three matrices, looks where it
       likes, and the contexts are laid end to end:

           x ─┬─ head 0 ─ d_out columns ─┐
              ├─ head 1 ─ d_out columns ─┼─ num_heads · d_out columns
              └─ head 2 ─ d_out columns ─┘
Cost   O(num_heads·(n·d_in·d_out + n²·d_out)) time and O(num_heads·n²) memory: num_heads times
       rung 2, where d_out is the width of one head. In training every head keeps its n × n weights
       for the way back, and every head has a mask of its own.
Limit  the heads wait for one another, three small projections each, and what they find is never
       mixed. The next rung makes three large projections for all heads, and mixes.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .one_head import CausalAttention


class MultiHeadAttentionWrapper(nn.Module):
    """Independent heads of width d_out, one after another: num_heads · d_out columns.

    >>> stacked = MultiHeadAttentionWrapper(3, 2, context_length=6, dropout=0.0, num_heads=2)
    >>> stacked(torch.randn(2, 6, 3)).shape
    torch.Size([2, 6, 4])
    """

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int,
        qkv_bias: bool = False,
    ):  # fmt: skip
        super().__init__()
        if num_heads < 1:
            raise ValueError(
                f"num_heads must be at least 1; ask for one head or more.\n  num_heads {num_heads}"
            )
        self.heads = nn.ModuleList(
            CausalAttention(d_in, d_out, context_length, dropout, qkv_bias)
            for _ in range(num_heads)
        )

    def forward(self, x: Float[Tensor, "batch tokens d_in"]) -> Float[Tensor, "batch tokens width"]:
        contexts = [head(x) for head in self.heads]  # num_heads times (batch, tokens, d_out)
        return torch.cat(contexts, dim=-1)  # (batch, tokens, num_heads · d_out)


MultiHeadedAttentionWrapper = MultiHeadAttentionWrapper  # it is known by both names
