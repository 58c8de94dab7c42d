"""One head of a real model on a sentence, every number on the way: real.py puts it into words."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..attention.dense import Steps, steps
from ..attention.problem import pose
from ..masks import offset
from ..observation import mass
from ..patterns.cues import check_known
from ..recording import DEFAULT, Layer, Recording, ablate, record
from ..recording.layer import of_head
from .counts import many
from .report import check_length, check_text, context
from .tokens import visible

LEAST, MAX_TOKENS = 3, 256  # one to follow, with some before it; and a walk is there to be read
PREVIOUS = "previous"


@dataclasses.dataclass(frozen=True)
class Followed:
    """A head at work. `dots` are query · key before they are scaled; `steps` has the rest."""

    words: list[str]
    about: str
    rec: Recording
    layer: Layer
    head: int
    chosen: bool  # by the caller, and not by us
    turned: bool  # whether the model has rope somewhere
    dim: int
    dots: Float[Tensor, "query key"]
    steps: Steps  # of this head alone
    shares: Float[Tensor, "heads query model"] | None  # what each head adds to the layer's output

    @property
    def previous(self) -> float:
        """The mean weight on the token before."""
        return float(self.layer[PREVIOUS][0, self.head, 1:].mean())


@torch.no_grad()
def follow(
    model: Any, tokenizer: Any, text: str, *, layer: int | None = None, head: int | None = None
) -> Followed:
    """Record a sentence and take one head apart: the one asked for, else one that looks back."""
    ids = _ids(model, tokenizer, text)
    stats = (*DEFAULT, mass(offset(-1), name=PREVIOUS))
    with record(model, stats=stats, tokenizer=tokenizer) as rec:
        model(ids)
    damaged = rec.damaged()
    if damaged:
        raise ValueError(
            f"in {many(len(damaged), 'layer')} a weight is not a number, first in {damaged[0]}: "
            "there is nothing to follow; see whether the model's weights are whole."
        )
    seen, which = _choose(rec, layer, head)
    shares = _shares(model, ids, seen)
    if shares is not None and not bool(shares.isfinite().all()):
        raise ValueError(
            f"what the heads of {seen.name} write is not a number: there is nothing to follow; see "
            "whether the model's weights are whole."
        )
    query, key = seen.qk(0)
    kv = which // (seen.heads // seen.kv_heads)
    query, key = query[:1, which : which + 1].float(), key[:1, kv : kv + 1].float()
    asked = of_head(seen.asked(0), 0, which)
    every = steps(pose(query, key, key, dropout=0.0, **asked))  # values are not kept: any will do
    words = [visible(word) for word in (rec.words or [[]])[0]]
    turned = any(map(_turns, model.modules()))
    return Followed(
        words, str(getattr(model.config, "about", "")), rec, seen, which,
        layer is not None or head is not None, turned, query.shape[-1],
        (query @ key.mT)[0, 0], Steps(*(t[0, 0] for t in every)), shares,
    )  # fmt: skip


def _turns(module: nn.Module) -> bool:
    """Whether it is a rope: transformers' module of one, or our layer with one."""
    ours = getattr(module, "rope", None) is not None
    return ours or "rotary" in type(module).__name__.lower()


def check_sentence(text: str) -> None:
    """Raise for what no model could help."""
    if not text.strip():
        raise ValueError('the text has no words; give it a sentence, say "The cat ran away".')
    check_text(text, LEAST)


def _ids(model: Any, tokenizer: Any, text: str) -> Tensor:
    check_sentence(text)
    ids = tokenizer(text, verbose=False)["input_ids"]
    most = min(context(model) or MAX_TOKENS, MAX_TOKENS)
    check_length(len(ids), LEAST)
    if len(ids) > most:
        raise ValueError(
            f"the text may have {most:,} tokens at most, and it has {len(ids):,}; "
            "give it a sentence or two."
        )
    check_known(torch.tensor(ids), model)
    return torch.tensor([ids], device=next(model.parameters()).device)


def _choose(rec: Recording, layer: int | None, head: int | None) -> tuple[Layer, int]:
    """The head asked for; of what is left open, the one that reads most of the token before."""
    layers = [one for one in rec.layers if not one.crosses]
    for what, given, most in (
        ("--layer", layer, len(layers)),
        ("--head", head, max(one.heads for one in layers)),
    ):
        if given is not None and not 0 <= given < most:
            raise ValueError(f"{what} must be 0 to {most - 1} in this model, and {given} came.")
    places = [
        (one, h)
        for n, one in enumerate(layers)
        for h in range(one.heads)
        if layer in (None, n) and head in (None, h)
    ]
    return max(places, key=lambda place: float(place[0][PREVIOUS][0, place[1]].mean()))


def _shares(model: nn.Module, ids: Tensor, layer: Layer) -> Tensor | None:
    """What each head adds to what the layer's module gives: with it, less without it."""
    module = model.get_submodule(layer.name)
    kept: list[Tensor] = []

    def keep(_: nn.Module, given: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        kept.append(first[0].float().cpu())

    handle = module.register_forward_hook(keep)
    try:
        model(ids)
        for head in range(layer.heads):
            with ablate(model, [(layer.index, head)]):
                model(ids)
    finally:
        handle.remove()
    # A module that is called twice, or gives something else than rows, has no such sum.
    if len(kept) != 1 + layer.heads or kept[0].ndim != 2:
        return None
    return torch.stack([kept[0] - without for without in kept[1:]])  # (heads, query, model)
