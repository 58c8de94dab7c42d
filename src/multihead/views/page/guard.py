"""Who may ask: this machine's own browser, on the page that was opened with the right token.

- Host must be a loopback name: a foreign site whose name was pointed at 127.0.0.1 says its own.
- What acts (anything but GET and HEAD) must come from the page itself: Origin and Sec-Fetch-Site.
- Everything but the page's own static files needs the token: in the address, or in a header.
- Bodies are bounded; every answer says that it is not to be framed, sniffed, stored or referred.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from typing import Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST = 2 * 2**20  # bytes of a body
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_NAME = re.compile(r"(\[[0-9a-f:]+\]|[^:]+)(:[0-9]{1,5})?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


ENDED = "the server has ended, and this was not answered; start multihead look again."
_TOO_LARGE = f"a request may have {MOST:,} bytes; send less."


class Guard:
    """An ASGI application around another, which sees only what may be answered."""

    def __init__(self, app: ASGIApp, token: str, hosts: tuple[str, ...] = LOOPBACK) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no sockets here
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        wrong = self._wrong(scope, headers)
        if wrong is not None:
            await _answer(send, *wrong)
            return

        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                ours = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *ours]}
            await send(message)

        try:
            await self.app(scope, _bounded(receive), guarded)
        except asyncio.CancelledError:  # Ctrl-C, while this was worked on: nothing is broken
            if begun:
                raise
            await _answer(send, 503, ENDED)

    def _wrong(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """The status and the reason of a refusal, or None."""
        host = headers.get("host", "")
        name = _NAME.fullmatch(host)
        if name is None or name[1] not in self.hosts:
            return 403, f"the Host must be one of {', '.join(self.hosts)}."
        acts = scope["method"] not in ("GET", "HEAD")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "another site may not ask here."
        site = headers.get("sec-fetch-site", "same-origin")
        if acts and (origin is None or site != "same-origin"):
            return 403, "only the page itself may act here."
        length = headers.get("content-length", "0")
        if not _NUMBER.fullmatch(length) or int(length) > MOST:
            return 413, _TOO_LARGE
        if not scope["path"].isprintable():  # a line's end would be taken for the path's end
            return 404, "there is no such page here."
        if scope["path"].startswith("/static/"):
            return None
        query = parse_qs(scope["query_string"].decode("latin-1"))
        given = headers.get("x-multihead-token") or next(iter(query.get("token", [])), "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return (
                403,
                "open the address that the terminal printed: it holds the token of this run.",
            )
        return None


def _bounded(receive: Receive) -> Receive:
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MOST:
            raise HTTPException(413, _TOO_LARGE)
        return message

    return bounded


async def _answer(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"error": reason}).encode()
    headers: list[Any] = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
    headers += [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
