"""One text through one model: every head recorded and named, the main names tried by cutting.

Here it is gathered; findings.py puts it into sentences, terminal.py prints it, files.py writes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..patterns import DEFAULT_TEXT, Habit, Name, Probe, Verdict, habits, probe, verify
from ..patterns.cues import check_known
from ..recording import DEFAULT, Recording, record
from .tokens import one_line

STATS = (*DEFAULT, "peak_key", "received_mean")
SHOWN = ("entropy", "distance", "peak", "first", "received_top", "received_top_share")
# What is told first: the patterns that say most about a head.
ORDER = ("induction", "previous token", "duplicate token", "next token", "separator", "self",
         "local", "first token")  # fmt: skip
TRIED = ORDER[:3]  # by cutting: there a cut says what should suffer
LEAST = 8  # tokens, below which means say nothing
START = 120  # letters of a text that are shown to tell which it is
LETTERS = 64  # read for each token wanted; a token is rarely longer than a word
CUE = 128  # tokens that the texts to name heads on may have
Tell = Callable[[str, float | None], None]


@dataclasses.dataclass(frozen=True)
class About:
    """Which model, and which text."""

    model: str  # a line: "SmolLM2-135M-Instruct, 4-bit quantised, Apache-2.0"
    licence: str | None  # None where it is not known here
    text: str  # where it comes from
    total: int | None  # tokens of the whole text; None where it was too long to count
    has_bos: bool
    bos: str | None  # what the tokenizer calls its first token, where it has one
    content: str = ""  # the text itself, as far as it was read: tokens may split its letters


@dataclasses.dataclass(frozen=True)
class Report:
    """All that is shown of one run."""

    about: About
    rec: Recording
    habits: list[Habit]
    names: list[Name] | None = None  # None: not looked for
    scores: list[dict[str, Any]] | None = None  # of every head in every pattern
    controlled: bool = False  # whether names were held against controls
    verdicts: list[Verdict] | None = None  # None: nothing was cut
    rest: str = "this text"  # what heads were named on at rest
    unnamed: str = "--no-names"  # why no names were looked for
    batch: int = 0  # which text of the recording

    @property
    def tokens(self) -> int:
        return 0 if self.rec.ids is None else self.rec.ids.shape[1]

    @property
    def places(self) -> int:
        """How many rows there are to have habits in: tokens but for padding, patches or frames."""
        rec = self.rec
        if rec.ids is None:
            return next((one.queries for one in rec.layers if not one.crosses), 0)
        fits = rec.real is not None and rec.real.shape == rec.ids.shape
        return int(rec.real[self.batch].sum()) if rec.real is not None and fits else self.tokens

    @property
    def unit(self) -> str:
        """What a place is called."""
        return "place" if self.rec.ids is None else "token"

    @property
    def words(self) -> list[str]:
        return self.rec.words[self.batch] if self.rec.words else []

    @property
    def start(self) -> str:
        """How the text begins, on one line; … where there is more of it."""
        whole = one_line(self.about.content)
        cut = whole if len(whole) <= START else whole[:START].rpartition(" ")[0] or whole[:START]
        more = cut != whole or self.about.total is None or self.about.total > self.tokens
        return f"{cut} …" if more else cut

    @property
    def loss(self) -> float | None:
        return None if self.rec.loss is None else float(self.rec.loss.nanmean())

    def heads(self) -> list[dict[str, Any]]:
        """One dict a head: its statistics, and its names where they were looked for."""
        rows = []
        for row in self.rec.heads():
            place = (row["layer"], row["head"])
            kept = {key: row[key] for key in ("layer", "head", *SHOWN) if key in row}
            if self.names is not None:
                kept["names"] = [n for n in self.names if (n.layer, n.head) == place]
            rows.append(kept)
        return rows

    def strongest(self, pattern: str) -> Name | None:
        """The name to show of a pattern: on cue where it was earned so."""
        own = [n for n in self.names or () if n.pattern == pattern]
        cued = [n for n in own if n.where == "on cue"]
        return max(cued or own, key=lambda n: n.score, default=None)

    def verdict(self, name: Name) -> Verdict | None:
        return next((v for v in self.verdicts or () if v.name == name), None)


def study(
    model: Any,
    tokenizer: Any,
    text: str = DEFAULT_TEXT,
    *,
    about: str = "",
    licence: str | None = None,
    source: str = "",
    tokens: int = 512,
    names: bool = True,
    cuts: bool = True,
    controls: bool = True,
    unnamed: str = "--no-names",
    tell: Tell = lambda what, share: None,
) -> Report:
    """Record a text; name heads and try the main names, as far as asked."""
    ids, total = tokenise(tokenizer, text, tokens)
    check_known(ids, model)
    if names:
        check_names(model, tokenizer)
    tell(f"Recording {len(ids)} tokens", None)
    with torch.no_grad(), record(model, stats=STATS, tokenizer=tokenizer) as rec:
        model(ids[None].to(next(model.parameters()).device))
    bos = getattr(tokenizer, "bos_token_id", None)
    has_bos = bos is not None and int(ids[0]) == bos
    told = About(
        about, licence, source, total, has_bos, getattr(tokenizer, "bos_token", None),
        content(tokenizer, text, ids, total),
    )  # fmt: skip
    found = Report(told, rec, habits(rec), unnamed=unnamed)
    if not names:
        return found
    vocabulary = model.config.get_text_config().vocab_size
    seen = probe(
        model, tokenizer, text=ids, vocab=vocabulary, controls=controls,
        progress=lambda what, share: tell(f"Naming heads: {what}", share),
    )  # fmt: skip
    found = dataclasses.replace(
        found, names=seen.names(), scores=seen.table(), controlled=seen.controlled
    )
    return dataclasses.replace(found, verdicts=_try(found, seen, tell)) if cuts else found


def _try(found: Report, seen: Probe, tell: Tell) -> list[Verdict]:
    chosen = [name for pattern in TRIED if (name := found.strongest(pattern))]
    cued = [name for name in chosen if name.where == "on cue"]
    return verify(seen, cued, progress=lambda what, share: tell(f"Cutting links: {what}", share))


def tokenise(tokenizer: Any, text: str, tokens: int) -> tuple[Tensor, int | None]:
    """The first `tokens` of a text, and how many it has, None where it was too long to count."""
    check_text(text)
    ids = tokenizer(text[: LETTERS * tokens], verbose=False)["input_ids"]
    check_length(len(ids), getattr(tokenizer, "least", LEAST))
    return torch.tensor(ids[:tokens]), len(ids) if len(text) <= LETTERS * tokens else None


def content(tokenizer: Any, text: str, ids: Tensor, total: int | None) -> str:
    """The text as far as it was read, and not what its tokens give one by one."""
    if total == len(ids):
        return text
    if not getattr(tokenizer, "is_fast", False):
        return tokenizer.decode(ids.tolist())
    asked = tokenizer(text[: LETTERS * len(ids)], verbose=False, return_offsets_mapping=True)
    return text[: max(end for _, end in asked["offset_mapping"][: len(ids)])]


def check_length(tokens: int, least: int) -> None:
    if tokens < least:
        raise ValueError(
            f"the text must have at least {least} tokens, and it has {tokens}; "
            "give a sentence or two."
        )


def check_text(text: str, least: int = 0) -> None:
    """Raise for what no tokenizer could help; fewer than `least` tokens too, where that is sure."""
    if not text.strip():
        raise ValueError("the text is empty; give a paragraph, or leave it out for ours.")
    if any("\ud800" <= c <= "\udfff" for c in text):  # what a shell gives for bytes of another code
        raise ValueError("the text must be UTF-8, and has bytes that are not; convert it first.")
    if len(text.encode()) + 2 < least:  # a token has a byte at least, but for a BOS and an EOS
        raise ValueError(
            f"the text must have at least {least} tokens, and these {len(text)} letters cannot; "
            "give a sentence or two."
        )


def example(model: Any, text: str, source: str) -> tuple[str, str]:
    """A model's own example in place of our story, which a small one of characters cannot read."""
    own = getattr(model.config, "example", "")
    return (own, "what it has not trained on") if own and text is DEFAULT_TEXT else (text, source)


def context(model: Any) -> int | None:
    """How many tokens a model reads at most, where its configuration says so."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def check_names(model: Any, tokenizer: Any) -> None:
    """Raise where random tokens cannot be drawn to name heads on."""
    config = model.config.get_text_config()
    plain = config.vocab_size - len(getattr(tokenizer, "all_special_ids", ()))
    for what, has in (("a context", context(model)), ("a vocabulary", plain)):
        if has is not None and has < CUE:
            raise ValueError(
                f"to name heads takes {what} of {CUE} tokens, and this model has {has}; "
                "give --no-names."
            )
