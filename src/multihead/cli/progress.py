"""How far a long step is, on stderr: a bar in a terminal, a line for each step elsewhere."""

import contextlib
import sys
from collections.abc import Callable, Iterator

Tell = Callable[[str, float | None], None]


@contextlib.contextmanager
def telling() -> Iterator[Tell]:
    """What is told a message and how much of it is done, None where no end is known."""
    if sys.stderr is None:  # as under pythonw
        yield lambda message, share: None
    elif sys.stderr.isatty():
        with _bar() as tell:
            yield tell
    else:
        yield _Lines()


class _Lines:
    """A log wants no bar, but does want to know what takes so long."""

    def __init__(self) -> None:
        self.said = ""

    def __call__(self, message: str, share: float | None) -> None:
        step = message.partition(":")[0]
        if step != self.said:
            print(f"multihead: {step} …", file=sys.stderr, flush=True)
        self.said = step


@contextlib.contextmanager
def _bar() -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(message: str, share: float | None) -> None:
            total = None if share is None else 1.0  # no total: the bar swings to and fro
            bar.update(task, description=message, total=total, completed=share or 0.0)

        yield tell
