"""A text of one's own, as characters or as bytes: windows of it, its last tenth held out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .alphabet import Alphabet, digest_of
from .names import Batch

HELD_OUT = 0.1
MOST_HELD_OUT = 65_536  # tokens that are read for a held-out loss, spread over all there are
MOST_SYMBOLS = 4096


class Text:
    """Batches of windows: where each begins is drawn by the seed and the number of the batch."""

    separator = None

    def __init__(
        self, text: str, *, rows: int, tokens: int, seed: int, symbols: str = "characters",
        what: str = "text",
    ) -> None:  # fmt: skip
        self.alphabet = Alphabet(None) if symbols == "bytes" else Alphabet.of(text)
        if len(self.alphabet) > MOST_SYMBOLS:
            raise ValueError(
                f"the text has {len(self.alphabet):,} different characters, and a small model "
                f"learns {MOST_SYMBOLS:,} at most; give symbols = bytes."
            )
        ids = torch.tensor(self.alphabet.encode(text))
        cut = len(ids) - int(HELD_OUT * len(ids))
        self.parts = {"train": ids[:cut], "held out": ids[cut:]}
        _check(self.parts, tokens)
        self.rows, self.tokens, self.seed, self.what = rows, tokens, seed, what
        self.digest = digest_of(text)
        self.example = self.alphabet.decode(self.parts["held out"][:tokens])
        self.taken = 0  # batches that are done

    def next(self) -> Batch:
        """The next batch to train on."""
        train = self.parts["train"]
        random = torch.Generator().manual_seed(1_000_003 * self.seed + self.taken)
        self.taken += 1
        first = torch.randint(len(train) - self.tokens, (self.rows,), generator=random)
        return _windows(train, first, self.tokens)

    def held_out(self, which: str = "held out") -> Iterator[Batch]:
        """Windows that lie one behind another, in batches."""
        ids = self.parts[which]
        first = torch.arange(0, len(ids) - self.tokens, self.tokens)
        most = max(1, MOST_HELD_OUT // self.tokens)
        if len(first) > most:
            first = first[torch.linspace(0, len(first) - 1, most).long()]
        for some in first.split(4 * self.rows):
            yield _windows(ids, some, self.tokens)

    def position(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def go_to(self, position: dict[str, Any]) -> None:
        self.taken = int(position["taken"])


def read_text(path: Path) -> str:
    """The whole of a UTF-8 file that has something in it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"the text must be a file that can be read, and {path} is not: "
            f"{error.strerror or error}; see its name."
        ) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be text in UTF-8, and byte {error.start:,} is not; convert it first."
        ) from None
    if not text.strip():
        raise ValueError(f"{path} is empty; give a text of some thousand characters.")
    return text


def _windows(ids: Tensor, first: Tensor, tokens: int) -> Batch:
    whole = ids[first[:, None] + torch.arange(tokens + 1)]  # (rows, tokens + 1)
    return whole[:, :-1], whole[:, 1:]


def _check(parts: dict[str, Tensor], tokens: int) -> None:
    if min(map(len, parts.values())) > tokens:
        return
    every, least = sum(map(len, parts.values())), round((tokens + 1) / HELD_OUT)
    raise ValueError(
        f"a context of {tokens} tokens needs a text of {least:,} at least, a tenth of it "
        f"held out, and this one has {every:,}; give a longer text or a smaller context."
    )
