"""Run the model for the page: record a text, or cut something and see what its words cost then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...masks import dense
from ...observation import heatmap
from ...patterns.cues import check_known
from ...recording import Recording, ablate, cut, record
from ..report import STATS, Tell, tokenise
from .thumbs import THUMB

GUESSES = 5
_AT_ONCE = 64  # rows of logits
Guesses = list[list[tuple[str, float]]]  # what each token thinks comes next, likeliest first
Point = tuple[float, float]  # a query and a key


def make_recording(
    model: Any, tokenizer: Any, text: str, tokens: int, tell: Tell
) -> tuple[Recording, Guesses, dict[str, Any]]:
    """Every head on the first tokens of a text, the next words it thought of, and what it was."""
    ids, total = tokenise(tokenizer, text, tokens)
    check_known(ids, model)
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    what = f"Recording {len(ids):,} tokens"
    tell(what, 0.0 if layers else None)

    def told(calls: int) -> None:
        tell(what, min(1.0, calls / layers) if layers else None)

    stats = (*STATS, heatmap(THUMB))
    with torch.no_grad(), record(model, stats=stats, tokenizer=tokenizer, progress=told) as rec:
        output = model(ids[None].to(next(model.parameters()).device))
    bos = getattr(tokenizer, "bos_token_id", None)
    about = {
        "bos": bool(bos is not None and int(ids[0]) == bos),
        "bos_token": getattr(tokenizer, "bos_token", None),
        "total": total,
    }
    return rec, next_words(_logits(output), tokenizer), about


def _logits(output: Any) -> Tensor:
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 3:
        raise ValueError("the page reads next words from logits, and this model gives none.")
    return logits[0]


@torch.no_grad()
def next_words(logits: Tensor, tokenizer: Any) -> Guesses:
    """The likeliest next tokens of each row of (row, token), with their probabilities."""
    found: Guesses = []
    words: dict[int, str] = {}
    for rows in logits.split(_AT_ONCE):
        best = rows.float().topk(min(GUESSES, rows.shape[-1]))  # an alphabet may be of two
        chance = (best.values - rows.float().logsumexp(-1, keepdim=True)).exp()
        for ids, shares in zip(best.indices.tolist(), chance.tolist(), strict=True):
            for token in ids:
                words.setdefault(token, tokenizer.decode([token]))
            found.append([(words[token], p) for token, p in zip(ids, shares, strict=True)])
    return found


class Text(NamedTuple):
    """One text of a batch as the model read it; padding behind it is not run again."""

    ids: Tensor  # (token,)
    real: Tensor  # (token,): False where it was padded

    @classmethod
    def of(cls, rec: Recording, batch: int) -> Text:
        assert rec.ids is not None
        ids = torch.as_tensor(rec.ids)[batch]
        real = rec.real
        fits = real is not None and real.shape == rec.ids.shape and bool(real[batch].any())
        return cls(ids, real[batch] if real is not None and fits else torch.ones_like(ids).bool())

    @property
    def end(self) -> int:
        return int(self.real.nonzero()[-1]) + 1


def cut_and_see(
    model: Any,
    tokenizer: Any,
    text: Text,
    heads: Iterable[tuple[int, int]],
    lasso: list[Point] | None,
    by: str,
) -> dict[str, Any]:
    """Losses and next words without some heads, or without their links inside a lasso."""
    chosen = [*heads]
    surgery: contextlib.AbstractContextManager = (
        ablate(model, chosen, by=by)
        if lasso is None
        else cut(model, chosen, links=dense(inside(lasso, text.end)[None, None]))
    )
    with surgery:
        return read_again(model, tokenizer, text)


@torch.no_grad()
def forward(model: Any, text: Text) -> Any:
    """The model on one text again, as it was read."""
    device, real = next(model.parameters()).device, text.real[: text.end]
    padding = {} if real.all() else {"attention_mask": real[None].long().to(device)}
    return model(text.ids[None, : text.end].to(device), **padding)


@torch.no_grad()
def read_again(model: Any, tokenizer: Any, text: Text) -> dict[str, Any]:
    """The loss and the next words of each token of a text; of padding neither."""
    end = text.end
    ids, real = text.ids[:end], text.real[:end]
    logits = _logits(forward(model, text)).float().cpu()
    loss = torch.full((len(text.ids),), torch.nan)
    cost = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
    loss[1:end] = cost.masked_fill(~(real[1:] & real[:-1]), torch.nan)
    words = next_words(logits, tokenizer)
    guesses = [found if is_real else [] for found, is_real in zip(words, real, strict=True)]
    return {"loss": loss, "guesses": guesses + [[]] * (len(text.ids) - end)}


def inside(lasso: list[Point], count: int) -> Tensor:
    """The links whose middle lies inside a lasso of (query, key) points, (query, key).

    A ray along the keys crosses the lasso an odd number of times from inside. Link (i, j) is the
    square from i to i + 1 and j to j + 1.

    >>> inside([(1, 0), (1, 2), (3, 2), (3, 0)], 4).int()
    tensor([[0, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 0, 0]], dtype=torch.int32)
    """
    if len(lasso) < 3:
        raise ValueError(f"a lasso needs 3 points at least, but {len(lasso)} came; draw a loop.")
    middle = torch.arange(count) + 0.5
    odd = torch.zeros(count, count, dtype=torch.bool)
    for (q0, k0), (q1, k1) in zip(lasso, [*lasso[1:], lasso[0]], strict=True):
        crosses = (middle >= min(q0, q1)) & (middle < max(q0, q1))  # (query,)
        rows = crosses.nonzero()[:, 0]
        if len(rows):
            at = k0 + (middle[rows] - q0) * (k1 - k0) / (q1 - q0)
            odd[rows] ^= middle[None] > at[:, None]
    return odd
