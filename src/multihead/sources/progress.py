"""How far a long step is: told to whoever asked, else shown on stderr."""

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator

# A message, and how much of what it names is done, 0 to 1; None where no end is known.
Report = Callable[[str, float | None], None]


@contextlib.contextmanager
def shown(progress: Report | None) -> Iterator[Report]:
    """The caller's own report; else a bar if a terminal can draw one; else a single line."""
    if progress is not None:
        yield progress
    elif sys.stderr is None:  # as under pythonw
        yield lambda message, fraction: None
    elif can_draw() and importlib.util.find_spec("rich") is not None:
        with bar() as report:
            yield report
    else:
        yield _Line()


def can_draw() -> bool:
    """Whether stderr is a terminal that can go back over its line; a dumb one cannot."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


class _Line:
    """The first message alone: a log wants no bar, but does want to know why nothing happens."""

    def __init__(self) -> None:
        self.said = False

    def __call__(self, message: str, fraction: float | None) -> None:
        if not self.said:
            print(f"multihead: {message}", file=sys.stderr, flush=True)
        self.said = True


@contextlib.contextmanager
def bar() -> Iterator[Report]:
    """A bar on stderr, gone when it is done, with the time since it came."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn
    from rich.text import Text

    class Clock(ProgressColumn):
        """rich's own stands still when a task has reached its end; our one task has many steps."""

        start = time.monotonic()

        def render(self, task: object) -> Text:
            minutes, seconds = divmod(int(time.monotonic() - self.start), 60)
            return Text(f"{minutes // 60}:{minutes % 60:02}:{seconds:02}", "progress.elapsed")

    words = TextColumn("{task.description}", markup=False)
    parts = (words, BarColumn(), TaskProgressColumn(), Clock())
    with Progress(*parts, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("", total=None)

        def report(message: str, fraction: float | None) -> None:
            total = None if fraction is None else 1.0  # no total: the bar swings to and fro
            drawn.update(task, description=message, total=total, completed=fraction or 0.0)

        yield report
