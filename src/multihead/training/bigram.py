"""What the last character alone foretells: counts of pairs, the least that a model must beat."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from .names import IGNORED, LONGEST, NAMES, Batch, pack, part


def bigram(batches: Iterable[Batch], vocab: int) -> Float[Tensor, "before after"]:
    """ln p(after | before), by counting pairs, each pair once more than it came."""
    counts = torch.ones(vocab, vocab, dtype=torch.float64)
    for ids, targets in batches:
        real = targets != IGNORED
        pairs = ids[real] * vocab + targets[real]
        counts += torch.bincount(pairs, minlength=vocab**2).view(vocab, vocab)
    return (counts / counts.sum(1, keepdim=True)).log()


def loss_of(table: Float[Tensor, "before after"], batches: Iterable[Batch]) -> float:
    """Its mean loss, nats a token."""
    total, count = 0.0, 0
    for ids, targets in batches:
        real = targets != IGNORED
        total -= float(table[ids[real], targets[real]].sum())
        count += int(real.sum())
    return total / count


def names_bigram(which: str = "held out") -> float:
    """The loss of names in a part, by pairs counted in those to train on.

    >>> round(names_bigram(), 3)
    2.446
    """
    table = bigram([pack(part("train"), LONGEST)], len(NAMES))
    return loss_of(table, [pack(part(which), LONGEST)])
