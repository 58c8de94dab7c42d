"""What a run is made of, from its settings: its device, its data, its shape, its optimiser."""

from __future__ import annotations

from pathlib import Path

import torch

from .gpt import GPT, GPTConfig
from .names import LONGEST, Names
from .settings import Settings
from .text import Text, read_text


def device_of(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, and there is none here; give cpu, or leave it out.")
    return torch.device(name)


def data_of(settings: Settings) -> Names | Text:
    sizes = {"rows": settings.rows, "tokens": settings.tokens, "seed": settings.seed}
    if settings.data == "names":
        if settings.context < LONGEST:  # else it would end at the first long name, steps later
            raise ValueError(
                f"context must have room for the longest name, {LONGEST} tokens, and "
                f"{settings.context} came; give {LONGEST}."
            )
        return Names(**sizes)
    path = Path(settings.data)
    return Text(read_text(path), **sizes, symbols=settings.symbols, what=path.name)


def shape_of(settings: Settings, data: Names | Text) -> GPTConfig:
    return GPTConfig(
        vocab_size=len(data.alphabet), context=settings.context, d_model=settings.d_model,
        num_heads=settings.num_heads, num_layers=settings.num_layers,
        positions=settings.positions, dropout=settings.dropout, separator=data.separator,
        example=data.example,
    )  # fmt: skip


def adamw_of(model: GPT, settings: Settings) -> torch.optim.AdamW:
    """Matrices decay, norms do not."""
    wide = [weight for weight in model.parameters() if weight.ndim > 1]
    thin = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{"params": wide, "weight_decay": settings.weight_decay},
              {"params": thin, "weight_decay": 0.0}]  # fmt: skip
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.99), fused=True)
