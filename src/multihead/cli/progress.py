"""How far a long step is, on stderr: a bar in a terminal, a line for each step elsewhere."""

import contextlib
import sys
from collections.abc import Callable, Iterator

Tell = Callable[[str, float | None], None]


@contextlib.contextmanager
def telling() -> Iterator[Tell]:
    """What is told a message and how much of it is done, None where no end is known."""
    from ..sources.progress import bar, can_draw

    if sys.stderr is None:  # as under pythonw
        yield lambda message, share: None
    elif can_draw():
        with bar() as tell:
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
