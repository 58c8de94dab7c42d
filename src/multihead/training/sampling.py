"""One token out of logits: by temperature, among the likeliest, by a seed."""

from __future__ import annotations

import dataclasses
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Below this any two float32 logits that differ are e^(10¹⁵⁰) apart, and divided by it they may be
# beyond all numbers: the likeliest is taken.
_GREEDY = 1e-200


@dataclasses.dataclass(frozen=True)
class Taste:
    """How to choose: 0 takes the likeliest, 1 draws as the model says, above 1 more boldly.

    `top_k` keeps the k likeliest, `top_p` the fewest that hold so much of the probability.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.temperature < math.inf):
            raise ValueError(
                f"temperature must be 0 or more, and {self.temperature!r} came; give 1."
            )
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise ValueError(f"top_k must be 1 or more, and {self.top_k!r} came; leave it out.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(
                f"top_p must be above 0 and at most 1, and {self.top_p!r} came; leave it out."
            )


def draw(
    logits: Float[Tensor, "batch vocab"], taste: Taste, random: torch.Generator
) -> Int[Tensor, "batch 1"]:
    """A token for each row. Drawn on the CPU, so that a seed says the same on every device.

    >>> logits = torch.tensor([[0.0, 3.0, 1.0]])
    >>> draw(logits, Taste(temperature=0), torch.Generator())
    tensor([[1]])
    """
    if taste.temperature < _GREEDY:
        return logits.argmax(-1, keepdim=True)
    chances = allowed(logits.double().cpu() / taste.temperature, taste).softmax(-1)
    return torch.multinomial(chances, 1, generator=random).to(logits.device)


def allowed(logits: Float[Tensor, "batch vocab"], taste: Taste) -> Float[Tensor, "batch vocab"]:
    """The logits with −inf where `top_k` or `top_p` leaves a token out; the likeliest stays.

    >>> allowed(torch.tensor([[2.0, 1.0, 0.0]]), Taste(top_k=2))
    tensor([[2., 1., -inf]])
    >>> allowed(torch.tensor([[2.0, 1.0, 0.0]]), Taste(top_p=0.7))  # 0.67, 0.24, 0.09
    tensor([[2., 1., -inf]])
    """
    if taste.top_k is not None and taste.top_k < logits.shape[-1]:
        least = logits.topk(taste.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if taste.top_p is not None:
        sorted_logits, order = logits.sort(-1, descending=True)
        shares = sorted_logits.softmax(-1)
        enough = shares.cumsum(-1) - shares >= taste.top_p  # those before it are enough already
        logits = logits.masked_fill(torch.zeros_like(enough).scatter(-1, order, enough), -math.inf)
    return logits
