"""The explorer at 4,096 tokens of SmolLM2: first view, tiles from a cold cache, weight, memory.

    python benchmarks/page.py             some minutes; writes results/page.json
    python benchmarks/page.py --quick     512 tokens, fewer requests, writes nothing

A real server on this machine, asked through its socket by the same process. Tiles are drawn at
random over heads, zooms and places, each from an empty cache. The first view is what a real
Chromium needs from the address to the thumbnails of all heads on the screen.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import shutil
import statistics
import sys
import threading
import time
from urllib.parse import urlsplit

import torch
from measure import RESULTS, save

import multihead as mh
from multihead.patterns import DEFAULT_TEXT
from multihead.views.page.serving import free_socket, serve
from multihead.views.page.session import Session

BARS = {"cut_s": 3, "first_view_s": 1.5, "tile_median_ms": 50, "tile_95_ms": 150, "weight_kB": 600}


def started(tokens: int) -> tuple[Session, str]:
    """A session that is served in a thread, and its address."""
    model, tokenizer = mh.load_model("smollm2")
    session = Session(model, tokenizer, "smollm2")
    text = " ".join([DEFAULT_TEXT] * (1 + tokens // 500))
    session.record(text, tokens, "the default text, repeated", lambda what, share: None)
    found: list[str] = []
    made, _ = free_socket(0)
    threading.Thread(target=serve, args=(session, made, found.append), daemon=True).start()
    while not found:
        time.sleep(0.01)
    return session, found[0]


class Client:
    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.token = parts.query.removeprefix("token=")
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port)

    def get(self, path: str) -> bytes:
        self.connection.request("GET", path, headers={"x-multihead-token": self.token})
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}: {body[:200]!r}")
        return body


def tile_path(draw: random.Random, tokens: int, layers: int, heads: int) -> str:
    factor = 2 ** draw.randrange(max(1, (tokens // 256).bit_length()))
    row = draw.randrange(-(-tokens // (256 * factor)))
    column = draw.randrange(row + 1)  # above the diagonal nobody looks
    place = f"{draw.randrange(layers)}/{draw.randrange(heads)}/{factor}/{row}/{column}.bin"
    return f"/tile/{place}?by=weight&pool={draw.choice(['largest', 'mean', 'sum'])}"


def time_tiles(client: Client, session: Session, tokens: int, count: int) -> dict:
    draw, seconds = random.Random(0), []
    for _ in range(count):
        session._cache.drop(lambda key: True)  # every one from a cold cache
        path = tile_path(draw, tokens, 30, 9)
        begun = time.perf_counter()
        client.get(path)
        seconds.append(1000 * (time.perf_counter() - begun))
    seconds.sort()
    return {
        "tiles": count,
        "tile_median_ms": statistics.median(seconds),
        "tile_95_ms": seconds[int(0.95 * len(seconds))],
        "tile_worst_ms": seconds[-1],
    }


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(client: Client, tokens: int, count: int) -> dict:
    """What the process holds, after a tenth of the requests and after all of them."""
    draw, marks = random.Random(1), []
    for n in range(count):
        client.get(tile_path(draw, tokens, 30, 9))
        if n + 1 in (count // 10, count // 2, count):
            marks.append(resident())
    return {"requests": count, "resident_MB": [m / 1e6 for m in marks]}


def first_view(address: str, chromium: str) -> dict:
    """Seconds from the address to every thumbnail, and what came over the wire."""
    from playwright.sync_api import sync_playwright

    seconds, sizes = [], {}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(5):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            sizes = {}

            def measured(answer, sizes=sizes) -> None:
                sizes[answer.url] = answer.request.sizes()["responseBodySize"]

            page.on("requestfinished", lambda r, m=measured: m(r.response()))
            begun = time.perf_counter()
            page.goto(address)
            page.locator(".cell canvas").nth(269).wait_for(state="attached")
            page.evaluate("() => new Promise((go) => requestAnimationFrame(() => setTimeout(go)))")
            seconds.append(time.perf_counter() - begun)
            page.wait_for_timeout(300)
            page.close()
        browser.close()
    return {"first_view_s": statistics.median(seconds), "weight_kB": sum(sizes.values()) / 1000}


def time_cut(tokens: int) -> dict:
    """Cut a head by the session, as a request does: the model runs once more on its text."""
    model, tokenizer = mh.load_model("smollm2")
    session = Session(model, tokenizer, "smollm2")
    number = session.record(DEFAULT_TEXT, tokens, "the default text", lambda what, share: None)
    seconds = []
    for head in range(5):
        begun = time.perf_counter()
        session.cut(number, [(18, head)], None, "zero")
        seconds.append(time.perf_counter() - begun)
    return {"cut_s": statistics.median(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", help="only this: cut, view, tiles or memory; the rest stays")
    asked = parser.parse_args()
    quick = asked.quick
    tokens, tiles, requests = (512, 50, 500) if quick else (4096, 400, 10_000)
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("the first view is timed in a real browser: install chromium.")
    torch.set_num_threads(2)
    session, address = started(tokens)
    client, found = Client(address), {"tokens": tokens}
    before = RESULTS / "page.json"
    if asked.part and before.exists():
        found = {k: v for k, v in json.loads(before.read_text()).items() if k != "machine"}
    parts = {
        "cut": lambda: time_cut(512),
        "view": lambda: first_view(address, chromium),
        "tiles": lambda: time_tiles(client, session, tokens, tiles),
        "memory": lambda: memory(client, tokens, requests),
    }
    for name, part in parts.items():
        if asked.part not in (None, name):
            continue
        told = part()
        for key, value in told.items():
            bar = f"   (bar {BARS[key]})" if key in BARS else ""
            shown = round(value, 2) if isinstance(value, float) else value
            print(f"{key:>16}  {shown}{bar}", flush=True)
        found |= told
    if not quick:
        save("page", found)
    print(json.dumps({"written": None if quick else "page.json"}))
    os._exit(0)  # the server waits for Ctrl-C


if __name__ == "__main__":
    main()
