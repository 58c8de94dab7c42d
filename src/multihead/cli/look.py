"""`multihead look`: record a text and open the explorer, a page on this machine alone."""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from .errors import fail
from .progress import Tell, telling
from .report import TOO_SMALL, read_text

if TYPE_CHECKING:
    import typer

    from ..views.page.runs import Run
    from ..views.page.session import Session


def add_look(app: "typer.Typer") -> None:
    import typer

    from .options import File, ModelOrNone, Text, Tokens

    @app.command()
    def look(
        text: Text = None,
        file: File = None,
        model: ModelOrNone = None,
        recording: Annotated[
            list[Path] | None,
            typer.Option(metavar="RUN.HEADS", help="Show what was saved; may come again."),
        ] = None,
        run: Annotated[
            Path | None, typer.Option(metavar="RUNS/NAME", help="Play a training run.")
        ] = None,
        tokens: Tokens = 512,
        port: Annotated[
            int | None, typer.Option(metavar="P", help="Where to serve; else 8080.")
        ] = None,
        no_browser: Annotated[
            bool, typer.Option("--no-browser", help="Only print the address.")
        ] = False,
        export: Annotated[
            Path | None, typer.Option(metavar="PAGE.HTML", help="Write one file and end.")
        ] = None,
        heads: Annotated[
            str, typer.Option(metavar="18.6,16.0", help="Heads exact in that file.")
        ] = "",
        get: Annotated[
            str | None, typer.Option(metavar="/PATH", help="Print one answer and end.")
        ] = None,
        no_names: Annotated[
            bool, typer.Option("--no-names", help="Do not look for names meanwhile.")
        ] = False,
    ) -> None:
        """Open a page that zooms into every head, like a street map.

        It records a text exactly and serves the page on this machine alone until Ctrl-C. Names for
        the heads are found meanwhile, once for each model. With --run it plays a training run that
        was watched, head by head.
        """
        try:
            _check(text, file, recording, port, tokens)
            if run is not None:
                _check_run(text, file, model, recording, heads)
                _play(run, get, export, port, browser=not no_browser)
                return
            session, name = _session(text, file, model, recording, tokens)
            if get is not None:
                _print(session, get)
            elif export is not None:
                _write(session, name, export, heads, not no_names)
            else:
                _serve(session, None if no_names else name, port, browser=not no_browser)
        except (ValueError, ImportError, RuntimeError) as error:
            fail("look", error, tokens)


def _check(
    text: list[str] | None, file: str | None, recording: list[Path] | None, port: int | None,
    tokens: int,
) -> None:  # fmt: skip
    from ..views.page.session import MOST_TOKENS

    if recording and (text or file is not None):
        raise ValueError("a text and --recording both came; give one of them.")
    if port is not None and not 0 <= port <= 65535:
        raise ValueError(f"--port must be 0 to 65535, and {port} came; leave it out.")
    if not 8 <= tokens <= MOST_TOKENS:
        raise ValueError(f"--tokens must be 8 to {MOST_TOKENS:,}, and {tokens:,} came.")


def _check_run(
    text: list[str] | None, file: str | None, model: str | None, recording: list[Path] | None,
    heads: str,
) -> None:  # fmt: skip
    given = {"a text": text, "--file": file, "--model": model, "--recording": recording,
             "--heads": heads}  # fmt: skip
    for name, value in given.items():
        if value:
            raise ValueError(f"{name} and --run both came; a run is played alone: leave one out.")


def _play(
    folder: Path, get: str | None, export: Path | None, port: int | None, *, browser: bool
) -> None:
    """A training run in place of a recording: the same page, server, answer and file."""
    import typer

    from ..views.files import put
    from ..views.page.playing import standalone_run
    from ..views.page.runs import Run

    run = Run(folder)
    if get is not None:
        _print(run, get)
    elif export is not None:
        put(export, standalone_run(run), other="another file with --export")
        typer.echo(f"{export} is the whole run; it opens in any browser, with no network.")
    else:
        _serve(run, None, port, browser=browser)


