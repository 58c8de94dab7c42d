"""What the explorer's server answers: JSON twins, tiles, refusals with a reason, and what acts."""

import copy
import csv
import gzip
import io
import json
import threading
import time

import pytest
import torch
from page_server import TEXT, reason, serving, tiny_session

import multihead as mh
from multihead.patterns import Name
from multihead.views.page.making import inside
from multihead.views.page.serving import get
from multihead.views.page.session import MOST_TEXTS

TWINS = [
    "/home.json", "/names.json", "/head/0/0.json", "/range/1/2.json", "/cell/0/0/1/20/3.json",
    "/row/0/0/5.json", "/column/0/0/5.json", "/range/0/0.json?by=norm", "/range/0/0.json?by=uniform",
    "/cell/0/0/1/3/20.json", "/row/0/0/0.json?by=norm", "/home.json?rec=0&batch=0",
    "/range/0/0.json?sinks=show", "/outputs.json",
]  # fmt: skip


@pytest.mark.parametrize("path", TWINS)
def test_every_page_has_a_json_twin(served, path):
    status, headers, body = served.ask(path)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert "content-encoding" not in headers
    told = served.json(path, Accept_Encoding="gzip")
    assert told == (200, json.loads(body))
    if len(body) > 2048:
        zipped = served.ask(path, Accept_Encoding="br, gzip")
        assert zipped[1]["content-encoding"] == "gzip"
        assert gzip.decompress(zipped[2]) == body
        assert zipped[1]["vary"] == "accept-encoding"
    assert get(served.session, path) == (200, body)  # without a socket too


def test_home_says_what_the_library_says(served):
    home = served.json("/home.json")[1]
    rec = served.session.shown["0"].rec
    assert home["tokens"] == 54
    assert home["loss"][0] is None
    assert home["loss"][1:] == pytest.approx(rec.loss[0, 1:].tolist(), rel=1e-3)
    for row, ours in zip(rec.heads(), home["heads"], strict=True):
        for key in ("entropy", "distance", "peak", "first", "received_top_share"):
            assert ours[key] == pytest.approx(row[key], rel=1e-4)
    assert home["texts"]["text"][:2] == ["The", "red"]


def test_a_tile_is_what_the_map_is(served):
    status, headers, body = served.ask("/tile/1/2/1/0/0.bin?sinks=show")
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    cells = torch.frombuffer(bytearray(body), dtype=torch.half).view(54, 54)
    weights = served.session.shown["0"].rec.weights(1, 2)
    seen = torch.ones(54, 54, dtype=torch.bool).tril()
    assert torch.equal(cells.isnan(), ~seen)
    torch.testing.assert_close(cells[seen].float(), weights[seen], rtol=1e-3, atol=1e-7)


JUNK = [
    "/home.json?batch=x", "/home.json?batch=-1", "/home.json?batch=1.5", "/home.json?batch=1e3",
    "/home.json?batch=9999999999999999999999", "/home.json?batch=%D9%A3", "/home.json?batch=1",
    "/home.json?batch=", "/thumbs.bin?batch=7", "/names.json?rec=9", "/home.json?rec=-1",
    "/home.json?rec=%00", "/home.json?rec=%F0%9F%98%80", "/head/99/0.json", "/head/0/99.json",
    "/head/0/0.json?by=height", "/range/0/0.json?sinks=maybe", "/range/0/0.json?sinks=0,,1",
    "/cell/0/0/3/0/0.json", "/heads.csv?batch=1", "/export.html?batch=1",
    "/cell/0/0/1/54/0.json", "/cell/0/0/1/0/99999999999999999999.json", "/row/0/0/54.json",
    "/column/0/0/99999999999999999999999.json", "/tile/0/0/2/0/0.bin", "/tile/0/0/1/1/0.bin",
    "/tile/0/0/1/0/9.bin", "/tile/0/0/0/0/0.bin", "/tile/0/0/1/0/0.bin?pool=median",
    "/tile/9/0/1/0/0.bin", "/head/" + "9" * 5000 + "/0.json", "/export.html?heads=x",
    "/export.html?heads=9.9", "/export.html?heads=0.-1", "/export.html?rec=7", "/heads.csv?rec=7",
    "/export.html?heads=%D9%A3.0", "/head/0/0.json?batch=99",
]  # fmt: skip


@pytest.mark.parametrize("path", JUNK)
def test_junk_is_refused_with_a_reason(served, path):
    told = reason(*served.ask(path), 400)
    assert "int()" not in told
    assert "4300" not in told  # it is about what was asked, and not about Python


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/head/a/0.json", "/head/0/-1.json", "/head/0/1.5.json", "/tile/0/0/1/0.bin",
     "/head/%D9%A3/0.json", "/home", "/home.JSON", "//home.json", "/../home.json", "/record", "/home.json%0a"],
)  # fmt: skip
def test_an_unknown_page(served, path):
    reason(*served.ask(path), 404)


