"""How a page is answered: its own files, JSON as small as it can be, and what goes wrong."""

from __future__ import annotations

import gzip
import json
import logging
import re
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..files import plain

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
_FILE = re.compile(r"(vendor/)?[a-z0-9-]+\.(js|css|svg)")
_log = logging.getLogger("multihead")


def as_json(found: Any) -> bytes:
    # Half a letter, as a recording may hold one, is no UTF-8.
    told = json.dumps(plain(found), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return told.encode("utf-8", "replace")


def zipped(request: Request, body: bytes, kind: str) -> Response:
    headers = {"vary": "accept-encoding"}
    if len(body) > 2048 and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = gzip.compress(body, 5), "gzip"
    return Response(body, media_type=kind, headers=headers)


def saved_as(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def gone() -> Response:
    return Response(status_code=204)


def page(request: Request, name: str) -> Response:
    return zipped(request, (STATIC / name).read_bytes(), "text/html")


async def static(request: Request) -> Response:
    name = request.path_params["name"]
    if not _FILE.fullmatch(name) or not (STATIC / name).is_file():
        raise HTTPException(404)
    return zipped(request, (STATIC / name).read_bytes(), _TYPES[Path(name).suffix])


# ── what goes wrong


async def _refused(request: Request, error: Exception) -> Response:
    if "endpoint" not in request.scope:  # Python's own, on a number in the address
        return _error(400, "a number in this address is too long.")
    return _error(400, str(error))


async def _not_here(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    said = {404: "there is no such page here.", 405: "this address cannot be asked like that."}
    answer = _error(status, said.get(status, str(getattr(error, "detail", error))))
    answer.headers.update(getattr(error, "headers", None) or {})  # which methods may be used
    return answer


async def _left(request: Request, error: Exception) -> Response:
    return gone()  # who asked went in the middle of it


async def _broken(request: Request, error: Exception) -> Response:
    _log.error("%s went wrong", request.url.path, exc_info=error)
    return _error(500, "something went wrong here; the terminal says more.")


def _error(status: int, reason: str) -> Response:
    return Response(as_json({"error": reason}), status, media_type="application/json")


HANDLERS: dict[Any, Any] = {
    ValueError: _refused,
    HTTPException: _not_here,
    ClientDisconnect: _left,
    Exception: _broken,
}
