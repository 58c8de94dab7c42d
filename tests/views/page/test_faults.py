"""Many askers at once, junk, half-open connections, a busy port: the explorer's server goes on."""

import asyncio
import contextlib
import gc
import json
import random
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from page_server import TEXT, serving, tiny_session

from multihead.views.page import connection, session
from multihead.views.page.cache import Cache
from multihead.views.page.serving import free_socket


def answers(served):
    assert served.ask("/home.json")[0] == 200
    assert served.ask("/tile/1/1/1/0/0.bin")[0] == 200


# ---- load and junk


def test_fifty_askers_at_once(served):
    chance = random.Random(1)
    paths = [
        f"/tile/{chance.randrange(3)}/{chance.randrange(4)}/{chance.choice([1, 1, 2])}/0/0.bin"
        f"?by={chance.choice(['weight', 'norm', 'uniform'])}&pool={chance.choice(['largest', 'mean'])}"
        for _ in range(600)
    ]
    with ThreadPoolExecutor(50) as pool:
        found = [*pool.map(lambda path: served.ask(path)[0], paths)]
    good = [p.startswith(("/tile/0", "/tile/1")) and "/3/" not in p[6:11] and "/2/0/0" not in p for p in paths]  # fmt: skip
    assert found == [200 if one else 400 for one in good]
    answers(served)


