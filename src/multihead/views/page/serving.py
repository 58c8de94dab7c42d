"""Serve a session, or a run, on this machine until Ctrl-C; or answer one request, no socket."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from .app import make_app
from .connection import Connection
from .guard import Guard
from .playing import make_run_app
from .runs import Run
from .session import Session

HOST, PORT = "127.0.0.1", 8080


def _app(shown: Session | Run, token: str) -> Guard:
    return make_run_app(shown, token) if isinstance(shown, Run) else make_app(shown, token)


def free_socket(port: int | None) -> tuple[socket.socket, bool]:
    """A socket on this machine alone, at the port asked for, or at a free one if that is taken."""
    wanted = PORT if port is None else port
    for tried in (wanted, 0):
        # Named as TCP, or asyncio does not see that it is, and lets answers wait for one another.
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((HOST, tried))
            made.listen(128)  # two that bind may both succeed; to listen, only one does
        except (OSError, OverflowError):
            made.close()
            if tried == 0:
                raise
        else:
            return made, tried == wanted
    raise AssertionError


class _Server(uvicorn.Server):
    """Tells when it can be asked."""

    opened: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.opened()


def make_server(
    shown: Session | Run, made: socket.socket, opened: Callable[[str], None]
) -> tuple[uvicorn.Server, str]:
    """A server that can be run, and its address; `opened` is told it once it can be asked."""
    token = secrets.token_urlsafe(24)
    config = uvicorn.Config(
        _app(shown, token), log_level="critical", access_log=False, lifespan="off",
        timeout_graceful_shutdown=0, server_header=False, h11_max_incomplete_event_size=64 * 1024,
        http=Connection, ws="none", loop="asyncio",
    )  # fmt: skip
    server = _Server(config)
    address = f"http://{HOST}:{made.getsockname()[1]}/?token={token}"
    server.opened = lambda: opened(address)
    return server, address


def serve(shown: Session | Run, made: socket.socket, opened: Callable[[str], None]) -> None:
    """Answer until Ctrl-C; `opened` is told the address once it can be asked."""
    server, _ = make_server(shown, made, opened)
    try:
        server.run(sockets=[made])
    finally:
        if isinstance(shown, Session):
            shown.naming.stop()


def get(shown: Session | Run, path: str) -> tuple[int, bytes]:
    """What a GET of a path would answer, without a socket: a status and a body."""
    token = secrets.token_urlsafe(24)
    where, _, query = path.partition("?")
    scope = {
        "type": "http", "method": "GET", "path": where, "raw_path": where.encode(),
        "query_string": query.encode(), "http_version": "1.1", "scheme": "http",
        "server": (HOST, PORT), "client": (HOST, 0), "root_path": "",
        "headers": [(b"host", HOST.encode()), (b"x-multihead-token", token.encode())],
    }  # fmt: skip
    status, parts = 500, []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(3600)  # whoever asks stays
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    asyncio.run(_app(shown, token)(scope, receive, send))  # type: ignore[arg-type]
    return status, b"".join(parts)
