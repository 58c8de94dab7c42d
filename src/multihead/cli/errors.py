"""What goes wrong, told on stderr."""

import shutil
import sys
import textwrap
from typing import NoReturn

WIDTH = 80


def fail(command: str, error: Exception, tokens: int) -> NoReturn:
    """A few lines on stderr, and exit code 2; what is our own fault is not hidden."""
    import typer

    said = str(error)
    if isinstance(error, RuntimeError):
        if "memory" not in said.lower():
            raise error
        said = f"{tokens} tokens took more memory than there is; give fewer with --tokens."
    said = f"multihead {command}: {said}"
    if sys.stderr is not None and sys.stderr.isatty():
        said = wrapped(said, min(WIDTH, shutil.get_terminal_size().columns))
    typer.echo(said, err=True)
    raise typer.Exit(2) from None


def stopped() -> None:
    """One line after Ctrl-C, below what the terminal shows of the key itself."""
    if sys.stderr is not None:
        print(
            "\nmultihead: stopped" if sys.stderr.isatty() else "multihead: stopped", file=sys.stderr
        )


def wrapped(said: str, width: int) -> str:
    """Lines cut between words; a path or an address stays whole, so that it can be copied.

    >>> print(wrapped("multihead: no such model\\n  Give another one of these", 20))
    multihead: no such
      model
      Give another one
      of these
    """
    lines = []
    for line in said.splitlines():
        lines += textwrap.wrap(
            line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines)
