"""How far a long step is: told to whoever asked, else shown on stderr."""

import contextlib
import importlib.util
import sys
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
    elif sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        with bar() as report:
            yield report
    else:
        yield _Line()


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
    """A bar on stderr, gone when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    words = TextColumn("{task.description}", markup=False)
    parts = (words, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("", total=None)

        def report(message: str, fraction: float | None) -> None:
            total = None if fraction is None else 1.0  # no total: the bar swings to and fro
            drawn.update(task, description=message, total=total, completed=fraction or 0.0)

        yield report
