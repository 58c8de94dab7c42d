"""Room: maps are large, nothing lies over them, and what is written is whole."""

import pytest
import torch
from pages import in_map, look, point, ready, recorded, serve, tiny, tiny_session, until
from small_reports import WORDS

from multihead.views.page.session import Session

WRITTEN = """window.written = [];
    const before = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (t, ...at) { written.push(t); return before.call(this, t, ...at); };"""


@pytest.fixture(scope="module")
def alike():
    """300 tokens, a head that looks everywhere alike and one that does so with no mask."""
    session = Session()
    session.add(recorded(torch.zeros(1, 300, 8), torch.zeros(1, 300, 8)), "by hand", {})
    return serve(session)


def test_the_top_line_is_one_line(new_page):
    session = tiny_session()
    session.of("0").about |= {"model": "SmolLM2-135M-Instruct, 4-bit quantised, Apache-2.0"}
    session.record(" ".join(WORDS), 60, "another text of many words", lambda *_: None)
    page = look(new_page(), serve(session))
    assert page.locator("header select").count() == 1
    assert page.locator("header").bounding_box()["height"] < 50
    bottoms = page.locator("header > *").evaluate_all(
        "all => all.map((e) => e.getBoundingClientRect().bottom)"
    )
    assert max(bottoms) < 50
    assert page.locator("header .about span").all_inner_texts() == ["60 tokens", "no BOS"]


def test_maps_are_large_in_a_small_window(new_page):
    page = look(new_page(), tiny()[1], view="head", layer=1, head=2)
    assert in_map(page, "side") >= 420
    look(page, tiny()[1], view="compare", a="0.1", b="1.2")
    until(page, "document.querySelectorAll('.mapbox canvas').length === 3")
    ready(page)
    sides = [in_map(page, "side", nth) for nth in range(3)]
    assert min(sides) == max(sides) >= 200
    tops = page.locator(".mapbox canvas").evaluate_all(
        "all => all.map((c) => c.getBoundingClientRect().top)"
    )
    assert len(set(tops)) == 1  # side by side
    point(page, 40, 20)
    until(page, "document.querySelectorAll('.pointed')[2].textContent.includes(' = ')")
    whole = page.locator(".pointed").evaluate_all(
        "all => all.map((p) => p.scrollHeight <= p.clientHeight + 1 && p.scrollWidth <= p.clientWidth)"
    )
    assert whole == [True] * 3  # each sentence can be read


MINI = """() => { const m = document.querySelector(".mapbox canvas").headMap, { x, y, size } = m.mini;
    return { over: x < m.margin.left + m.side && y < m.margin.top + m.side, inside: x + size <= m.width,
      query: m.view.q + (y + size - m.margin.top) / m.scale, key: m.view.k + (x - m.margin.left) / m.scale }; }"""


@pytest.mark.parametrize("size", [(1280, 720), (1440, 900), (1280, 1000)])
def test_the_mini_map_stands_beside_the_map(new_page, alike, size):
    viewport = dict(zip(("width", "height"), size, strict=True))
    page = look(new_page(viewport=viewport), alike, view="head", q=100, k=20, span=60)
    mini = page.evaluate(MINI)
    assert not mini["over"]
    assert mini["inside"]


def test_in_a_comparison_it_lies_above_the_diagonal(new_page, alike):
    page = new_page(viewport={"width": 2000, "height": 1100})
    look(page, alike, view="compare", a="0.0", b="0.0", q=80, k=80, span=100)
    until(page, "document.querySelectorAll('.mapbox canvas').length === 3")
    ready(page)
    mini = page.evaluate(MINI)
    assert mini["over"]
    assert mini["key"] > mini["query"]  # nobody may look there


def test_the_first_word_of_a_view_is_written(new_page):
    page = new_page()
    page.add_init_script(WRITTEN)
    words = [f"word{i}" for i in range(60)]
    session = Session()
    rec = recorded(torch.zeros(1, 60, 8), torch.zeros(1, 60, 8), words)
    session.add(rec, "by hand", {})
    address = serve(session)
    for first in range(1, 24, 2):  # at some of them a rounding is in the way
        look(page, address, view="head", q=first + 12, k=first, span=24)
        until(page, "written.includes(`word${arg}`)", first)
        until(page, "written.includes(`word${arg}`)", first + 12)
        page.goto("about:blank")


def test_numbers_and_their_nouns_agree(new_page):
    session = Session()
    rec = recorded(torch.zeros(1, 1, 8), torch.zeros(1, 1, 8))
    session.add(rec, "one token", {"model": "by hand"})
    page = look(new_page(), serve(session), view="head", pin="q0", reads="to")
    assert "1 token" in page.locator(".about").inner_text().split("\n")
    until(page, "document.querySelectorAll('.strip').length === 3")
    told = page.locator(".strip figcaption").all_inner_texts()
    assert [t.split()[-2:] for t in told] == [["0", "nats"], ["0", "tokens"], ["1", "row"]]
    assert page.locator(".sentence").inner_text().endswith("the weight of 1 row.")
    page.get_by_role("button", name="held").click()
    until(page, "document.querySelector('.strip').textContent.includes('up to 0 nats')")


def test_from_head_to_head_the_map_stays_where_it_is(new_page):
    torch.manual_seed(1)
    query, key = torch.randn(2, 60, 8), torch.randn(2, 60, 8)
    query[0, :, 0], key[0, :, 0], key[0, 0, 0] = 3.0, 0.0, 6.0  # a sink in one, none in the other
    session = Session()
    session.add(recorded(query, key), "hand", {"model": "by hand"})
    page = look(new_page(), serve(session), view="head", layer=0, head=0)
    page.wait_for_selector("button.sinks")
    before = page.locator(".mapbox canvas").bounding_box()
    page.keyboard.press("ArrowRight")
    until(page, "!document.querySelector('button.sinks')")
    ready(page)
    assert page.locator(".mapbox canvas").bounding_box() == before
