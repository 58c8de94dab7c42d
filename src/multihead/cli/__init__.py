"""The command line: parse, call, print."""

import codecs
import contextlib
import io
import itertools
import os
import sys
from typing import TYPE_CHECKING, Annotated

from .bench import add_bench
from .errors import stopped
from .explain import add_explain
from .look import add_look
from .report import add_report
from .train import add_train

if TYPE_CHECKING:
    import typer

STOPPED = 130  # what a shell says of a command that Ctrl-C ended
# What a stream that cannot print a character prints in its place, one for one.
PLAIN = dict(zip("█▓▒░·×→←─√÷ᵀ…²±−‖⏎⇥␍∅", "@#+-.x><-v/T~2~-|/>/0", strict=True))


def main() -> None:
    """The `multihead` command: what goes wrong is a line on stderr and an exit code."""
    try:
        run()
    except KeyboardInterrupt:
        stopped()
        sys.exit(STOPPED)
    except SystemExit as done:
        if done.code == STOPPED:  # typer's, which caught it first
            stopped()
        raise
    except OSError as error:
        if error.filename is not None:
            raise  # a file, and not what we print
        with contextlib.suppress(OSError, ValueError):  # else Python tries, and fails, once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(
                f"multihead: cannot write what it prints: {error.strerror or error}; "
                "make room, or send it elsewhere.",
                file=sys.stderr,
            )
        sys.exit(1)


def run() -> None:
    """Build the application and call it; it ends in SystemExit, its output written."""
    try:
        app = build()
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("multihead"):
            raise
        print(
            f"multihead: the command line needs {missing.name}: pip install 'multihead[explorer]'",
            file=sys.stderr,
        )
        sys.exit(2)
    codecs.register_error("plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="plain")  # no text may end in a traceback
    try:
        app()
    finally:
        if sys.stdout is not None:  # as under pythonw, or after >&-
            sys.stdout.flush()  # here a full disk can still be told


def build() -> "typer.Typer":
    """The application, made when it is called: `import multihead.cli` needs nothing installed."""
    import rich
    import typer

    assert rich
    app = typer.Typer(
        name="multihead",
        help="Multi-head attention you can read, run and look into.",
        epilog='Try: multihead look, or multihead explain "The cat that I saw ran away"',
        add_completion=False,
        rich_markup_mode=None,  # plain help reads the same in every terminal
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    )
    for add in COMMANDS:
        add(app)
    return app


def add_version(app: "typer.Typer") -> None:
    import typer

    def show(asked: bool) -> None:
        if asked:
            from importlib.metadata import version

            typer.echo(f"multihead {version('multihead')}")
            raise typer.Exit

    @app.callback(invoke_without_command=True)
    def multihead(
        context: typer.Context,
        version: Annotated[
            bool,
            typer.Option("--version", callback=show, is_eager=True, help="Show the version."),
        ] = False,
    ) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())


# A new command is one more line here.
COMMANDS = (add_version, add_look, add_report, add_explain, add_train, add_bench)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """As many cells as the terminal would have given it, so that columns stay columns."""
    from rich.cells import cell_len

    assert isinstance(error, UnicodeEncodeError)
    hard = error.object[error.start : error.end]
    parts = []
    for ours, same in itertools.groupby(hard, PLAIN.__contains__):
        text = "".join(same)
        parts.append("".join(map(PLAIN.__getitem__, text)) if ours else "?" * cell_len(text))
    return "".join(parts), error.end
