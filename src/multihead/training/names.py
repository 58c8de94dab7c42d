"""First names, a line each: the data of the textbook, split once and for all.

29,910 names of the US Social Security Administration's list for 2017 (public domain), a to z in
lower case, the most frequent first. Rows of a batch hold whole names:

    ⏎ e m m a ⏎ l i a m ⏎ · ·        the line end both ends a name and begins the next;
    e m m a ⏎ l i a m ⏎ · · ·        each token is to foretell the one below it
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from .alphabet import Alphabet, digest_of

NAMES = Alphabet("\nabcdefghijklmnopqrstuvwxyz", separator="\n")
LONGEST = 16  # tokens: the line end, and 15 letters
IGNORED = -1  # a target that is no target
PARTS = {"train": (0.0, 0.8), "held out": (0.8, 0.9), "test": (0.9, 1.0)}
_SPLIT = 2017  # the seed of the split, which is the same whatever a run is seeded with

Batch = tuple[Int[Tensor, "rows tokens"], Int[Tensor, "rows tokens"]]


@functools.cache
def names() -> tuple[str, ...]:
    """All names, most frequent first.

    >>> names()[:4], len(names())
    (('emma', 'liam', 'olivia', 'noah'), 29910)
    """
    return tuple(files("multihead.training").joinpath("names.txt").read_text("utf-8").split())


@functools.cache
def part(which: str) -> tuple[str, ...]:
    """The names to train on (80 %), to watch (10 %), or to look at once, in the end (10 %).

    >>> [len(part(which)) for which in PARTS]
    [23928, 2991, 2991]
    >>> part("held out")[:3]
    ('felix', 'alexanderjames', 'daniya')
    """
    every = names()
    random = torch.Generator().manual_seed(_SPLIT)
    order = torch.randperm(len(every), generator=random).tolist()
    first, last = (round(share * len(every)) for share in PARTS[which])
    return tuple(every[i] for i in order[first:last])


def pack(some: Iterable[str], tokens: int) -> Batch:
    """Whole names into rows of so many tokens, and what each token is to foretell.

    >>> ids, targets = pack(["emma", "liam", "ava"], 12)
    >>> print(*(NAMES.decode(row).replace("\\n", ".") for row in ids))
    .emma.liam.. .ava........
    >>> targets[1].tolist()
    [1, 22, 1, 0, -1, -1, -1, -1, -1, -1, -1, -1]
    """
    lines: list[str] = []
    for name in some:
        if not lines or len(lines[-1]) + len(name) + 1 > tokens:
            lines.append("")
        lines[-1] += f"\n{name}"
    numbers = {symbol: n for n, symbol in enumerate(NAMES.symbols or "")}
    ids = [[numbers[c] for c in line.ljust(tokens, "\n")] for line in lines]
    targets = [
        [numbers[c] for c in f"{line[1:]}\n"] + [IGNORED] * (tokens - len(line)) for line in lines
    ]
    return torch.tensor(ids).view(-1, tokens), torch.tensor(targets).view(-1, tokens)


@functools.cache
def _packed(which: str, tokens: int) -> Batch:
    return pack(part(which), tokens)


class Names:
    """Batches of names: every name of a part once in an epoch, in an order that the seed draws."""

    alphabet = NAMES
    separator = NAMES.bos_token_id
    what = "names"

    @property
    def digest(self) -> str:
        return digest_of("\n".join(names()))

    def __init__(self, *, rows: int, tokens: int, seed: int) -> None:
        if tokens < LONGEST:
            raise ValueError(
                f"tokens, of a row, must have room for the longest name, {LONGEST}, and "
                f"{tokens} came; give 64."
            )
        self.rows, self.tokens, self.seed = rows, tokens, seed
        self.example = " ".join(part("held out")[:24])
        self.epoch = self.taken = 0  # where we are: so many batches of this epoch are done
        self._packed: tuple[int, Batch] | None = None

    def next(self) -> Batch:
        """The next batch to train on."""
        if self.taken >= len(self._rows(self.epoch)[0]) // self.rows:
            self.epoch, self.taken = self.epoch + 1, 0
        first = self.taken * self.rows
        self.taken += 1
        ids, targets = self._rows(self.epoch)
        if len(ids) < self.rows:
            raise ValueError(
                f"all names fill {len(ids):,} rows, and a batch of {self.rows:,} came; give fewer."
            )
        return ids[first : first + self.rows], targets[first : first + self.rows]

    def held_out(self, which: str = "held out") -> Iterator[Batch]:
        """All names of another part, in batches."""
        ids, targets = _packed(which, self.tokens)
        yield from zip(ids.split(4 * self.rows), targets.split(4 * self.rows), strict=True)

    def position(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "taken": self.taken}

    def go_to(self, position: dict[str, Any]) -> None:
        self.epoch, self.taken = int(position["epoch"]), int(position["taken"])

    def _rows(self, epoch: int) -> Batch:
        if self._packed is None or self._packed[0] != epoch:
            every = part("train")
            random = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
            order = torch.randperm(len(every), generator=random).tolist()
            self._packed = epoch, pack((every[i] for i in order), self.tokens)
        return self._packed[1]
