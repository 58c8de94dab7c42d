"""Swap nn.MultiheadAttention for MultiHeadAttention in a small model: the same numbers.

python examples/swap.py
"""

import torch
from torch import nn

import multihead as mh


class Block(nn.Module):
    """norm → attention → residual, norm → MLP → residual, on PyTorch's own attention."""

    def __init__(self, d_model: int = 64, num_heads: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d_model, 256), nn.GELU(), nn.Linear(256, d_model))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        ignore = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)  # True = ignore
        return self.attention(x, x, x, attn_mask=ignore, need_weights=False)[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Swapped(Block):
    """The same block; attention is one call, and nobody builds a mask."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.load_state_dict(block.state_dict())
        self.attention = mh.from_torch(block.attention)
        self.attention.mask = mh.causal()

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x)


if __name__ == "__main__":
    torch.manual_seed(0)
    block = Block()
    swapped = Swapped(block)
    x = torch.randn(2, 100, 64)
    difference = (block(x) - swapped(x)).abs().max().item()
    print(f"largest difference {difference:.1e}")
    assert difference < 1e-5