def _session(
    text: list[str] | None, file: str | None, model: str | None, recording: list[Path] | None,
    tokens: int,
) -> "tuple[Session, str | None]":  # fmt: skip
    """What there is to show, and the name of the model that can be tried, if there is one."""
    from ..patterns.cues import check_known
    from ..recording import load
    from ..views.page.session import Session
    from ..views.report import example, tokenise

    loaded = [(path, load(path)) for path in recording or ()]
    name = model or (None if recording else "smollm2")
    with telling() as tell:
        session = _with_model(name, tell) if name else Session()
        if not recording:
            words, source = read_text(text, file, 64 * tokens + 1)
            words, source = example(session.model, words, source)
            tokens = _fitting(session, tokens)
            check_known(tokenise(session.tokenizer, words, tokens)[0], session.model)
            session.record(words, tokens, source, tell)
            return session, name
    for path, rec in loaded:
        about = {"model": rec.about.get("model", rec.model), "text": path.name}
        for n, one in enumerate(rec.texts):
            label = path.name if len(rec.texts) == 1 else f"{path.name} {n}"
            session.add(
                one, label, {**about, **{k: v for k, v in one.about.items() if k != "input"}}
            )
    return session, name


def _with_model(name: str, tell: Tell) -> "Session":
    from ..sources import load_model
    from ..views.page.session import Session

    loaded, tokenizer = load_model(name, progress=tell)
    return Session(loaded, tokenizer, name)


def _fitting(session: "Session", tokens: int) -> int:
    from ..views.report import context

    most = context(session.model)
    if most is not None and tokens > most:
        if tokens != 512:
            raise ValueError(
                f"--tokens may be {most:,} at most, the context of this model, and {tokens:,} came."
            )
        return most
    return tokens


def _print(session: "Session | Run", path: str) -> None:
    """What the page would be told, without a socket."""
    import typer

    from ..views.page.serving import get

    status, body = get(session, path if path.startswith("/") else f"/{path}")
    if status != 200:
        typer.echo(f"multihead look: {path} answered {status}: {body.decode()}", err=True)
        raise typer.Exit(1)
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.write(b"\n" if body[:1] in (b"{", b"[") else b"")


def _write(session: "Session", name: str | None, path: Path, heads: str, names: bool) -> None:
    import typer

    from ..views.files import put
    from ..views.page.asked import place
    from ..views.page.standalone import standalone

    chosen = place(heads)
    with telling() as tell:
        if name is not None and names:
            _names(session, name, start=False)
        tell("Writing the page", None)
        page = standalone(session, next(iter(session.shown)), chosen)
        put(path, page, other="another file with --export")
    typer.echo(f"{path} is the whole page; it opens in any browser, with no network.")


def _serve(session: "Session | Run", name: str | None, port: int | None, *, browser: bool) -> None:
    import typer

    from ..views.page.serving import PORT, free_socket, serve
    from ..views.page.session import Session

    made, as_asked = free_socket(port)
    if not as_asked:
        wanted, got = PORT if port is None else port, made.getsockname()[1]
        typer.echo(f"Port {wanted} is busy; port {got} is free, and taken instead.", err=True)

    def opened(address: str) -> None:
        typer.echo(f"The explorer is at\n\n  {address}\n\nCtrl-C ends it.")
        sys.stdout.flush()
        if browser and _has_screen():
            threading.Thread(target=_open, args=(address,), daemon=True).start()
        if name is not None and isinstance(session, Session):
            _names(session, name)

    with contextlib.suppress(KeyboardInterrupt):
        serve(session, made, opened)
    sys.stdout.flush()
    os._exit(0)  # a model may be at work in a thread, which nobody waits for


def _names(session: "Session", name: str, *, start: bool = True) -> None:
    """Take the names that are kept, or begin to find them; of a model of ours there are none."""
    from ..sources import is_trained

    if is_trained(name):
        session.naming.refuse(TOO_SMALL)
    elif start:
        session.naming.start(name)
    else:
        session.naming.take_kept(name)


def _has_screen() -> bool:
    """Without one a browser of the terminal would open, over what we print."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _open(address: str) -> None:
    import webbrowser

    with contextlib.suppress(webbrowser.Error, OSError):
        webbrowser.open(address)
