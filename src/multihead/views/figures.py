"""Figures of a report, as matplotlib draws them with no display; same data, same file.

Colours are viridis and cividis, even to the eye and to colour-blind eyes; names have markers of
their own besides.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .findings import label
from .glyphs import FONT, drawable
from .placing import place, stands_off
from .report import ORDER, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A statistic, what its colour bar says, its title, and where its scale ends where that is known.
GRIDS = {
    "entropy": ("entropy, nats", "How widely each head looks", None),
    "distance": ("mean distance, tokens", "How far each head looks", None),
    "peak": ("largest weight of a row, mean", "How sharply each head looks", 1.0),
    "first": ("weight on the first token, mean", "How much it leaves on the first token", 1.0),
    "received_top_share": (
        "share of the rows' weight", "How much of its weight goes to its favourite key", 1.0,
    ),
}  # fmt: skip
# Okabe and Ito's colours, told apart by nearly all eyes; and a shape each.
STYLES = {
    "induction": ("#D55E00", "o"),
    "previous token": ("#0072B2", "s"),
    "duplicate token": ("#009E73", "D"),
    "next token": ("#56B4E9", ">"),
    "separator": ("#CC79A7", "P"),
    "self": ("#E69F00", "^"),
    "local": ("#F0E442", "v"),
    "first token": ("#BBBBBB", "X"),
    "no name": ("#000000", "."),
}
SETTINGS: dict[Any, Any] = {
    "font.family": [FONT, "sans-serif"],  # the second for whoever opens an SVG without the first
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "svg.hashsalt": "multihead",
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and copied
    "text.parse_math": False,  # a $ is a token like any other
}
DPI = 150
SMALL = 9.0  # points of a label beside a dot


def figures(report: Report) -> Iterator[tuple[str, Figure]]:
    """Every figure with the name of its file: grids, the scatter, maps of the strongest heads."""
    from .mapped import maps

    rows = report.heads()
    for key in GRIDS:
        if rows and key in rows[0]:
            yield f"grid-{key.replace('_', '-')}", grid(report, rows, key)
    if rows and {"entropy", "distance"} <= {*rows[0]}:
        yield "entropy-distance", scatter(report, rows)
    yield from maps(report)


def save(figure: Figure, kind: str) -> bytes:
    """The bytes of a PNG or SVG, with no date in them."""
    import matplotlib

    file = io.BytesIO()
    dates = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():  # of glyphs, say
        warnings.simplefilter("ignore")
        figure.savefig(file, format=kind, dpi=DPI, metadata=dates, facecolor="white")
    return file.getvalue()


def sheet(width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes, without pyplot: that would ask for a display and keep them all."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(**options)


def grid(report: Report, rows: Sequence[dict[str, Any]], key: str) -> Figure:
    """One statistic of every head: layers across, heads down."""
    import matplotlib

    unit, title, most = GRIDS[key]
    layers = sorted({row["layer"] for row in rows})
    heads = 1 + max(row["head"] for row in rows)
    cells = np.full((heads, len(layers)), np.nan)
    for row in rows:
        cells[row["head"], layers.index(row["layer"])] = row[key]
    width = min(18.0, max(6.0, 1.9 + 0.3 * len(layers)))
    figure, axes = sheet(width, min(14.0, max(2.6, 1.3 + 0.3 * heads)))
    with matplotlib.rc_context(SETTINGS):
        edges = [np.arange(n + 1) - 0.5 for n in (len(layers), heads)]
        shades = axes.pcolormesh(*edges, cells, cmap="viridis", vmin=0.0, vmax=most)
        axes.invert_yaxis()
        axes.set_xlabel("layer")
        axes.set_ylabel("head")
        step = max(1, -(-len(layers) // 30))
        axes.set_xticks(range(0, len(layers), step), [str(n) for n in layers[::step]])
        axes.set_yticks(range(0, heads, max(1, -(-heads // 32))))
        axes.tick_params(length=0, labelsize=8)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_title(f"{title}\n{_under(report)}", fontsize=11)
        figure.colorbar(shades, ax=axes, label=unit, pad=0.01)
    return figure


def _under(report: Report) -> str:
    return drawable(f"{report.about.model}; {report.tokens:,} tokens")


def scatter(report: Report, rows: Sequence[dict[str, Any]]) -> Figure:
    """A dot a head: how widely it looks against how far; its name in colour and shape."""
    import matplotlib

    figure, axes = sheet(9.0, 5.6)
    with matplotlib.rc_context(SETTINGS):
        kinds: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            kinds.setdefault(main_name(row), []).append(row)
        for kind in reversed(STYLES):  # what says most lies on top
            own = kinds.get(kind, [])
            if own:
                _dots(axes, kind, own, bool(report.names is not None))
        axes.set_xlabel("entropy, nats (wide →)")
        axes.set_ylabel("mean distance, tokens (far ↑)")
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
        axes.set_title(f"How widely and how far each head looks\n{_under(report)}", fontsize=11)
        if report.names is not None:
            handles, labels = axes.get_legend_handles_labels()
            axes.legend(
                handles[::-1], labels[::-1], title="most telling name (heads)", fontsize=9,
                loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False,
            )  # fmt: skip
        _point_out(axes, report, rows)  # last: where there is room is known then
    return figure


def _point_out(axes: Axes, report: Report, rows: Sequence[dict[str, Any]]) -> None:
    """Which dot is the strongest head of each pattern; a line leads to a label that stands off."""
    from matplotlib.patheffects import withStroke

    places = list({(n.layer, n.head): n for p in ORDER if (n := report.strongest(p))})
    heads = [(row["layer"], row["head"]) for row in rows]
    owners = [heads.index(place) for place in places]
    where = [(row["entropy"], row["distance"]) for row in rows]
    if not places or not np.isfinite(where).all():
        return
    points, room = _in_points(axes, where)
    sizes = [(0.65 * SMALL * len(label(*place)) + 2, SMALL + 2) for place in places]
    shifts = place(sizes, owners, points, room)
    for one, owner, shift, size in zip(places, owners, shifts, sizes, strict=True):
        axes.annotate(
            label(*one), where[owner], textcoords="offset points", xytext=shift, ha="center",
            va="center", fontsize=SMALL, fontweight="bold", zorder=9,
            path_effects=[withStroke(linewidth=3, foreground="white")],
            arrowprops={"arrowstyle": "-", "linewidth": 0.7, "shrinkA": 1, "shrinkB": 3}
            if stands_off(shift, size) else None,
        )  # fmt: skip


def _in_points(axes: Axes, where: Sequence[Any]) -> tuple[np.ndarray, tuple[float, float]]:
    """Places of the data as they will lie on the page, from the lower left of the axes."""
    figure: Any = axes.figure
    figure.draw_without_rendering()  # the layout is found when it is drawn
    scale = 72.0 / figure.dpi
    box = axes.get_window_extent()
    points = (axes.transData.transform(np.array(where, dtype=float)) - (box.x0, box.y0)) * scale
    return points, (box.width * scale, box.height * scale)


def _dots(axes: Axes, kind: str, rows: Sequence[dict[str, Any]], named: bool) -> None:
    colour, marker = STYLES[kind]
    axes.scatter(
        [row["entropy"] for row in rows], [row["distance"] for row in rows],
        c=colour, marker=marker, s=70 if marker == "." else 46, linewidths=0.5,
        edgecolors="black" if marker != "." else "none",
        label=f"{kind} ({len(rows)})" if named else None,
    )  # fmt: skip


def main_name(row: dict[str, Any]) -> str:
    """The pattern that says most about a head, of those it has a name for."""
    own = {name.pattern for name in row.get("names") or ()}
    return next((pattern for pattern in ORDER if pattern in own), "no name")
