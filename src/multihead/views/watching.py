"""A training run in the terminal: every head as a grid of shades, the loss, warnings.

In a terminal one picture, drawn again in its place; elsewhere a line a sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..monitoring.summary import Record
from .counts import many
from .lines import INDENT, fit
from .shades import legend, shade

LOSSES = 40  # shown as a line of bars
RECENT = 10  # samples for which a head that left its history stays marked
TEXTS = 3  # warnings shown
_BARS = "▁▂▃▄▅▆▇█"
_LABEL = 10


class Watching:
    """Draws each record of a monitor: `mh.monitor(model, to=Watching(console).add)`.

    A with statement, or `close`, leaves the last picture standing.
    """

    def __init__(self, console: Console, statistic: str = "entropy") -> None:
        self.console, self.statistic = console, statistic
        self.losses: deque[float] = deque(maxlen=LOSSES)
        self.warnings: deque[tuple[int, Record]] = deque(maxlen=64)  # when, counted in samples
        self.samples = 0
        self._live: Live | None = None

    def add(self, record: Record) -> None:
        """One more sample."""
        self.samples += 1
        if record["loss"] is not None:
            self.losses.append(record["loss"])
        self.warnings.extend((self.samples, warning) for warning in record["warnings"])
        if not self.console.is_terminal or self.console.is_dumb_terminal:
            for line in self.told(record):
                self.console.print(line, soft_wrap=True)
            return
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self._live.update(Group(*self.drawn(record)), refresh=True)

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def told(self, record: Record) -> list[Text]:
        """A sample as lines of a log."""
        key = self._key(record)
        words = [f"step {record['step']:,}", *self._loss(record)]
        values = sorted(v for layer in record["layers"] for v in layer[key] if v is not None)
        if values:
            middle = values[len(values) // 2]
            words.append(f"{_title(key)} {values[0]:.2f} … {middle:.2f} … {values[-1]:.2f}")
            worst = record["worst"][key][0]
            words.append(f"{_extreme(key)}: layer {worst['layer']}, head {worst['head']}")
        warnings = [Text(f"warning: {warning['text']}") for warning in record["warnings"]]
        return [Text(", ".join(words)), *warnings]

    def drawn(self, record: Record) -> list[Text]:
        """A sample as a picture."""
        key = self._key(record)
        head = Text(INDENT).append(f"step {record['step']:,}", "bold")
        for words in self._loss(record):
            head.append(f"   {words}   ").append(bars(self.losses), "cyan")
        lines = [Text(), head, Text(), Text(f"{INDENT}{_title(key)} of each head", "bold")]
        lines += self._grid(record, key)
        lines += [Text(f"{INDENT}{legend()}", "dim")] if _is_share(key) else []
        for _, warning in [*self.warnings][-TEXTS:]:
            wrapped = Text(warning["text"]).wrap(self.console, self.console.width - 6)
            marks = ["  ! "] + ["    "] * (len(wrapped) - 1)
            lines += [Text(m, "bold red") + line for m, line in zip(marks, wrapped, strict=True)]
        for line in lines:
            line.truncate(self.console.width)
            line.rstrip()
            line.no_wrap = True
        return lines

    def _grid(self, record: Record, key: str) -> list[Text]:
        layers = record["layers"]
        tall = max(3, self.console.height - 11 - 2 * TEXTS)
        most = max((layer["heads"] for layer in layers), default=0)
        wide = self.console.width - len(INDENT) - _LABEL - len("  median")
        cells = 2 if 2 * most <= wide else 1
        shown = min(most, wide // cells)
        top = 1.0 if _is_share(key) else max(1e-9, _greatest(record, key))
        marked = {
            (w["layer"], w["head"]) for when, w in self.warnings if self.samples - when < RECENT
        }
        numbers = fit(_numbers(shown, cells), shown * cells)
        lines = [Text(INDENT + " " * _LABEL).append(f"{numbers}  median", "dim")]
        for number, layer in enumerate(layers[:tall]):
            line = Text(INDENT).append(fit(f"layer {number}", _LABEL), "dim")
            for head, value in enumerate(layer[key][:shown]):
                mark = "?" if value is None else shade(max(0.0, value / top))
                if (number, head) in marked:
                    line.append(f"{mark}!"[-cells:], "bold red")
                else:
                    line.append(mark * cells, "cyan")
            line.append(" " * cells * (shown - min(shown, layer["heads"])))
            middle = record["quantiles"][key][number][2]
            lines.append(line.append("" if middle is None else f"  {middle:.2f}", "dim"))
        left = [many(len(layers) - tall, "more layer")] if len(layers) > tall else []
        left += [many(most - shown, "more head")] if most > shown else []
        return lines + [Text(f"{INDENT}and {' and '.join(left)}", "dim")] * bool(left)

    def _loss(self, record: Record) -> list[str]:
        return [] if record["loss"] is None else [f"loss {record['loss']:.4f}"]

    def _key(self, record: Record) -> str:
        known = record["quantiles"]
        return self.statistic if self.statistic in known else next(iter(known))


def bars(values: Sequence[float] | deque[float]) -> str:
    """Numbers as a line of bars, the least to the greatest.

    >>> bars([3.0, 2.0, 1.0, 1.5])
    '█▅▁▃'
    """
    low, high = min(values, default=0.0), max(values, default=0.0)
    steps = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * steps)] for value in values)


def _numbers(heads: int, cells: int) -> str:
    """The number of each head that begins four cells.

    >>> _numbers(12, 2), _numbers(12, 1)
    ('0   2   4   6   8   10', '0   4   8')
    """
    return "".join(fit(str(head), 4) for head in range(0, heads, 4 // cells)).rstrip()


def _greatest(record: Record, key: str) -> float:
    return max((v for layer in record["layers"] for v in layer[key] if v is not None), default=0.0)


def _is_share(key: str) -> bool:
    """Whether it lies between 0 and 1 by what it is."""
    return key not in ("max_score", "distance", "effective")


def _title(key: str) -> str:
    return "relative entropy" if key == "entropy" else key


def _extreme(key: str) -> str:
    return "lowest" if key in ("entropy", "effective") else "highest"
