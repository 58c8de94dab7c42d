"""What a small model writes, and how much of it is a copy."""

from __future__ import annotations

import dataclasses

import torch

from ..training import GPT, Alphabet
from ..training.names import LONGEST, NAMES, part


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Names that a model made up."""

    names: tuple[str, ...]
    known: int  # how many of them it was trained on
    elsewhere: int  # how many are real names that it has not seen
    new: tuple[str, ...]  # those in no part of the data, each once


def names_drawn(model: GPT, count: int, *, seed: int, temperature: float = 1.0) -> Drawn:
    """So many names, drawn as the model says, and whether they are copies."""
    begin = torch.full((count, 1), NAMES.bos_token_id or 0, device=next(model.parameters()).device)
    ids = model.generate(begin, LONGEST, temperature=temperature, seed=seed)
    names = tuple((NAMES.decode(row).split() or [""])[0] for row in ids)
    train, others = {*part("train")}, {*part("held out"), *part("test")}
    return Drawn(
        names,
        known=sum(name in train for name in names),
        elsewhere=sum(name in others for name in names),
        new=tuple(dict.fromkeys(n for n in names if n and n not in train and n not in others)),
    )


def text_drawn(model: GPT, alphabet: Alphabet, *, seed: int, tokens: int = 200) -> str:
    """A text that goes on from how the held-out part begins."""
    start = torch.tensor([alphabet.encode(model.config.example[:1])])
    ids = model.generate(
        start.to(next(model.parameters()).device), tokens, temperature=0.8, seed=seed
    )
    return alphabet.decode(ids[0])
