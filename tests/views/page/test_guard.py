"""Who may ask the explorer's server, and what every answer says."""

import json
from pathlib import Path

import pytest
from page_server import HEADERS, check_headers, reason

from multihead.views.page import guard

STATIC = Path(guard.__file__).parent / "static"


# ---- the token


@pytest.mark.parametrize("given", [False, "", "wrong", "é", "a" * 5000])
@pytest.mark.parametrize(
    "path", ["/", "/home.json", "/tile/0/0/1/0/0.bin", "/nothing", "/cut.json"]
)
def test_without_the_token_nothing_is_told(served, path, given):
    found = reason(*served.ask(path, token=given), 403)
    assert "token" in found


def test_the_token_in_the_address_or_in_a_header(served):
    assert served.ask("/home.json")[0] == 200
    assert served.ask(f"/home.json?token={served.token}", token=False)[0] == 200
    assert served.ask(f"/?token={served.token}", token=False)[0] == 200
    for query in ("token=", "token=x", f"token={served.token}x", f"Token={served.token}", "token=%00",
                  f"token=x&token={served.token}"):  # fmt: skip
        reason(*served.ask(f"/home.json?{query}", token=False), 403)
    reason(*served.ask(f"/home.json?token={served.token}", token="wrong"), 403)
    assert len(served.token) >= 32


# ---- the host


