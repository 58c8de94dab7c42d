"""What a row may look at: how many keys, and where its own document begins.

Packing changes both from batch to batch. Entropy relative to ln of the keys allowed stays what it
is, and so does the weight on the first token, where that is the document's own.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..attention.problem import Problem
from ..masks import Mask
from ..masks.by_data import at
from ..masks.mask import Allowed, frozen, stand
from ..recording.call import forbids
from ..recording.layer import written

_AT_ONCE = 512  # rows
_BLOCK = 128  # rows whose own keys, and those before, are read from one square


def keys_allowed(problem: Problem, rows: Int[Tensor, "row"]) -> Int[Tensor, "#batch #heads row"]:
    """How many keys each of some rows may see."""
    keys = torch.arange(problem.key.shape[2], device=rows.device)
    if problem.mask is None and not isinstance(problem.bias, Tensor):
        return rows.new_full((1, 1, len(rows)), len(keys))
    counts = [
        _allowed(problem, some, keys).expand(-1, -1, len(some), len(keys)).sum(-1)
        for some in rows.split(_AT_ONCE)
    ]
    return torch.cat(counts, dim=-1)


def relative(
    entropy: Float[Tensor, "batch heads row"],
    problem: Problem,
    rows: Int[Tensor, "row"],
    counted: Bool[Tensor, "batch heads row"],
) -> tuple[Float[Tensor, "heads"], Int[Tensor, "heads"]]:
    """Σ over rows of entropy / ln keys allowed, and how many rows those are.

    A row of one key has no choice, and counts only where what came of it is no number.
    """
    allowed = keys_allowed(problem, rows)
    counted = counted & ((allowed > 1) | entropy.isnan())
    shares = entropy / allowed.clamp(min=2).log()
    return shares.masked_fill(~counted, 0.0).sum((0, 2)), counted.sum((0, 2))


@frozen
class own_first(Mask):
    """The first `count` tokens of a query's own document: `starts` has their first, for each token.

    >>> print(own_first(torch.tensor([[0, 0, 0, 3, 3, 3, 6, 6]]), 1).draw())
    ■ · · · · · · ·
    ■ · · · · · · ·
    ■ · · · · · · ·
    · · · ■ · · · ·
    · · · ■ · · · ·
    · · · ■ · · · ·
    · · · · · · ■ ·
    · · · · · · ■ ·
    """

    starts: Int[Tensor, "#batch tokens"]
    count: int

    def row(self, rows: slice) -> Mask:
        return self if len(self.starts) == 1 else own_first(self.starts[rows], self.count)

    def allows(self, query: Tensor, key: Tensor, offset: int | Tensor = 0) -> Allowed:
        start, known = at(self.starts.to(key.device), stand(query, offset)[:, 0, :, 0])
        return known & (key >= start) & (key < start + self.count)


def document_starts(problem: Problem) -> Int[Tensor, "#batch tokens"] | None:
    """Where the document of each token begins; None where that is key 0 for all, or not told.

    A document's first token sees itself, and nothing before: so say `documents`, padding in front,
    and bits or a bias that some model made of either. A window alone makes no documents.
    """
    tokens = problem.key.shape[2]
    moved = not isinstance(problem.offset, int) or problem.offset != 0
    told = written(problem.mask)[1] or isinstance(problem.bias, Tensor)
    if not told or moved or problem.query.shape[2] != tokens:
        return None
    every = torch.arange(tokens, device=problem.query.device)
    first = torch.cat([_sees_itself_alone(problem, some) for some in every.split(_BLOCK)], 1)
    # Of these few, those that see nothing further back either.
    for some in first.any(0).nonzero()[:, 0].split(_BLOCK):
        seen = _seen(problem, some, every)
        first[:, some] &= ~(seen & (every < some[:, None])).any(-1)
    starts = torch.where(first, every, 0).cummax(1).values
    return starts if bool(starts.any()) else None


def _sees_itself_alone(problem: Problem, rows: Tensor) -> Tensor:
    """Which rows see themselves and not the token before, (batch, row)."""
    before = int(rows[0]) - 1
    keys = torch.arange(max(before, 0), int(rows[-1]) + 1, device=rows.device)
    seen = _seen(problem, rows, keys)
    own = keys == rows[:, None]  # (row, key)
    last = keys == rows[:, None] - 1
    return (seen & own).any(-1) & ~(seen & last).any(-1)


def _seen(problem: Problem, rows: Tensor, keys: Tensor) -> Bool[Tensor, "#batch row key"]:
    """Which keys some head may see."""
    return _allowed(problem, rows, keys).any(1).expand(-1, len(rows), len(keys))


def _allowed(
    problem: Problem, rows: Tensor, keys: Tensor
) -> Bool[Tensor, "#batch #heads #row #key"]:
    """Who may look at whom, of some rows and keys: what a bias forbids is hidden as well."""
    allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=rows.device)
    if problem.mask is not None:
        allowed = problem.mask.allows(rows, keys, problem.offset)
    if isinstance(bias := problem.bias, Tensor):
        row = rows[:, None] if bias.shape[2] > 1 else rows.new_zeros(1, 1)
        key = keys if bias.shape[3] > 1 else keys.new_zeros(1)
        allowed = allowed & ~forbids(bias[:, :, row, key])
    return allowed
