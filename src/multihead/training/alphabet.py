"""Characters or bytes as tokens: a tokenizer that is a line of symbols."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Alphabet:
    """Which symbol has which number; asked as the tokenizers of transformers are.

    With a separator, words are documents: the text is put into lower case, and white space of any
    kind ends one and begins the next. `symbols` is None for bytes, which are their own numbers.

    >>> names = Alphabet("\\nabc", separator="\\n")
    >>> names("Abba cab")["input_ids"], names.decode([0, 1, 2])
    ([0, 1, 2, 2, 1, 0, 3, 1, 2], '\\nab')
    """

    symbols: str | None
    separator: str | None = None

    @classmethod
    def of(cls, text: str) -> Alphabet:
        """All characters of a text, in their order in Unicode."""
        return cls("".join(sorted(set(text))))

    @classmethod
    def read(cls, written: str) -> Alphabet:
        return cls(**json.loads(written))

    def written(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def __len__(self) -> int:
        return 256 if self.symbols is None else len(self.symbols)

    def encode(self, text: str) -> list[int]:
        """The numbers of a text; with a separator each document begins with it."""
        if self.symbols is None:
            return list(text.encode())
        if self.separator is not None:
            text = "".join(f"{self.separator}{word}" for word in text.lower().split())
        numbers = {symbol: n for n, symbol in enumerate(self.symbols)}
        unknown = sorted({symbol for symbol in text if symbol not in numbers})
        if unknown:
            known = self.symbols if len(self.symbols) <= 40 else f"{self.symbols[:40]}…"
            raise ValueError(
                f"the model knows the characters {known.strip()!r}, and {unknown[0]!r} came; "
                "leave it out, or write it otherwise."
            )
        return [numbers[symbol] for symbol in text]

    def decode(self, ids: Iterable[int] | Tensor, **_: Any) -> str:
        numbers = [int(n) for n in ids]
        if self.symbols is None:
            return bytes(numbers).decode("utf-8", "replace")
        return "".join(self.symbols[n] for n in numbers)

    # As transformers' tokenizers are asked.

    def __call__(
        self, text: str, *, return_tensors: str | None = None, verbose: bool = True
    ) -> dict[str, Any]:
        ids = self.encode(text)
        return {"input_ids": torch.tensor([ids]) if return_tensors == "pt" else ids}

    @property
    def bos_token(self) -> str | None:
        return self.separator

    @property
    def bos_token_id(self) -> int | None:
        if self.separator is None or self.symbols is None:
            return None
        return self.symbols.index(self.separator)

    @property
    def all_special_ids(self) -> list[int]:
        return [] if self.bos_token_id is None else [self.bos_token_id]

    @property
    def least(self) -> int:
        """Tokens that a text must have to be shown: a name is a whole text."""
        return 8 if self.separator is None else 3

    def convert_ids_to_tokens(self, token: int) -> str:
        """A letter for each byte, as byte-level tokenizers write a piece of a letter."""
        return _BYTES[token] if self.symbols is None else self.decode([token])


def digest_of(text: str) -> str:
    """What tells a text from every other, in a few letters."""
    return hashlib.sha256(text.encode()).hexdigest()


def _byte_letters() -> list[str]:
    """GPT-2's table: printable bytes as they are, the others from 256 on, in their order."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


_BYTES = _byte_letters()