def test_half_open_connections_and_slow_ones(served, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE", 0.5)
    with contextlib.ExitStack() as every:
        silent = [every.enter_context(served.connection(3)) for _ in range(100)]
        for one in silent[:50]:
            one.sendall(b"GET /home.json HT")
        halves = [every.enter_context(served.connection(3)) for _ in range(20)]
        head = f"POST /cut.json HTTP/1.1\r\nHost: {served.host}\r\nOrigin: http://{served.host}\r\n"
        for one in halves:  # a body that never comes whole
            one.sendall(
                f"{head}x-multihead-token: {served.token}\r\nContent-Length: 99\r\n\r\n{{".encode()
            )
        for _ in range(4):
            with contextlib.suppress(ConnectionError):  # given up, on a slow machine
                silent[0].sendall(b"x")
            time.sleep(0.05)
        answers(served)
        for one in silent:  # given up
            with contextlib.suppress(ConnectionError):
                assert one.recv(100) == b""
    answers(served)


def whole_answer(one):
    """An answer may come in pieces: all of it, so that none is left for the next."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += one.recv(65536)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += one.recv(65536)
    return head


def test_half_a_request_behind_a_whole_one_is_given_up(served, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE", 0.5)
    head = f"GET /names.json HTTP/1.1\r\nHost: {served.host}\r\n"
    asked = f"{head}x-multihead-token: {served.token}\r\n\r\n".encode()
    with served.connection(4) as one:
        for _ in range(2):  # a second whole one is answered, however late it was begun
            one.sendall(asked[:9])
            time.sleep(0.2)
            one.sendall(asked[9:])
            assert whole_answer(one).startswith(b"HTTP/1.1 200")
            time.sleep(0.2)
        one.sendall(asked[:9])
        time.sleep(0.2)
        one.sendall(asked[9:15])  # slowly on
        with contextlib.suppress(ConnectionError):
            while more := one.recv(65536):  # closed, and not only silent
                assert b"HTTP/1.1" not in more
    answers(served)


JUNK = [
    b"\x00" * 1000, b"\xff" * 70_000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 5000,
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"b" * 200_000,
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n", b"A" * 300_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"CONNECT evil.com:443 HTTP/1.1\r\nHost: evil.com\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("sent", JUNK, ids=range(len(JUNK)))
def test_junk_is_told_so_or_left(served, sent, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE", 0.3)
    found = served.raw(sent, wait=1)
    assert not found or found.split(b" ")[1] in (b"400", b"403", b"404", b"405", b"413")
    assert b"Traceback" not in found
    answers(served)


def test_junk_in_the_middle_of_a_request_is_no_noise(served, capfd):
    head = f"POST /cut.json HTTP/1.1\r\nHost: {served.host}\r\nOrigin: http://{served.host}\r\n"
    head += f"x-multihead-token: {served.token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    for body in (b"5\r\n{", b"5\r\nabcdefg", b"zz\r\n\r\n"):
        with served.connection() as one:
            one.sendall(head.encode() + body)
            time.sleep(0.05)
    answers(served)
    assert "Traceback" not in capfd.readouterr().err


def test_memory_stays_where_it_is(served):
    def ask(n):
        by = ("weight", "norm", "uniform")[n % 3]
        assert served.ask(f"/range/{n % 2}/{n % 3}.json?by={by}")[0] == 200

    for n in range(100):
        ask(n)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    threads = threading.active_count()
    for n in range(600):
        ask(n)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # kB
    assert threading.active_count() <= threads + 2


def test_the_cache_is_bounded_and_makes_a_value_once():
    cache, made, lock = Cache(100), [], threading.Lock()

    def make(key):
        with lock:
            made.append(key)
        time.sleep(0.002)
        return key

    def ask(key):
        assert cache.get(key, lambda: make(key), lambda _: 30) == key

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(ask, [1] * 40)]
        assert made == [1]
        chance = random.Random(2)
        [*pool.map(ask, [chance.randrange(9) for _ in range(400)])]
    assert cache.held == 30 * len(cache._values) <= 100
    assert not cache._making
    with pytest.raises(ZeroDivisionError):
        cache.get("bad", lambda: 1 / 0, lambda _: 1)
    assert (
        cache.get("bad", lambda: 7, lambda _: 1000) == 7
    )  # one that is too large alone is kept alone
    assert cache.held == 1000
    cache.drop(lambda key: key == "bad")
    assert (cache.held, not cache._values) == (0, True)


# ---- who leaves


@pytest.mark.parametrize("late", ["make_recording", "add"])
def test_a_text_whose_asker_left_at_its_end_is_not_kept(served, monkeypatch, late):
    """The model has run, and nobody asks any more whether somebody waits."""
    begun, go, done, own = threading.Event(), threading.Event(), threading.Event(), served.session
    where = own if late == "add" else session
    before, record = getattr(where, late), own.record

    def slow(*given, **more):
        found = before(*given, **more)
        begun.set()
        assert go.wait(20)
        return found

    def recorded(*given, **more):
        try:
            return record(*given, **more)
        finally:
            done.set()

    monkeypatch.setattr(where, late, slow)
    monkeypatch.setattr(own, "record", recorded)
    kept, typed = [*own.shown], [*own._typed]
    body = json.dumps({"text": TEXT, "tokens": 20}).encode()
    head = (
        f"POST /record.ndjson HTTP/1.1\r\nHost: {served.host}\r\nOrigin: http://{served.host}\r\n"
    )
    head += f"x-multihead-token: {served.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    with served.connection() as one:
        one.sendall(head.encode() + body)
        assert begun.wait(20)
    time.sleep(0.3)  # in which it is heard of
    go.set()
    assert done.wait(20)
    patience = time.monotonic() + 10
    while [*own.shown] != kept and time.monotonic() < patience:
        time.sleep(0.02)
    assert ([*own.shown], own._typed) == (kept, typed)
    answers(served)


# ---- ports


def test_a_busy_port_gives_a_free_one():
    taken, as_asked = free_socket(0)
    assert as_asked
    port = taken.getsockname()[1]
    other, as_asked = free_socket(port)
    assert not as_asked
    assert other.getsockname()[1] not in (0, port)
    assert other.getsockname()[0] == "127.0.0.1"
    for one in (taken, other):
        one.close()


def test_the_end_of_an_answer_does_not_wait_until_its_beginning_is_acknowledged():
    async def of_a_connection() -> int:
        made, _ = free_socket(0)
        found = asyncio.get_running_loop().create_future()

        def connected(_, writer):
            its = writer.get_extra_info("socket")
            found.set_result(its.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=made):
            _, writer = await asyncio.open_connection(*made.getsockname())
            told = await asyncio.wait_for(found, 10)
            writer.close()
        return told

    assert asyncio.run(of_a_connection())  # else 40 ms an answer, of the time in which it is sent


def test_who_waits_for_a_cut_when_the_server_ends_is_told_that_it_ended(tiny):
    session, begun, free = tiny_session(tiny), threading.Event(), threading.Event()

    def slow(**_):
        begun.set()
        free.wait(20)

    session.cut = slow
    told = []
    with serving(session) as served:

        def ask():
            told.append(served.post("/cut.json", {"heads": [[0, 1]]}))

        waiting = threading.Thread(target=ask)
        waiting.start()
        assert begun.wait(20)
    waiting.join(20)
    free.set()
    ((status, body),) = told
    assert status == 503
    assert "the server has ended" in json.loads(body)["error"]
