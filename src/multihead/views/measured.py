"""What attention takes on this machine, in a terminal: a row for each number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ..masks import Mask
from ..measuring import Asked, Row
from .counts import many
from .lines import columns, say, show

NOISY = 0.15  # of the processors
HEADING = ("tokens", "SDPA", "attend", "×", "looking", "×", "eager", "×", "its matrix")


def print_measured(
    asked: Asked, rows: Sequence[Row], machine: dict[str, str], console: Console,
    others: float = 0.0,
) -> None:  # fmt: skip
    """The table, what its words mean, and who answered; `others` is their share of the machine."""
    console.print()
    say(
        console,
        f"{machine.get('gpu', machine['cpu'])}; torch {machine['torch']}; {machine['date']}",
    )
    say(console, _question(asked))
    console.print()
    show(console, columns([HEADING, *map(_cells, rows)], gap=2))
    console.print()
    say(console, _legend(asked, rows), "dim")
    if others > NOISY:
        said = f"Others took {others:.0%} of this machine's processors meanwhile: times are too "
        say(console, f"{said}long, and those of many small steps (looking) most. Try again.")


def _question(asked: Asked) -> str:
    heads = many(asked.heads, "head") + f" of {asked.dim}"
    if asked.kv_heads != asked.heads:
        heads += f", sharing {many(asked.kv_heads, 'key head')}"
    way = "forward and backward, of the output" if asked.backward else "forward"
    return f"{asked.dtype}, {_said(asked.mask)}, batch of {asked.batch}, {heads}; {way}"


def _said(mask: Mask | None) -> str:
    return "no mask" if mask is None else str(mask)


def _cells(row: Row) -> tuple[str, ...]:
    """
    >>> _cells(Row(4096, 0.18, 0.18, 0.36, None, "SDPA", "sdpa", "sdpa", 805306368))
    ('4,096', '180 ms', '180 ms', '1.00', '360 ms', '2.00', '–', '–', '805 MB')
    """
    told = [time_said(row.sdpa)]
    for each in (row.attend, row.looking, row.eager):
        times = "–" if each is None or row.sdpa is None else f"{each / row.sdpa:.2f}"
        told += [time_said(each), times]
    return f"{row.tokens:,}", *told, _size(row.matrix_bytes)


def time_said(seconds: float | None) -> str:
    """
    >>> [time_said(s) for s in (0.0000423, 0.00123, 0.0352, 0.181, 3.26, 61.4)]
    ['0.042 ms', '1.23 ms', '35.2 ms', '181 ms', '3.26 s', '61.4 s']
    """
    if seconds is None:
        return "–"
    number, unit = (seconds, "s") if seconds >= 1 else (seconds * 1e3, "ms")
    if number < 1:
        return f"{number:.3f} {unit}"
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"


def _size(count: int) -> str:
    """
    >>> _size(1200), _size(805306368), _size(3 * 10**9)
    ('0.001 MB', '805 MB', '3.0 GB')
    """
    number, unit = (count / 1e9, "GB") if count >= 1e9 else (count / 1e6, "MB")
    return f"{number:.{3 if number < 0.1 else 1 if number < 10 else 0}f} {unit}"


def _legend(asked: Asked, rows: Sequence[Row]) -> str:
    def who(name: str) -> str:
        return ", ".join(dict.fromkeys(getattr(row, name) or "" for row in rows))

    fastest = who("sdpa_by").replace("SDPA, ", "")
    which = f", its fastest ({fastest})" if asked.device == "cuda" else ""
    if not asked.is_plain:
        which += ", which takes this mask as a matrix"
    told = (
        f"SDPA: PyTorch's fused attention{which}. attend: ours, by {who('attend_by')}. looking: "
        f"observe, by {who('looking_by')}, with {', '.join(asked.stats)} of every row. "
        "eager: attention that builds its matrix, with the entropy of every row. ×: as a multiple "
        "of SDPA. Medians; all but eager took turns."
    )
    if any(row.eager is None for row in rows):
        told += " –: its matrices, of which it needs several at a time, find no room."
    return told
