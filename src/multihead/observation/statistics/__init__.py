"""The statistics: one a file, and one line each in the table below."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ...masks import Mask, dense
from .distance import Distance
from .entropy import Effective, Entropy
from .expect import Expect, ValueNorm
from .heatmap import Heat, HeatMap
from .mass import Mass
from .peak import MaxScore, Peak, PeakKey
from .received import Received, ReceivedMean
from .statistic import Expectation, Matrix, Statistic
from .top import Top, TopK

__all__ = [
    "STATISTICS", "Expectation", "HeatMap", "Matrix", "Statistic", "Stats", "Top", "expect",
    "find", "heatmap", "mass", "received", "top",
]  # fmt: skip

Stats = str | Statistic | Iterable[str | Statistic]  # one, or several

# Those that need no argument, by name. A new one is one more line here.
STATISTICS: dict[str, type[Statistic]] = {
    "entropy": Entropy,
    "effective": Effective,
    "distance": Distance,
    "peak": Peak,
    "peak_key": PeakKey,
    "max_score": MaxScore,
    "received": Received,
    "received_mean": ReceivedMean,
    "value_norm": ValueNorm,
}


def mass(mask: Mask | Tensor, name: str | None = None) -> Mass:
    """The weight that each row puts inside a mask: `mass(offset(-1))` is on the previous token."""
    mask = dense(mask) if isinstance(mask, Tensor) else mask
    if not isinstance(mask, Mask):
        raise ValueError(
            f"mass() takes a mask, but a {type(mask).__name__} came; give mh.offset(-1), say."
        )
    return Mass(mask, name)


def top(count: int, name: str | None = None) -> TopK:
    """The `count` largest weights of each row and their keys."""
    return TopK(count, name)


def heatmap(cells: int) -> Heat:
    """The whole map of each head in cells × cells."""
    return Heat(cells)


def expect(feature: Tensor, name: str = "expect") -> Expect:
    """The mean of a feature of the keys, as each row weighs them."""
    return Expect(_as_it_is(feature), name)


def received(by: Tensor | None = None, name: str | None = None) -> Received:
    """What each key gets from a query head, weighed by a factor of the key."""
    return Received(None if by is None else _as_it_is(by), name)


def _as_it_is(feature: Tensor) -> Tensor:
    if isinstance(feature, Tensor) and feature.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "features are taken as they are, and no gradient flows into them, but these ask for "
            "one; give feature.detach()."
        )
    return feature


def find(asked: str | Statistic) -> Statistic:
    """A statistic by name, or as it came."""
    if isinstance(asked, Statistic):
        return asked
    if isinstance(asked, str) and asked in STATISTICS:
        return STATISTICS[asked]()
    raise ValueError(
        f"there is no statistic {asked!r}; ask for some of these.\n"
        f"  {', '.join(STATISTICS)}, lse, mass(mask), top(k), heatmap(cells), expect(feature), "
        "received(by)"
    )
