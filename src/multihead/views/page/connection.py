"""One connection to the server: uvicorn's own, less patient, and as careful in what it answers."""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .guard import HEADERS

PATIENCE = 20.0  # seconds for the head of a request: a browser opens connections in advance


class Connection(H11Protocol):
    """Closes what asks nothing in time, and says to junk what it says to everyone."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting: asyncio.TimerHandle | None = self.loop.call_later(PATIENCE, self._given_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patient()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:  # the head of a request is whole
            self._patient()
        if self._waiting is None and self._unasked() and self.conn.trailing_data[0]:
            # Half a head behind a whole request: uvicorn waits for the rest of it without end.
            self._waiting = self.loop.call_later(PATIENCE, self._given_up)

    def _unasked(self) -> bool:
        """Whether nothing is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _patient(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _given_up(self) -> None:
        if self._unasked() and not self.transport.is_closing():
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