CUTS = [
    b"", b"x", b"[]", b"null", b"{}", b'{"heads": []}', b'{"heads": [[0]]}', b'{"heads": [[0, -1]]}',
    b'{"heads": [[0, 1.5]]}', b'{"heads": [["0", 1]]}', b'{"heads": [[true, 1]]}', b'{"heads": [[9, 0]]}',
    b'{"heads": [[0, 99999999999999999999999]]}', b'{"heads": [[0, 1]], "by": "knife"}',
    b'{"heads": [[0, 1]], "by": ["zero"]}', b'{"heads": [[0, 1]], "lasso": []}',
    b'{"heads": [[0, 1]], "lasso": [[0, 0], [1, 1]]}', b'{"heads": [[0, 1]], "lasso": [[0, 0], [1, NaN], [2, 2]]}',
    b'{"heads": [[0, 1]], "lasso": [[0, 0], [1, 1e999], [2, 2]]}', b'{"heads": [[0, 1]], "rec": "7"}',
    b'{"heads": [[0, 1]], "rec": {}}', b"\xff\xfe", b"[" * 100_000, b'{"heads": "\\ud800"}',
    b'{"heads": [[0, 1]], "rec": "\\ud800"}', b'{"heads": ' + b"9" * 5000 + b"}",
    b'{"heads": [[0, 1], [0, 1]], "lasso": 3}',
]  # fmt: skip


@pytest.mark.parametrize("body", CUTS, ids=range(len(CUTS)))
def test_a_cut_that_is_not_understood(served, body):
    reason(*served.ask("/cut.json", "POST", body=body), 400)


def test_the_tables_of_heads(served, monkeypatch):
    """Heads that never had an opportunity have no score, and are in the table all the same."""
    naming = served.session.naming
    monkeypatch.setattr(
        naming, "names", [Name(0, 1, "self", "at rest", 0.5, 0.4, 0.1, 0.1, 0.0, 9)]
    )
    scores = [{"layer": 0, "head": 0, "scores": {}}, {"layer": 0, "head": 1, "scores": {"self, at rest": [0.5, 0.4, 0.6]}}]  # fmt: skip
    monkeypatch.setattr(naming, "scores", scores)
    status, headers, body = served.ask("/heads.csv")
    assert (status, headers["content-type"]) == (200, "text/csv; charset=utf-8")
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    assert len(rows) == 6
    assert [row["self, at rest"] for row in rows] == ["", "0.5", "", "", "", ""]
    assert rows[1]["names"] == "self at rest 0.50"
    for row, ours in zip(served.session.shown["0"].rec.heads(), rows, strict=True):
        assert float(ours["entropy"]) == pytest.approx(row["entropy"], rel=1e-4)


def test_the_standalone_page(served):
    status, headers, body = served.ask("/export.html?heads=1.2")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["content-disposition"].startswith("attachment")
    assert body.startswith(b"<!doctype html>")
    assert body.rstrip().endswith(b"</html>")


# ---- what acts


def losses(session, surgery):
    ids = torch.as_tensor(session.shown["0"].rec.ids)
    with torch.no_grad(), surgery:
        logits = session.model(ids).logits[0]
    return torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none"), logits


LASSO = [[10.0, 0.0], [10.0, 9.0], [50.0, 9.0], [50.0, 0.0]]


@pytest.mark.parametrize("by", ["zero", "mean", "links"])
def test_a_cut_is_the_library_s(served, by):
    session, heads = served.session, [(0, 1), (1, 2)]
    if by == "links":
        links = torch.zeros(1, 1, 54, 54, dtype=torch.bool)
        links[..., 10:50, :9] = True
        surgery, more = mh.cut(session.model, heads, links=mh.dense(links)), {"lasso": LASSO}
        assert torch.equal(inside([tuple(p) for p in LASSO], 54), links[0, 0])
    else:
        surgery, more = mh.ablate(session.model, heads, by=by), {"by": by}
    expected, logits = losses(session, surgery)
    status, body = served.post("/cut.json", {"rec": "0", "heads": heads, **more})
    told = json.loads(body)
    assert status == 200
    assert told["loss"][0] is None
    assert told["loss"][1:] == pytest.approx(expected.tolist(), rel=1e-4)
    assert told["mean"] == pytest.approx(float(expected.mean()), abs=1e-5)
    assert told["before"] == pytest.approx(float(session.shown["0"].rec.loss.nanmean()), abs=1e-5)
    chances, ids = logits.softmax(-1).topk(5)
    assert [[w for w, _ in row] for row in told["next"]] == [
        [session.tokenizer.decode([i]) for i in row] for row in ids.tolist()
    ]
    assert [p for row in told["next"] for _, p in row] == pytest.approx(chances.flatten().tolist(), abs=1e-3)  # fmt: skip


