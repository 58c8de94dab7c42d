"""What heads are known to do: each pattern is a mask and a formula from the literature.

A score is the mean weight that a head puts inside the pattern's mask, over the rows *with an
opportunity*: those for which the mask holds a key that they may see (identity 2: a mass is a ratio
of two log-sum-exps, so every detector is a mask). Chance is the same for a head that looks at all
keys alike. Where much of a row lies inside by chance ("local"), the score is the excess over it,
(mass − chance) / (1 − chance): 0 for a head that looks at all keys alike, 1 for one that looks
nowhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from ..masks import Mask, after_same_token, dense, offset, prefix, same_token, window

NEAR = 5  # "local" is less than so many tokens away


@dataclasses.dataclass(frozen=True)
class Text:
    """One text as patterns see it."""

    ids: Tensor  # (token,)
    special: Tensor  # (token,) bool: tokens of the tokenizer's own, a BOS for one
    marks: Tensor  # (token,) bool: punctuation and line ends


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A name for what a head does, and how it is told."""

    name: str
    says: str  # in a sentence: "reads …"
    mask: Callable[[Text], Mask]
    source: str
    by_content: bool = False  # whether tokens decide, and not places alone
    ahead: bool = False  # whether it takes a head that may look ahead
    excess: bool = False  # whether the score is what goes beyond chance


# A new pattern is one more line here.
PATTERNS: dict[str, Pattern] = {
    p.name: p
    for p in (
        Pattern(
            "previous token", "reads the token before", lambda text: offset(-1),
            "Voita et al. 2019, arXiv:1905.09418; Elhage et al. 2021",
        ),
        Pattern(
            "next token", "reads the token after", lambda text: offset(1),
            "Voita et al. 2019, arXiv:1905.09418", ahead=True,
        ),
        Pattern(
            "self", "reads itself", lambda text: offset(0), "Clark et al. 2019, arXiv:1906.04341"
        ),
        Pattern(
            "first token", "rests on the first token", lambda text: prefix(1),
            "Xiao et al. 2023, arXiv:2309.17453",
        ),
        Pattern(
            "local", f"reads the last {NEAR} tokens", lambda text: window(NEAR),
            "Clark et al. 2019, arXiv:1906.04341", excess=True,
        ),
        Pattern(
            "duplicate token", "reads earlier copies of the same token",
            lambda text: same_token(text.ids), "Wang et al. 2022, arXiv:2211.00593",
            by_content=True,
        ),
        Pattern(
            "induction", "reads what followed the same token before",
            lambda text: after_same_token(text.ids), "Olsson et al. 2022, arXiv:2209.11895",
            by_content=True,
        ),
        Pattern(
            "separator", "reads punctuation and line ends",
            lambda text: dense(text.marks[None, None, None]), "Clark et al. 2019, arXiv:1906.04341",
            by_content=True,
        ),
    )
}  # fmt: skip


def opportunities(pattern: Pattern, text: Text, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that count for a pattern, and the chance of each, (token,) both.

    `allowed` is who may see whom, (token, token). Special tokens do not count, nor do rows inside
    a run of one token: there the token before, a copy and what followed it are one and the same.
    The first row sees itself alone, and says nothing; nor does, for an excess over chance, a row
    that sees nothing outside of the mask.
    """
    n = len(text.ids)
    every = torch.arange(n)
    inside = pattern.mask(text).allows(every, every, 0)[0, 0].expand(n, n) & allowed
    run = torch.zeros(n, dtype=torch.bool)
    run[1:] = text.ids[1:] == text.ids[:-1]
    counts = inside.any(-1) & ~text.special & ~run & (allowed.sum(-1) > 1)
    chance = inside.sum(-1) / allowed.sum(-1).clamp(min=1)
    return counts & (chance < 1) if pattern.excess else counts, chance


def describe(ids: Tensor, tokenizer: object = None) -> Text:
    """A text's tokens, and which of them are special or marks (none without a tokenizer)."""
    special = torch.zeros(len(ids), dtype=torch.bool)
    marks = special.clone()
    if tokenizer is not None:
        known = {*getattr(tokenizer, "all_special_ids", ())}
        for place, token in enumerate(ids.tolist()):
            special[place] = token in known
            word = tokenizer.decode([token])  # type: ignore[attr-defined]
            marks[place] = bool(word) and not any(c.isalnum() for c in word) and not special[place]
    return Text(ids, special, marks)
