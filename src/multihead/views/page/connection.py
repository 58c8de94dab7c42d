"""One connection to the server: uvicorn's own, less patient, and as careful in what it answers."""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .guard import HEADERS

PATIENCE = 20.0  # seconds for the head of a first request: a browser opens some in advance


class Connection(H11Protocol):
    """Closes what asks nothing in time, and says to junk what it says to everyone."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self.loop.call_later(PATIENCE, self._given_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self._waiting.cancel()

    def _given_up(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is told so once, if an answer has not begun; and then left."""
        body = json.dumps({"error": "this is no request of HTTP."}).encode()
        kind, size = b"application/json", str(len(body)).encode()
        headers = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
        headers += [(b"content-type", kind), (b"content-length", size), (b"connection", b"close")]
        try:
            answer = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # in the middle of another answer
            pass
        self.transport.close()
