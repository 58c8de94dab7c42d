"""Heads to turn: random, and of a shape that the tests of positions share."""

import torch

BATCH, HEADS, TOKENS, DIM = 2, 3, 5, 14


def heads(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    shape = shape or (BATCH, HEADS, TOKENS, DIM)
    return torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(seed)).to(dtype)
