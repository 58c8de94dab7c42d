"""`multihead report`: record a text, name the heads, print a table and what was found."""

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .errors import fail
from .progress import Tell, telling

if TYPE_CHECKING:
    import typer

    from ..views.report import Report


TOO_SMALL = "that takes random tokens that come twice, and a model of characters has too few"


def add_report(app: "typer.Typer") -> None:
    import typer

    from .options import File, Model, Text, Tokens

    @app.command()
    def report(
        text: Text = None,
        file: File = None,
        model: Model = "smollm2",
        tokens: Tokens = 512,
        out: Annotated[
            Path | None,
            typer.Option("-o", "--out", metavar="DIR", help="Write figures and tables here."),
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
        csv: Annotated[bool, typer.Option("--csv", help="Print the heads as CSV.")] = False,
        every: Annotated[bool, typer.Option("--all", help="List every head.")] = False,
        no_names: Annotated[
            bool, typer.Option("--no-names", help="Record alone: seconds, not minutes.")
        ] = False,
        no_verify: Annotated[
            bool, typer.Option("--no-verify", help="Do not try names by cutting links.")
        ] = False,
        quick: Annotated[
            bool, typer.Option("--quick", help="Names without controls and cuts.")
        ] = False,
    ) -> None:
        """Show what every head of a model does: a table, figures, findings.

        It records a text exactly, names heads by what they read (on random tokens that come
        twice, and on the text), and cuts the links of the strongest to see whether the names
        hold. The small default model takes two minutes; --quick half a minute.
        """
        asked: dict[str, Any] = {
            "names": not no_names,
            "controls": not quick,
            "cuts": not (no_verify or quick),
        }
        try:
            if json and csv:
                raise ValueError("--json and --csv both came; give one of them.")
            with ready(out):
                seen = look(text, file, model, tokens, asked)
                show(seen, json=json, csv=csv, every=every, out=out)
        except (ValueError, ImportError, RuntimeError) as error:
            fail("report", error, tokens)


def look(
    text: list[str] | None, file: str | None, model: str, tokens: int, asked: dict[str, Any]
) -> "Report":
    """All that can be checked first is; then the model is loaded and recorded."""
    from ..sources import is_trained
    from ..views.report import LEAST, LETTERS, check_text

    if tokens < LEAST:
        raise ValueError(f"--tokens must be {LEAST} or more, and {tokens} came; 512 will do.")
    words, source = read_text(text, file, LETTERS * tokens + 1)
    check_text(words, 0 if is_trained(model) else LEAST)
    with telling() as tell:
        return _study(words, source, model, tokens, asked, tell)


def _study(
    words: str, source: str, name: str, tokens: int, asked: dict[str, Any], tell: Tell
) -> "Report":
    from ..sources import SOURCES, about, is_trained, load_model
    from ..views.report import context, example, study

    model, tokenizer = load_model(name, progress=tell)
    words, source = example(model, words, source)
    if is_trained(name):
        asked = asked | {"names": False, "unnamed": TOO_SMALL}
    most = context(model)
    if most is not None and tokens > most:
        if tokens != 512:
            raise ValueError(
                f"--tokens may be {most:,} at most, the context of this model, and {tokens:,} came."
            )
        tokens = most
    known = SOURCES.get(name)
    return study(
        model, tokenizer, words, about=about(model), licence=known.licence if known else None,
        source=source, tokens=tokens, tell=tell, **asked,
    )  # fmt: skip


def read_text(text: list[str] | None, file: str | None, most: int) -> tuple[str, str]:
    """The text, at most so many letters of it, and where it comes from."""
    if text and file is not None:
        raise ValueError("a text and --file both came; give one of them.")
    if file is not None:
        return _read_file(file, most), "stdin" if file == "-" else Path(file).name
    if text:
        given = " ".join(text)
        if os.path.isfile(given):
            raise ValueError(f"{given} is a file; give it with --file {given}.")
        return given[:most], "the text given"
    from ..patterns import DEFAULT_TEXT

    return DEFAULT_TEXT, "the text that comes with multihead"


def _read_file(file: str, most: int) -> str:
    try:
        if file == "-":
            opened = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig")
            content = opened.read(most)
            opened.detach()  # else stdin would be closed with it
        else:
            with open(file, encoding="utf-8-sig") as opened:
                content = opened.read(most)
    except OSError as error:
        raise ValueError(
            f"--file must be a file that can be read, and {file} is not: "
            f"{error.strerror or error}; see its name."
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} must be text in UTF-8, and is not; convert it first.") from None
    if "\0" in content:
        raise ValueError(f"{file} must be text, and has NUL bytes in it; give a text file.")
    return content


def ready(out: Path | None) -> contextlib.AbstractContextManager[None]:
    """The folder for the files, where there is to be one, and what draws them, minutes before."""
    from importlib.util import find_spec

    from ..views.files import prepared

    if out is None:
        return contextlib.nullcontext()
    if find_spec("matplotlib") is None:
        raise ImportError("figures need matplotlib: pip install 'multihead[explorer]'")
    return prepared(out)


def show(seen: "Report", *, json: bool, csv: bool, every: bool, out: Path | None) -> None:
    """Print first: what took minutes is not lost where a file cannot be written."""
    import typer

    from ..views.files import to_csv, to_json

    if json or csv:
        typer.echo(to_json(seen) if json else to_csv(seen).removesuffix("\n"))
    else:
        from rich.console import Console

        from ..views.lines import say
        from ..views.terminal import print_report

        console = Console(highlight=False, markup=False, emoji=False)
        console.width = min(console.width, 80)  # a page for reading, on any screen
        print_report(seen, console, every=every)
        console.print()
        if out is None:
            say(console, "Figures, JSON and CSV: multihead report -o DIR", "dim")
    if out is not None:
        write(seen, out, quiet=json or csv)


def write(seen: "Report", out: Path, *, quiet: bool) -> None:
    """Every file into the folder; where they lie is said on stdout, unless data goes there."""
    import typer

    from ..views.files import write_report

    with telling() as tell:
        files = []
        for path in write_report(seen, out):
            tell(f"Writing: {path.name}", None)
            files.append(path)
    figures = sum(path.suffix == ".png" for path in files)
    drawn = f"{figures} figures (PNG and SVG)"
    typer.echo(f"  {drawn}, heads.json, heads.csv and findings.txt are in\n  {out}", err=quiet)
