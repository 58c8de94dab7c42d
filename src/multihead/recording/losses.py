"""−ln p of each token, where a model gave logits that speak of it.

causal     a token by the row before it; where a label is −100, none
masked     a label by its own row, where the model sees the whole text; elsewhere none
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..attention import fused
from .keeping import kept
from .names import in_backward
from .refusals import is_fake

_AT_ONCE = 64  # rows of logits at a time; on a GPU, which likes them wider, 16 times as many


class Losses:
    """The losses of one text, its steps one behind another."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        self.masked = False  # whether they are of labels at their own rows
        self._last: Tensor | None = None  # the last logits, which speak of a token to come

    def add(self, ids: Tensor, logits: Tensor | None, unlabelled: Tensor | None) -> None:
        """Of tokens, by those before them; NaN where nothing was said, or said to be left out."""
        last, self._last = self._last, None
        if logits is None or not _fits(logits, ids):
            self.parts.append(torch.full(ids.shape, torch.nan))
            return
        ids = ids.to(logits.device)
        loss = torch.full(ids.shape, torch.nan, device=ids.device)
        if last is not None:
            loss[:, :1] = _nats(last.to(ids.device), ids[:, :1])
        rows = logits.shape[1]  # the last ones, where a model gives only those that are needed
        first = ids.shape[1] - rows
        if rows > 1:
            loss[:, first + 1 :] = _nats(logits[:, :-1], ids[:, first + 1 :])
        if unlabelled is not None:
            loss.masked_fill_(unlabelled.to(ids.device), torch.nan)
        loss.masked_fill_(ids < 0, torch.nan)  # where something else than a word stands
        # On a GPU an answer would have to be waited for; so those that know fewer words say NaN.
        strange = (ids >= logits.shape[2]).any()
        self.parts.append(kept(loss.masked_fill_(strange, torch.nan)))
        self._last = logits[:, -1:].detach().masked_fill(strange, torch.nan)  # a copy: not them all

    def add_masked(self, labels: Tensor, logits: Tensor | None) -> None:
        """Of labels, each by its own row: the model sees all of a text but what they stand for."""
        loss = torch.full(labels.shape, torch.nan)
        self.parts.append(loss)
        asked = labels.clamp(min=0)
        if logits is None or logits.shape[1] != labels.shape[1] or not _fits(logits, asked):
            return
        if int(asked.max()) < logits.shape[2]:
            self.masked = True
            loss.copy_(_nats(logits, asked).masked_fill(labels < 0, torch.nan))

    def joined(self, real: Tensor | None) -> Tensor | None:
        """(batch, token), NaN at padding and behind it; None where there is nothing else."""
        loss = torch.cat(self.parts, dim=1)
        if real is not None:
            loss = loss.masked_fill(~real, torch.nan)
            if not self.masked:
                loss[:, 1:] = loss[:, 1:].masked_fill(~real[:, :-1], torch.nan)
        return None if bool(loss.isnan().all()) else loss


def _fits(logits: Tensor, ids: Tensor) -> bool:
    return (
        logits.ndim == 3
        and len(logits) == len(ids)
        and logits.shape[1] <= ids.shape[1]
        and logits.shape[2] > 0
    )


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    """−ln softmax at the targets, (batch, row), a few rows at a time through one buffer.

    Of a target before the first word or beyond the last, that of the nearest.
    """
    targets = targets.long().clamp(0, logits.shape[2] - 1)
    if logits.is_cuda and logits.stride(-1) == 1 and fused.ready(logits.device):
        from .kernels import nats

        return torch.stack([nats(*text) for text in zip(logits, targets, strict=True)])
    found = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    at_once = min(16 * _AT_ONCE if logits.is_cuda else _AT_ONCE, targets.shape[1])
    buffer = found.new_empty(len(logits), at_once, logits.shape[2])
    for first in range(0, targets.shape[1], at_once):
        some = logits[:, first : first + at_once]
        rows = slice(first, first + some.shape[1])
        top = some.amax(-1, keepdim=True).float()
        powers = torch.sub(some, top, out=buffer[:, : some.shape[1]]).exp_()
        own = some.gather(-1, targets[:, rows, None]).float()
        found[:, rows] = (powers.sum(-1).log_() + (top - own)[..., 0]).to(found.dtype)
    return found


class Vocabulary:
    """How many tokens a model knows: as its configuration says, or by the table it looks ids up in.

    A table of positions, or of kinds, is none: what it was given are not the ids.
    """

    def __init__(self, model: nn.Module) -> None:
        config = getattr(model, "config", None)
        told = (
            getattr(c, "vocab_size", None) for c in (config, getattr(config, "text_config", None))
        )
        self._told = [size for size in told if isinstance(size, int)]
        self._looked_up: list[tuple[Tensor, int]] = []
        self._model = model

    def hooks(self) -> list[Any]:
        if self._told:
            return []
        tables = [m for m in self._model.modules() if isinstance(m, nn.Embedding)]
        return [t.register_forward_pre_hook(self._note) for t in tables]

    def _note(self, table: Any, args: tuple) -> None:
        if args and isinstance(args[0], Tensor) and not (in_backward() or is_fake(args[0])):
            self._looked_up.append((args[0].detach(), table.num_embeddings))

    def forget(self) -> None:
        self._looked_up = []

    def sizes(self, ids: Tensor) -> list[int]:
        """What it may be; empty where nothing tells. Forgets what was looked up."""
        noted, self._looked_up = self._looked_up, []
        found = [
            size for given, size in noted if given.shape == ids.shape and bool((given == ids).all())
        ]
        return self._told or found


def logits_of(output: Any, sizes: list[int]) -> Tensor | None:
    """What speaks of tokens in a model's output: a tensor alone must have the vocabulary's size."""
    named = getattr(output, "logits", None)
    found = named if named is not None else output
    if not isinstance(found, Tensor) or found.ndim != 3 or not found.is_floating_point():
        return None
    if named is None:
        return found if found.shape[-1] in sizes else None
    return None if sizes and found.shape[-1] < min(sizes) else found  # of classes, not of tokens