@pytest.mark.parametrize(
    "host",
    ["evil.com", "127.0.0.1.evil.com", "evil.com:8080", "localhost.evil.com", "127.0.0.1:80.evil.com",
     "127.0.0.1:evil", "0.0.0.0", "127.0.0.2", "[::2]", "127.0.0.1@evil.com", "", "::1", "localhost:",
     "127.0.0.1:8080:80", "evil.com#127.0.0.1"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/home.json", "/static/main.js", "/"])
def test_a_foreign_name_is_not_answered(served, host, path):
    answer = served.ask(path, Host=host)
    if answer[0] != 400:  # what no host can be called is refused before
        assert "Host" in reason(*answer, 403)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_names_of_this_machine(served, host):
    for name in (host, f"{host}:{served.port}", f"{host}:1"):
        assert served.ask("/home.json", Host=name)[0] == 200


def test_a_request_without_a_host(served):
    for version, code in ((b"1.1", b" 400 "), (b"1.0", b" 403 ")):
        sent = b"GET /home.json HTTP/%s\r\nx-multihead-token: %s\r\n\r\n"
        assert code in served.raw(sent % (version, served.token.encode())).split(b"\r\n")[0]
    twice = f"GET / HTTP/1.1\r\nHost: {served.host}\r\nHost: evil.com\r\n\r\n"
    assert b" 400 " in served.raw(twice.encode()).split(b"\r\n")[0]


# ---- what acts

BODY = json.dumps({"heads": [[0, 1]]}).encode()


@pytest.mark.parametrize("path", ["/cut.json", "/record.ndjson"])
@pytest.mark.parametrize(
    "headers",
    [{"Origin": None}, {"Origin": "null"}, {"Origin": "http://evil.com"}, {"Origin": ""},
     {"Origin": "https://{host}"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": "http://{host}.evil.com"},
     {"Origin": "http://localhost"}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
     {"Sec_Fetch_Site": "none"}, {"Sec_Fetch_Site": ""}],
)  # fmt: skip
def test_only_the_page_itself_acts(served, path, headers):
    headers = {name: value and value.format(host=served.host) for name, value in headers.items()}
    reason(*served.ask(path, "POST", body=BODY, **headers), 403)


def test_the_page_acts(served):
    assert served.ask("/cut.json", "POST", body=BODY)[0] == 200
    assert served.ask("/cut.json", "POST", body=BODY, Sec_Fetch_Site="same-origin")[0] == 200
    local = f"localhost:{served.port}"
    assert (
        served.ask("/cut.json", "POST", body=BODY, Host=local, Origin=f"http://{local}")[0] == 200
    )
    reason(*served.ask("/cut.json", "POST", body=BODY, token=False), 403)
    reason(*served.ask("/home.json", Origin="http://evil.com"), 403)  # a foreign page that reads


# ---- every answer


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/", "GET", 200), ("/home.json", "GET", 200), ("/home.json", "HEAD", 200), ("/thumbs.bin", "GET", 200),
     ("/static/main.js", "GET", 200), ("/heads.csv", "GET", 200), ("/tile/0/0/1/0/0.bin", "GET", 200),
     ("/export.html", "GET", 200), ("/nothing", "GET", 404), ("/static/nothing.js", "GET", 404),
     ("/home.json/", "GET", 404), ("/home.json?batch=x", "GET", 400), ("/home.json", "POST", 405),
     ("/cut.json", "GET", 405), ("/cut.json", "DELETE", 403), ("/home.json", "OPTIONS", 403),
     ("/cut.json", "POST", 400)],
)  # fmt: skip
def test_headers_on_every_answer(served, path, method, status):
    found = served.ask(path, method)
    assert found[0] == status
    check_headers(found[1])
    if status >= 400:
        reason(*found, status)
    if status == 405:
        assert found[1]["allow"]


def test_headers_where_no_request_was_understood(served):
    answer = served.raw(b"\x16\x03\x01\x02\x00junk\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 400 " in head.split(b"\r\n")[0]
    for name, value in HEADERS.items():
        assert f"{name}: {value}".encode() in head.lower().replace(b"deny", b"DENY")
    assert json.loads(body)["error"]


# ---- files

CLIMBS = [
    "../app.py", "..%2fapp.py", "%2e%2e/app.py", "%2e%2e%2fapp.py", "..%5capp.py", "..\\app.py",
    "vendor/../../app.py", "vendor/%2e%2e/%2e%2e/app.py", "/etc/passwd", "%2fetc%2fpasswd",
    "//etc/passwd", "vendor//preact.js", "main.js%00", "main.js%00.css", "%00main.js", "main.js/",
    "./main.js", "%252e%252e/app.py", "....//app.py", "main.js%0a", "vendor", "", ".", "..", "MAIN.JS",
    "index.html", "C:%5cwindows", "main.js;.css", "main%2ejs%20", "vendor/VERSIONS.md", "..%c0%afapp.py",
]  # fmt: skip


@pytest.mark.parametrize("name", CLIMBS)
def test_no_file_but_the_page_s_own(served, name):
    line = f"GET /static/{name} HTTP/1.1\r\nHost: {served.host}\r\nConnection: close\r\n\r\n"
    head, _, body = served.raw(line.encode()).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] in (b"404", b"400")
    assert json.loads(body)["error"]
    assert b"x-content-type-options: nosniff" in head


def test_every_file_of_the_page(served):
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    files = [f for f in STATIC.rglob("*") if f.suffix in kinds]
    assert len(files) > 20
    for file in files:
        status, headers, body = served.ask(f"/static/{file.relative_to(STATIC)}", token=False)
        assert (status, body) == (200, file.read_bytes())
        assert headers["content-type"].partition(";")[0] == kinds[file.suffix]


# ---- bodies


def test_a_body_is_bounded(served):
    big = b" " * (guard.MOST + 1)
    sent = {"body": big, "method": "POST"}
    reason(*served.ask("/cut.json", "POST", Content_Length=str(len(big))), 413)
    reason(*served.ask("/cut.json", "POST", Content_Length="9" * 18), 413)
    pieces = (big[i : i + 65536] for i in range(0, len(big), 65536))
    for path in ("/cut.json", "/record.ndjson"):
        answer = served.ask(path, **{**sent, "body": pieces}, Transfer_Encoding="chunked")
        reason(*answer, 413)
        pieces = (big[i : i + 65536] for i in range(0, len(big), 65536))
    for length in ("-1", "x", "1e3", "²", "9" * 5000, "1, 2"):
        line = f"POST /cut.json HTTP/1.1\r\nHost: {served.host}\r\nOrigin: http://{served.host}\r\n"
        line += f"x-multihead-token: {served.token}\r\nContent-Length: {length}\r\n\r\n"
        assert served.raw(line.encode("latin-1")).split(b" ")[1] in (b"400", b"413")
    chunked = served.ask(
        "/cut.json", "POST", body=iter([BODY[:5], BODY[5:]]), Transfer_Encoding="chunked"
    )
    assert chunked[0] == 200


def test_a_socket_or_a_stream_of_events_is_a_route_like_any(served):
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    reason(*served.ask("/ws", token=False, **upgrade), 403)
    reason(*served.ask("/ws", Host="evil.com", **upgrade), 403)
    reason(*served.ask("/ws", Origin="http://evil.com", **upgrade), 403)
    reason(*served.ask("/ws", **upgrade), 404)
    reason(*served.ask("/events", token=False, Accept="text/event-stream"), 403)
    reason(*served.ask("/events", Accept="text/event-stream"), 404)
