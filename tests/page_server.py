"""A real server of the explorer on a free port of this machine, and a plain way to ask it."""

import contextlib
import gzip
import http.client
import json
import socket
import threading
from urllib.parse import parse_qs, urlsplit

from small_reports import WORDS

import multihead as mh
from multihead.views.page.serving import free_socket, make_server
from multihead.views.page.session import Session

TEXT = " ".join(WORDS * 3)
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Served:
    """A server that runs, its session and its token."""

    def __init__(self, session, address):
        self.session, self.address = session, address
        self.port = urlsplit(address).port
        self.token = parse_qs(urlsplit(address).query)["token"][0]
        self.host = f"127.0.0.1:{self.port}"

    def ask(self, path, method="GET", body=None, token=True, **headers):
        """(status, headers, body) of one request; headers are named with _ for -."""
        own = {"Host": self.host}
        if token:
            own["x-multihead-token"] = self.token if token is True else token
        if method == "POST":
            own["Origin"] = f"http://{self.host}"
        own |= {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        ) as c:
            c.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if body is not None and "Transfer-Encoding" not in own:
                own.setdefault("Content-Length", str(len(body)))
            for name, value in own.items():
                if value is not None:
                    c.putheader(name, value)
            c.endheaders(body, encode_chunked="Transfer-Encoding" in own)
            answer = c.getresponse()
            return answer.status, answer.headers, answer.read()

    def json(self, path, method="GET", **more):
        status, headers, body = self.ask(path, method, **more)
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        return status, json.loads(body, parse_constant=_never)

    def post(self, path, given, **more):
        status, _, body = self.ask(path, "POST", body=json.dumps(given).encode(), **more)
        return status, body

    def raw(self, sent, wait=20):
        """All that comes back for some bytes, until the other side closes."""
        with self.connection(wait) as c:
            with contextlib.suppress(OSError):  # it may close before it has all
                c.sendall(sent)
            found = b""
            with contextlib.suppress(OSError):
                while more := c.recv(65536):
                    found += more
        return found

    def connection(self, wait=20):
        return socket.create_connection(("127.0.0.1", self.port), timeout=wait)


def _never(what):
    raise AssertionError(f"{what} is no JSON")


@contextlib.contextmanager
def serving(session):
    made, _ = free_socket(0)
    opened = threading.Event()
    server, address = make_server(session, made, lambda _: opened.set())
    running = threading.Thread(target=server.run, args=([made],), daemon=True)
    running.start()
    assert opened.wait(20)
    try:
        yield Served(session, address)
    finally:
        server.should_exit = True
        running.join(20)
        assert not running.is_alive()


def tiny_session(folder):
    model, tokenizer = mh.load_model(str(folder))
    session = Session(model, tokenizer, str(folder))
    session.record(TEXT, 54, "the first text", lambda *_: None)
    return session


def check_headers(headers):
    for name, value in HEADERS.items():
        assert headers.get_all(name) == [value], name
    (policy,) = headers.get_all("content-security-policy")
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http:" not in policy
    assert "server" not in headers


def reason(status, headers, body, expected):
    assert status == expected, body
    check_headers(headers)
    assert headers["content-type"] == "application/json"
    told = json.loads(body)
    assert [*told] == ["error"]
    assert told["error"]
    assert "Traceback" not in told["error"]
    return told["error"]
