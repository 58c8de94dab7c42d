"""The explorer's page, served for a browser: of a tiny model, or of maps that are made by hand."""

import dataclasses
import functools
import itertools
import json
import math
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

import torch
import uvicorn
from small_reports import NAMES, WORDS, name, save_model, verdict

import multihead as mh
from multihead.observation import heatmap
from multihead.views.files import plain
from multihead.views.page.app import make_app
from multihead.views.page.serving import free_socket
from multihead.views.page.session import Session
from multihead.views.page.thumbs import THUMB
from multihead.views.report import STATS

TOKEN = "a-token"
TEXT = " ".join(itertools.islice(itertools.cycle(WORDS), 60))
ABOUT = "tiny, 4-bit quantised, Apache-2.0"
EVERY = (*STATS, heatmap(THUMB))
HOSTILE = [
    "<img src=x onerror=document.title='taken'>", "</script>", "&amp;", "${1}", " cat", "\n", "\t",
    "", "\ufffd", "\u202eevil", "日本", "javascript:alert(1)", "<b>", "'\"`",
]  # fmt: skip


def serve(session: Session) -> str:
    """The address of a session's page, answered by a thread that lasts as long as the tests."""
    made, _ = free_socket(0)
    config = uvicorn.Config(make_app(session, TOKEN), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, kwargs={"sockets": [made]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return f"http://127.0.0.1:{made.getsockname()[1]}/?token={TOKEN}"


@functools.cache
def loaded():
    folder = Path(tempfile.mkdtemp())
    model, tokenizer = mh.load_model(str(save_model(folder)))
    model.config.about = ABOUT
    return model, tokenizer


def scores() -> list[dict]:
    every = {"induction, on cue": [0.5, 0.4, 0.6], "self, at rest": [0.1, 0.05, 0.2]}
    return [{"layer": a, "head": h, "scores": every} for a in range(2) for h in range(3)]


def name_heads(session: Session) -> None:
    """Four names and two verdicts, as the process that looks for them would tell."""
    other = name(0, 1, "previous token", score=0.7)
    verdicts = [verdict(NAMES[0]), verdict(other, holds=False, effect=0.01, low=-0.02)]
    said = {"names": NAMES, "verdicts": verdicts}
    told = {key: [dataclasses.asdict(one) for one in every] for key, every in said.items()}
    session.naming._take(json.loads(json.dumps(plain(told))) | {"scores": scores()})
    session.naming.state = "done"


def tiny_session(named: bool = True) -> Session:
    """A page with its model: 60 tokens, two layers of three heads."""
    session = Session(*loaded(), "tiny")
    session.record(TEXT, 60, "a text", lambda message, share: None)
    if named:
        name_heads(session)
    return session


class Attends(torch.nn.Module):
    """Attention and nothing else, to record logits that are made by hand."""

    def forward(self, query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def recorded(query: torch.Tensor, key: torch.Tensor, words: list[str] | None = None):
    """The recording of one causal layer, (head, token, dim) of queries and keys."""
    module = Attends()
    with torch.no_grad(), mh.record(module, stats=EVERY) as rec:
        module(query[None], key[None], key[None])
    tokens = query.shape[1]
    rec.ids = torch.arange(tokens)[None]
    rec.words = [words or [f"word{i}" for i in range(tokens)]]
    return rec


def lonely_link(tokens: int, query: int, key: int, weight: float = 0.9):
    """Everybody looks everywhere alike, but for one who looks at one key with this weight."""
    q, k = torch.zeros(1, tokens, 8), torch.zeros(1, tokens, 8)
    size = math.log(weight / (1 - weight) * query) * math.sqrt(8)
    q[0, query, 0], k[0, key, 0] = size, 1.0
    return recorded(q, k)


# ---- what a test does in the browser ------------------------------------------------------------

POINT = """([query, key, nth]) => {
  const m = document.querySelectorAll(".mapbox canvas")[nth].headMap, box = m.canvas.getBoundingClientRect();
  return [box.left + m.margin.left + (key + 0.5 - m.view.k) * m.scale,
          box.top + m.margin.top + (query + 0.5 - m.view.q) * m.scale];
}"""
READY = """() => { const every = [...document.querySelectorAll(".mapbox canvas")];
  return every.length > 0 && every.every((c) => c.dataset.ready === "true"); }"""


@functools.cache
def tiny() -> tuple[Session, str]:
    """A session that no test changes, and where it is served."""
    session = tiny_session()
    return session, serve(session)


def look(page, address: str, **state):
    """Open a view, and wait until it is drawn."""
    page.goto(f"{address}#{urlencode(state)}")
    page.wait_for_selector("main")
    if state.get("view") == "head":
        ready(page)
    elif state.get("view", "home") == "home":
        page.wait_for_selector(".home .reader .word")
    settled(page)
    return page


def settled(page) -> None:
    """Wait for what follows a drawing: listeners, and what is drawn by hand.

    It comes after the next frame.
    """
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def ready(page) -> None:
    """Wait until every map is drawn, and what follows a drawing is done."""
    settled(page)
    page.wait_for_function(READY)
    settled(page)


def until(page, holds: str, arg=None) -> None:
    """Wait for an expression to hold; as a function, for the page's policy lets no string be run."""
    page.wait_for_function(f"(arg) => {holds}", arg=arg)
    settled(page)


def redrawn(page, holds: str, arg=None, nth: int = 0) -> None:
    """Wait until a map shows what is asked for (`m` is the map), and all of it."""
    until(
        page,
        f"((m) => m?.shown && {holds})(document.querySelectorAll('.mapbox canvas')[{nth}]?.headMap)",
        arg,
    )
    ready(page)


def point(page, query: float, key: float, nth: int = 0) -> None:
    """Put the pointer on a link of the map."""
    page.mouse.move(*page.evaluate(POINT, [query, key, nth]))


def in_map(page, what: str, nth: int = 0):
    """Something of the map: its view, its factor."""
    return page.evaluate(
        f"(nth) => document.querySelectorAll('.mapbox canvas')[nth].headMap.{what}", nth
    )


def pixels(page, places: list[tuple[float, float]]) -> list[list[int]]:
    """The colours in the middle of links of the map."""
    return page.evaluate(
        """async (places) => { for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
        const m = document.querySelector(".mapbox canvas").headMap, r = m.ratio;
        const copy = new OffscreenCanvas(m.canvas.width, m.canvas.height).getContext("2d", {willReadFrequently: true});
        copy.drawImage(m.canvas, 0, 0);
        return places.map(([query, key]) => [...copy.getImageData(
          Math.floor((m.margin.left + (key + 0.5 - m.view.k) * m.scale) * r),
          Math.floor((m.margin.top + (query + 0.5 - m.view.q) * m.scale) * r), 1, 1).data]); }""",
        places,
    )


def grey(pixel: list[int]) -> float:
    red, green, blue = pixel[:3]
    return 0.299 * red + 0.587 * green + 0.114 * blue


def said(value: float) -> str:
    """A number as the page writes it."""
    if value and abs(value) < 0.001:
        return f"{value:.1e}".replace("e-0", "e-")
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.{2 if abs(value) >= 10 else 3}f}"