def test_a_text_of_another_model_is_not_cut(served):
    rec = copy.copy(served.session.shown["0"].rec)
    rec.ids = rec.ids + 1000
    number = served.session.add(rec, "of another", {})
    body = json.dumps({"rec": number, "heads": [[0, 1]]}).encode()
    assert "another" in reason(*served.ask("/cut.json", "POST", body=body), 400)
    served.session._forget(number)


def test_half_a_letter_is_told_as_what_can_be(served):
    rec = copy.copy(served.session.shown["0"].rec)
    rec.words = [["\ud800", *rec.words[0][1:]]]
    number = served.session.add(rec, "broken", {})
    assert served.json(f"/home.json?rec={number}")[1]["texts"]["text"][:2] == ["?", "red"]
    served.session._forget(number)


def test_a_text_is_recorded_with_progress_and_old_ones_are_forgotten(tiny):
    with serving(tiny_session(tiny)) as served:
        made = []
        for n in range(MOST_TEXTS + 2):
            status, body = served.post("/record.ndjson", {"text": f"w{n} {TEXT}", "tokens": 20 + n})
            lines = [json.loads(line) for line in body.splitlines()]
            assert status == 200
            assert [line["share"] for line in lines[:-1]] == sorted(
                line["share"] for line in lines[:-1]
            )
            assert lines[-2]["share"] == 1
            made.append(lines[-1]["recording"])
            assert served.json(f"/names.json?rec={made[-1]}")[0] == 200
        kept = [one["id"] for one in served.json("/home.json")[1]["recordings"]]
        assert kept == ["0", *made[-MOST_TEXTS:]]  # the first text stays
        home = served.json(f"/home.json?rec={made[-1]}")[1]
        assert (home["tokens"], home["texts"]["text"][0]) == (25, "w5")
        reason(*served.ask(f"/home.json?rec={made[0]}"), 400)
        assert {number for number, *_ in served.session._findings} <= {*kept}


@pytest.mark.parametrize(
    "given", [{"text": "", "tokens": 20}, {"text": "a b", "tokens": 20}, {"text": TEXT, "tokens": 7},
              {"text": TEXT, "tokens": 10**9}, {"text": "\ud800" * 30, "tokens": 20}],
)  # fmt: skip
def test_a_text_that_cannot_be_recorded(served, given):
    status, body = served.post("/record.ndjson", given)
    *_, last = [json.loads(line) for line in body.splitlines()]
    assert status == 200
    assert [*last] == ["error"]
    assert "terminal" not in last["error"]  # it is the asker's fault and says so


@pytest.mark.parametrize("given", [{}, {"text": 3}, {"text": "x" * 200_001}, {"text": TEXT, "tokens": "9"}, {"text": TEXT, "tokens": True}])  # fmt: skip
def test_a_text_that_is_not_understood(served, given):
    reason(*served.ask("/record.ndjson", "POST", body=json.dumps(given).encode()), 400)


# ---- who left is not worked for


@pytest.mark.parametrize("kind", ["range", "cut", "record"])
def test_what_nobody_waits_for_is_not_done(served, monkeypatch, kind):
    """Some requests hold all workers; those behind them leave; they are never begun."""
    go, begun, session = threading.Event(), [], served.session

    def slow(*given, **more):
        begun.append(kind)
        assert go.wait(20)
        raise ValueError("it was only a test")

    where = {"range": "map", "cut": "cut", "record": "record"}[kind]
    monkeypatch.setattr(session, where, slow)
    body = json.dumps({"heads": [[0, 1]], "text": TEXT}).encode()
    line = {
        "range": "GET /range/0/0.json",
        "cut": "POST /cut.json",
        "record": "POST /record.ndjson",
    }
    head = f"{line[kind]} HTTP/1.1\r\nHost: {served.host}\r\nOrigin: http://{served.host}\r\n"
    head += f"x-multihead-token: {served.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    waiting = []
    for _ in range(8):
        waiting.append(served.connection())
        waiting[-1].sendall(head.encode() + body)
        time.sleep(0.02)
    patience = time.monotonic() + 10
    while not begun and time.monotonic() < patience:  # on a busy machine it takes a while
        time.sleep(0.02)
    time.sleep(0.2)
    running = len(begun)
    assert 1 <= running <= 2
    assert served.ask("/static/main.js")[0] == 200
    if kind != "range":  # a model at work does not keep maps from being drawn
        assert served.ask("/tile/0/0/1/0/0.bin")[0] == 200
    for one in waiting:
        one.close()
    for _ in range(5):  # each comes after the news that they left
        time.sleep(0.1)
        assert served.ask("/static/main.js")[0] == 200
    go.set()
    monkeypatch.undo()
    assert served.ask("/range/0/0.json")[0] == 200
    assert served.post("/cut.json", {"heads": [[0, 1]]})[0] == 200
    assert len(begun) == running
