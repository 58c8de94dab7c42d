"""Figures of single heads: the whole map in cells, an excerpt weight by weight with its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..masks import Mask
from ..patterns import PATTERNS
from ..patterns.table import Text
from .figures import SETTINGS, sheet
from .findings import label
from .glyphs import drawable
from .report import ORDER, Report
from .terminal import extremes
from .tokens import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHOLE = 40  # tokens that are shown as they are
WINDOW = 28  # tokens of an excerpt
CELLS = 128
NEAR = 1024  # tokens among which an excerpt is looked for
HIDDEN = "#EDEDED"  # what the mask hides
WIDE = 14  # letters of a token


def maps(report: Report) -> Iterator[tuple[str, Figure]]:
    """The strongest head of each pattern; without names, the extremes."""
    if report.names is None:
        for what, row in extremes(report.heads()).items():
            title = f"Head {label(row['layer'], row['head'])}, the {what}"
            yield (
                f"map-{what.replace(' ', '-')}",
                _map(report, row["layer"], row["head"], title, None),
            )
        return
    ids = None if report.rec.ids is None else report.rec.ids[0]
    for pattern in ORDER:
        if (name := report.strongest(pattern)) is None:
            continue
        title = (
            f"Head {label(name.layer, name.head)}: {PATTERNS[pattern].says} "
            f"({pattern}, {name.where} {name.score:.2f})"
        )
        links = None if ids is None else PATTERNS[pattern].mask(_text(ids, report.words))
        yield f"map-{pattern.replace(' ', '-')}", _map(report, name.layer, name.head, title, links)


def _text(ids: Tensor, words: Sequence[str]) -> Text:
    marks = [bool(w) and not any(c.isalnum() for c in w) for w in words] or [False] * len(ids)
    return Text(ids, torch.zeros(len(ids), dtype=torch.bool), torch.tensor(marks))


def _map(report: Report, layer: int, head: int, title: str, links: Mask | None) -> Figure:
    import matplotlib

    n = report.rec[layer].queries
    if n <= WHOLE:
        figure, axes = sheet(8.4, 7.6)
        with matplotlib.rc_context(SETTINGS):
            every = slice(0, n)
            _excerpt(figure, axes, report, layer, head, every, every)
    else:
        rows, keys = _where(report, layer, head, links)
        figure, (left, right) = sheet(14.0, 6.9, ncols=2)
        with matplotlib.rc_context(SETTINGS):
            _whole(figure, left, report, layer, head, (rows, keys))
            _excerpt(figure, right, report, layer, head, rows, keys)
    with matplotlib.rc_context(SETTINGS):
        about = drawable(f"{report.about.model}; {report.tokens:,} tokens of {report.about.text}")
        figure.suptitle(f"{title}\n{about}", fontsize=12, x=0.01, ha="left")
    return figure


def _where(report: Report, layer: int, head: int, links: Mask | None) -> tuple[slice, slice]:
    """The square that holds most of what the pattern points at; else of what is not the first."""
    near = min(NEAR, report.rec[layer].queries)
    weights = report.rec.weights(layer, head, slice(0, near), slice(0, near))
    places = torch.arange(near)
    if links is not None:
        weights = weights * links.allows(places, places, 0)[0, 0, :near, :near]
    else:
        weights = weights * (places > 0)
    weights = weights * (places[:, None] >= min(near // 4, WINDOW))  # the first rows have no choice
    total = torch.nn.functional.pad(weights.double().cumsum(0).cumsum(1), (1, 0, 1, 0))
    side = min(WINDOW, near)
    sums = total[side:, side:] - total[:-side, side:] - total[side:, :-side] + total[:-side, :-side]
    best = int(sums.round(decimals=9).argmax())
    row, key = divmod(best, sums.shape[1])
    return slice(row, row + side), slice(key, key + side)


def _whole(
    figure: Figure, axes: Axes, report: Report, layer: int, head: int, inset: tuple[slice, slice]
) -> None:
    """The largest weight of each cell, and where the excerpt lies."""
    from matplotlib.patches import Rectangle

    n = report.rec[layer].queries
    heat = report.rec.heatmap(layer, head, min(CELLS, n))
    shown = np.where(heat.pairs.numpy() > 0, heat.largest.numpy(), np.nan)
    image = axes.imshow(
        shown, extent=(0, report.rec[layer].keys, n, 0), interpolation="nearest", **_scale()
    )
    axes.set_facecolor(HIDDEN)
    rows, keys = inset
    axes.add_patch(
        Rectangle((keys.start, rows.start), keys.stop - keys.start, rows.stop - rows.start,
                  fill=False, edgecolor="#D55E00", linewidth=1.8)
    )  # fmt: skip
    axes.set_title(f"the whole map: the largest weight of each of {len(shown)}² cells", fontsize=10)
    _sides(axes)
    figure.colorbar(image, ax=axes, label="weight (square-root scale)", shrink=0.8, pad=0.02)


def _excerpt(
    figure: Figure, axes: Axes, report: Report, layer: int, head: int, rows: slice, keys: slice
) -> None:
    """Weight by weight, with the tokens of both sides."""
    weights = report.rec.weights(layer, head, rows, keys).float()
    allowed = report.rec[layer].allowed(0, head)[rows, keys]  # elsewhere 0 is no choice of the head
    shown = np.where(allowed.numpy(), weights.numpy(), np.nan)
    image = axes.imshow(shown, interpolation="nearest", **_scale())
    axes.set_facecolor(HIDDEN)
    for set_ticks, places, turn in ((axes.set_xticks, keys, 90), (axes.set_yticks, rows, 0)):
        set_ticks(range(len(shown)), _labels(report.words, places), rotation=turn, fontsize=7.5)
    axes.tick_params(length=2)
    axes.set_title(
        f"every weight: tokens {rows.start} to {rows.stop - 1} ask "
        f"{keys.start} to {keys.stop - 1}", fontsize=10,
    )  # fmt: skip
    _sides(axes)
    if figure.axes[0] is axes:
        figure.colorbar(image, ax=axes, label="weight (square-root scale)", shrink=0.8, pad=0.02)


def _scale() -> dict[str, Any]:
    """Small weights must show beside large ones: the root of a weight is its colour."""
    from matplotlib.colors import PowerNorm

    return {"cmap": "cividis", "norm": PowerNorm(0.5, vmin=0.0, vmax=1.0)}


def _sides(axes: Axes) -> None:
    axes.set_xlabel("key: the token that is asked")
    axes.set_ylabel("query: the token that asks")


def _labels(words: Sequence[str], places: slice) -> list[str]:
    if not words:
        return [str(place) for place in range(places.start, places.stop)]
    return [drawable(visible(word), WIDE) for word in words[places]]
