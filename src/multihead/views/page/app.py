"""What the page can ask for: each view and its JSON twin, tiles, and the few things that act.

Work is done in threads, two at a time; a request whose asker has gone meanwhile is not worked on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .answers import HANDLERS, as_json, gone, page, saved_as, static, zipped
from .asked import cut_asked, hidden_asked, map_asked, place, recording_asked, text_asked, whole
from .guard import Guard
from .session import Session
from .tables import heads_csv, heads_table
from .tiles import POOLS

_AT_ONCE = 2  # a core each
_NEWS = 0.05  # seconds in which it is heard of that somebody left
SAVE = saved_as("multihead.html")
_log = logging.getLogger("multihead")

Answer = Callable[[Session, Request], Any]


def make_app(session: Session, token: str) -> Guard:
    """The application of one session, behind its guard."""
    limit = CapacityLimiter(_AT_ONCE)
    model = asyncio.Lock()  # its runs take seconds, and must not keep maps from being drawn

    def json_route(path: str, answer: Answer, runs: bool = False) -> Route:
        async def respond(request: Request) -> Response:
            turn = model if runs else limit
            found = await _work(request, turn, lambda: as_json(answer(session, request)))
            return gone() if found is None else zipped(request, found, "application/json")

        return Route(path, respond)

    async def bytes_of(request: Request, answer: Answer) -> Response:
        found = await _work(request, limit, lambda: answer(session, request))
        return gone() if found is None else Response(found, media_type="application/octet-stream")

    async def tile_route(request: Request) -> Response:
        return await bytes_of(request, _tile)

    async def thumbs_route(request: Request) -> Response:
        return await bytes_of(
            request, lambda s, r: s.of(recording_asked(r)).thumbs(whole(r, "batch", 0))
        )

    async def csv_route(request: Request) -> Response:
        asked = recording_asked(request), whole(request, "batch", 0)
        text = await _work(request, limit, lambda: heads_csv(session, *asked))
        return gone() if text is None else Response(text, media_type="text/csv")

    async def cut_route(request: Request) -> Response:
        asked = cut_asked(await request.body())
        found = await _work(request, model, lambda: as_json(session.cut(**asked)))
        return gone() if found is None else zipped(request, found, "application/json")

    async def record_route(request: Request) -> Response:
        text, tokens = text_asked(await request.body())
        lines = _recorded(request, session, model, text, tokens)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def export_route(request: Request) -> Response:
        from .standalone import standalone

        chosen = request.query_params.get("heads", "")
        number, batch = recording_asked(request), whole(request, "batch", 0)
        html = await _work(
            request, limit, lambda: standalone(session, number, place(chosen), batch)
        )
        return gone() if html is None else Response(html, media_type="text/html", headers=SAVE)

    routes = [
        Route("/", _index),
        Route("/static/{name:path}", static),
        json_route("/home.json", lambda s, r: s.home(recording_asked(r), whole(r, "batch", 0))),
        json_route("/names.json", lambda s, r: s.names(recording_asked(r), whole(r, "batch", 0))),
        json_route("/outputs.json", _outputs, runs=True),
        json_route("/head/{layer:int}/{head:int}.json", _head),
        json_route("/range/{layer:int}/{head:int}.json", _range),
        json_route("/cell/{layer:int}/{head:int}/{factor:int}/{row:int}/{column:int}.json", _cell),
        json_route("/row/{layer:int}/{head:int}/{query:int}.json", _row),
        json_route("/column/{layer:int}/{head:int}/{key:int}.json", _column),
        Route("/tile/{layer:int}/{head:int}/{factor:int}/{row:int}/{column:int}.bin", tile_route),
        Route("/thumbs.bin", thumbs_route),
        json_route("/heads.json", _heads),
        Route("/heads.csv", csv_route),
        Route("/export.html", export_route),
        Route("/cut.json", cut_route, methods=["POST"]),
        Route("/record.ndjson", record_route, methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False  # another address is another page, and there is none
    return Guard(app, token)


def _head(session: Session, request: Request) -> dict[str, Any]:
    return session.head(recording_asked(request), map_asked(request), hidden_asked(request))


def _heads(session: Session, request: Request) -> list[dict[str, Any]]:
    return heads_table(session, recording_asked(request), whole(request, "batch", 0))


def _outputs(session: Session, request: Request) -> dict[str, Any]:
    return session.outputs(recording_asked(request), whole(request, "batch", 0))


def _mapped(session: Session, request: Request):
    return session.map(recording_asked(request), map_asked(request), hidden_asked(request))


def _range(session: Session, request: Request) -> dict[str, Any]:
    shown, which = _mapped(session, request)
    return shown.range(which)


def _cell(session: Session, request: Request) -> dict[str, Any]:
    shown, which = _mapped(session, request)
    at = request.path_params
    return shown.cell(which, at["factor"], at["row"], at["column"])


def _tile(session: Session, request: Request) -> bytes:
    shown, which = _mapped(session, request)
    at = request.path_params
    pool = request.query_params.get("pool", POOLS[0])
    return shown.tile(which, at["factor"], at["row"], at["column"], pool)


def _row(session: Session, request: Request) -> dict[str, Any]:
    return session.of(recording_asked(request)).row(
        map_asked(request), request.path_params["query"]
    )


def _column(session: Session, request: Request) -> dict[str, Any]:
    return session.of(recording_asked(request)).column(
        map_asked(request), request.path_params["key"]
    )


async def _index(request: Request) -> Response:
    return page(request, "index.html")


# ── how it is answered


async def _work(
    request: Request, limit: CapacityLimiter | asyncio.Lock, work: Callable[[], Any]
) -> Any:
    """The result of some work in a thread; None where nobody waits for it any more."""
    waits = isinstance(limit, asyncio.Lock) and limit.locked()
    async with limit:
        if await _has_left(request, waits):
            return None
        return await to_thread.run_sync(work, abandon_on_cancel=True)


async def _has_left(request: Request, waited: bool) -> bool:
    """Whether nobody waits for an answer any more.

    Several who leave together are heard of one by one, and the first to go gives its turn to the
    next: who waited for the model looks round once more before a run of seconds begins.
    """
    if waited:
        await asyncio.sleep(_NEWS)
    return await request.is_disconnected()


class _LeftError(Exception):
    """Whoever asked for a recording has gone."""


async def _recorded(
    request: Request, session: Session, model: asyncio.Lock, text: str, tokens: int
) -> AsyncIterator[bytes]:
    """Lines of JSON while a text is recorded: how far it is, then the id, or what went wrong."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any]]()
    left, turn = threading.Event(), threading.Lock()
    made: list[str] = []  # until it is handed over

    def say(said: dict[str, Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(lines.put_nowait, said)

    def tell(message: str, share: float | None) -> None:
        if left.is_set():
            raise _LeftError  # out of the model, at its next layer
        say({"message": message, "share": share})

    def work() -> None:
        try:
            number = session.record(text, tokens, _label(text), tell, typed=True)
            with turn:
                made.append(number)
                if left.is_set():
                    session.drop(made.pop())
                    return
            last = {"recording": number}
        except _LeftError:
            return
        except ValueError as error:
            last = {"error": str(error)}
        except Exception:
            _log.exception("a recording went wrong")
            last = {"error": "the recording went wrong; the terminal says more."}
        say(last)

    waits = model.locked()
    async with model:  # waits in line; one who leaves the line is never begun
        if await _has_left(request, waits):
            return
        threading.Thread(target=work, daemon=True).start()
        try:
            said: dict[str, Any] = {}
            while not said.keys() & {"recording", "error"}:
                said = await lines.get()
                if "recording" in said:
                    if await _has_left(request, False):
                        return
                    made.clear()  # before it is sent: whoever has it may hang up at once
                yield as_json(said) + b"\n"
        finally:
            with turn:
                left.set()
                if made:
                    session.drop(made.pop())


def _label(text: str) -> str:
    """A text by its first words, to be told from others."""
    words = text.split()
    return " ".join(words[:5])[:40] + (" …" if len(words) > 5 else "")
