"""Watch the heads of a model while it trains: any loop, any model that `record` sees."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..masks import prefix
from ..observation import asked_statistics, mass
from ..observation.statistics import Expectation, Statistic, Stats
from ..observation.statistics.peak import MaxScore, Peak
from ..recording.chosen import whole
from ..recording.scripted import refuse_functions, refuse_modules
from ..recording.watch import check_model
from .floor import EntropyFloor, entropy_floor
from .history import HeadWarning
from .receivers import forget, read_lines, receivers_of
from .sampling import Monitor
from .summary import picture

__all__ = [
    "DEFAULT", "EntropyFloor", "HeadWarning", "Monitor", "entropy_floor", "forget", "monitor",
    "picture", "read_lines",
]  # fmt: skip

DEFAULT = ("max_score", "entropy", "peak", mass(prefix(1)))


def monitor(
    model: nn.Module,
    *,
    every: int = 100,
    stats: Stats = DEFAULT,
    to: Any = None,
    rows: int | None = 64,
    step: int = 0,
) -> Monitor:
    """Watch what the heads of a model do while it trains.

    Every so many steps one forward is measured beside the model's own work, which stays what it
    is: outputs, gradients, random numbers. Each record has every head's statistics, per layer their
    quantiles over heads, the worst heads by name, and the heads that left their own history, which
    are warned of as well (`HeadWarning`).

    Statistics are means over `rows` rows of each text, `max_score` the largest of all rows.
    `entropy` is relative to ln of the keys that each row may see: 1 where it looks at all alike,
    whatever share of it a sink takes.
    `prefix(n)` means the first tokens of a row's own document.

    `to` gets the records: a folder (`runs/first`: heads.jsonl and pooled maps), a file that ends in
    .jsonl, an object with `add_scalar` and `add_image`, a function, or a list of these. `step` is
    how many steps the model has behind it, where training goes on.

    >>> import multihead as mh, torch
    >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> model, told = torch.nn.TransformerEncoder(layer, 2), []
    >>> watch = mh.monitor(model, every=2, to=told.append)
    >>> for _ in range(4):
    ...     loss = model(torch.randn(1, 5, 8)).square().mean()
    ...     loss.backward()
    ...     record = watch.step(loss)
    >>> [record["step"] for record in told], [layer["name"] for layer in told[0]["layers"]]
    ([0, 2], ['layers.0.self_attn', 'layers.1.self_attn'])
    """
    check_model(model)
    refuse_modules(model.named_modules())
    refuse_functions(model.named_modules())
    for name, given, least in (("every", every, 1), ("step", step, 0)):
        _check_whole(name, given, least)
    if rows is not None:
        _check_whole("rows", rows, 1)
    asked = asked_statistics(stats)
    _check_statistics(asked)
    return Monitor(model, every, asked, rows, receivers_of(to, step), step)


def _check_whole(name: str, given: object, least: int) -> None:
    if (number := whole(given)) is None or number < least:
        raise ValueError(f"{name} is a whole number from {least} on, but {given!r} came.")


def _check_statistics(asked: tuple[Statistic, ...]) -> None:
    if not asked:
        raise ValueError("stats are empty; give ('entropy', 'max_score'), say.")
    for statistic in asked:
        if not isinstance(statistic, Expectation | Peak | MaxScore):
            raise ValueError(
                f"{statistic.key} is not one number a row, and a monitor tells one number a head; "
                "give some of entropy, effective, distance, peak, max_score and mass(mask)."
            )
        if statistic.key in ("name", "heads"):
            raise ValueError(f"a statistic cannot be called {statistic.key!r} here; rename it.")
