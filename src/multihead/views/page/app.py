"""What the page can ask for: each view and its JSON twin, tiles, and the few things that act.

Work is done in threads, two at a time; a request whose asker has gone meanwhile is not worked on.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..files import plain
from .asked import cut_asked, flag, map_asked, place, recording_asked, text_asked, whole
from .guard import Guard
from .session import Session
from .tables import heads_csv
from .tiles import POOLS

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
_FILE = re.compile(r"(vendor/)?[a-z0-9-]+\.(js|css|svg)")
_AT_ONCE = 2  # a core each
_log = logging.getLogger("multihead")

Answer = Callable[[Session, Request], Any]


def make_app(session: Session, token: str) -> Guard:
    """The application of one session, behind its guard."""
    limit = CapacityLimiter(_AT_ONCE)

    def json_route(path: str, answer: Answer) -> Route:
        async def respond(request: Request) -> Response:
            found = await _work(request, limit, lambda: _json(answer(session, request)))
            return _gone() if found is None else _zipped(request, found, "application/json")

        return Route(path, respond)

    async def bytes_of(request: Request, answer: Answer) -> Response:
        found = await _work(request, limit, lambda: answer(session, request))
        return _gone() if found is None else Response(found, media_type="application/octet-stream")

    async def tile_route(request: Request) -> Response:
        return await bytes_of(request, _tile)

    async def thumbs_route(request: Request) -> Response:
        return await bytes_of(
            request, lambda s, r: s.of(recording_asked(r)).thumbs(whole(r, "batch", 0))
        )

    async def csv_route(request: Request) -> Response:
        text = await _work(request, limit, lambda: heads_csv(session, recording_asked(request)))
        return _gone() if text is None else Response(text, media_type="text/csv")

    async def cut_route(request: Request) -> Response:
        asked = cut_asked(await request.body())
        found = await _work(request, limit, lambda: _json(session.cut(**asked)))
        return _gone() if found is None else _zipped(request, found, "application/json")

    async def record_route(request: Request) -> Response:
        text, tokens = text_asked(await request.body())
        lines = _recorded(session, text, tokens)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def export_route(request: Request) -> Response:
        from .standalone import standalone

        chosen = request.query_params.get("heads", "")
        number = recording_asked(request)
        html = await _work(request, limit, lambda: standalone(session, number, place(chosen)))
        return _gone() if html is None else Response(html, media_type="text/html", headers=_SAVE)

    routes = [
        Route("/", _index),
        Route("/static/{name:path}", _static),
        json_route("/home.json", lambda s, r: s.home(recording_asked(r), whole(r, "batch", 0))),
        json_route("/names.json", lambda s, r: s.names(recording_asked(r))),
        json_route("/head/{layer:int}/{head:int}.json", _head),
        json_route("/range/{layer:int}/{head:int}.json", _range),
        json_route("/cell/{layer:int}/{head:int}/{factor:int}/{row:int}/{column:int}.json", _cell),
        json_route("/row/{layer:int}/{head:int}/{query:int}.json", _row),
        json_route("/column/{layer:int}/{head:int}/{key:int}.json", _column),
        Route("/tile/{layer:int}/{head:int}/{factor:int}/{row:int}/{column:int}.bin", tile_route),
        Route("/thumbs.bin", thumbs_route),
        Route("/heads.csv", csv_route),
        Route("/export.html", export_route),
        Route("/cut.json", cut_route, methods=["POST"]),
        Route("/record.ndjson", record_route, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {ValueError: _refused, HTTPException: _not_here, Exception: _broken}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token)


def _head(session: Session, request: Request) -> dict[str, Any]:
    asked = map_asked(request)
    return session.of(recording_asked(request)).head(asked)


def _mapped(session: Session, request: Request):
    return session.map(recording_asked(request), map_asked(request), flag(request, "sinks", "hide"))


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


# ── how it is answered


async def _work(request: Request, limit: CapacityLimiter, work: Callable[[], Any]) -> Any:
    """The result of some work in a thread; None where nobody waits for it any more."""
    async with limit:
        if await request.is_disconnected():
            return None
        return await to_thread.run_sync(work, abandon_on_cancel=True)


def _gone() -> Response:
    return Response(status_code=204)


def _json(found: Any) -> bytes:
    return json.dumps(plain(found), ensure_ascii=False, separators=(",", ":")).encode()


def _zipped(request: Request, body: bytes, kind: str) -> Response:
    headers = {"vary": "accept-encoding"}
    if len(body) > 2048 and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = gzip.compress(body, 5), "gzip"
    return Response(body, media_type=kind, headers=headers)


async def _index(request: Request) -> Response:
    return _zipped(request, (STATIC / "index.html").read_bytes(), "text/html")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if not _FILE.fullmatch(name) or not (STATIC / name).is_file():
        raise HTTPException(404)
    return _zipped(request, (STATIC / name).read_bytes(), _TYPES[Path(name).suffix])


_SAVE = {"content-disposition": 'attachment; filename="multihead.html"'}


async def _recorded(session: Session, text: str, tokens: int) -> AsyncIterator[bytes]:
    """Lines of JSON while a text is recorded: how far it is, then the id, or what went wrong."""
    send, receive = anyio.create_memory_object_stream[dict[str, Any]](256)

    def work() -> None:
        said = threading.local()

        def tell(message: str, share: float | None) -> None:
            said.last = message
            anyio.from_thread.run_sync(_offer, send, {"message": message, "share": share})

        try:
            number = session.record(text, tokens, "a text typed in", tell, typed=True)
            last: dict[str, Any] = {"recording": number}
        except ValueError as error:
            last = {"error": str(error)}
        except Exception:
            _log.exception("a recording went wrong")
            last = {"error": "the recording went wrong; the terminal says more."}
        anyio.from_thread.run_sync(_offer, send, last)
        anyio.from_thread.run_sync(send.close)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(to_thread.run_sync, work, abandon_on_cancel=True))
        async for said in receive:
            yield _json(said) + b"\n"


def _offer(send: Any, said: dict[str, Any]) -> None:
    try:
        send.send_nowait(said)
    except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # nobody reads any more


# ── what goes wrong


async def _refused(request: Request, error: Exception) -> Response:
    return _error(400, str(error))


async def _not_here(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    said = {404: "there is no such page here.", 405: "this address cannot be asked like that."}
    return _error(status, said.get(status, str(getattr(error, "detail", error))))


async def _broken(request: Request, error: Exception) -> Response:
    _log.error("%s went wrong", request.url.path, exc_info=error)
    return _error(500, "something went wrong here; the terminal says more.")


def _error(status: int, reason: str) -> Response:
    return Response(_json({"error": reason}), status, media_type="application/json")
