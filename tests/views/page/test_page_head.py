"""One head: zoom, move, point and land on its map, by wheel, drag, click and key."""

import re

import pytest
import torch
from pages import in_map, look, point, ready, recorded, said, serve, tiny, until

from multihead.views.page.session import Session

TOKENS = 1000


@pytest.fixture(scope="module")
def wide():
    """A head of 1,000 tokens, sharp here and there, and its address."""
    torch.manual_seed(3)
    rec = recorded(4 * torch.randn(2, TOKENS, 8), torch.randn(2, TOKENS, 8))
    session = Session()
    session.add(rec, "hand", {"model": "by hand"})
    return rec, serve(session)


@pytest.fixture
def head(new_page, wide):
    return look(new_page(), wide[1], view="head", layer=0, head=1, sinks="show")


def sentence(page, holds: str) -> str:
    until(page, "document.querySelector('.pointed').textContent.includes(arg)", holds)
    return page.locator(".pointed").inner_text()


def test_the_wheel_zooms_from_the_whole_map_to_one_token(head, wide):
    rec, _ = wide
    assert in_map(head, "view.span") == TOKENS
    assert in_map(head, "factor") > 1
    for _ in range(40):  # towards (700, 300), which stays under the pointer
        point(head, 700, 300)
        head.mouse.wheel(0, -400)
        if in_map(head, "view.span") < 6.01:
            break
    ready(head)
    assert in_map(head, "factor") == 1
    assert in_map(head, "view.span") == pytest.approx(6, abs=0.01)
    point(head, 700, 300)
    weight = float(rec.weights(0, 1, slice(700, 701), slice(300, 301)))
    assert sentence(head, "(700)") == f"‘word700’ (700) reads {said(weight)} from ‘word300’ (300)"
    shown = head.evaluate(
        "document.querySelector('.mapbox canvas').headMap.valueAt({query: 700, key: 300})"
    )
    assert shown == pytest.approx(weight, rel=1e-3, abs=1e-7)  # float16
    for _ in range(60):
        head.mouse.wheel(0, 400)
    ready(head)
    assert in_map(head, "view.span") == TOKENS


def test_every_factor_shows_the_largest_of_its_cells(head, wide):
    rec, _ = wide
    whole = rec.weights(0, 1)
    seen = set()
    for span in (1000, 400, 100):
        view = {"q": (TOKENS - span) / 2, "k": 0, "span": span}
        look(head, wide[1], view="head", head=1, sinks="show", **view)
        until(
            head,
            f"Math.round(document.querySelector('.mapbox canvas').headMap.view.span) === {span}",
        )
        ready(head)
        f = in_map(head, "factor")
        seen.add(f)
        at = (int(500 // f), int(30 // f))
        shown = head.evaluate(
            "([q, k]) => document.querySelector('.mapbox canvas').headMap.valueAt({query: q, key: k})",
            [at[0] * f, at[1] * f],
        )
        cell = whole[at[0] * f : (at[0] + 1) * f, at[1] * f : (at[1] + 1) * f]
        assert shown == pytest.approx(float(cell.max()), rel=1e-3, abs=1e-7)
    assert len(seen) > 1
    assert 1 in seen


def test_dragging_moves_the_map(head):
    head.locator(".mapbox canvas").focus()
    for _ in range(4):
        head.keyboard.press("+")
    before, scale = in_map(head, "view"), in_map(head, "scale")
    point(head, before["q"] + 40, before["k"] + 40)
    head.mouse.down()
    x, y = head.evaluate(
        "() => { const b = document.querySelector('.mapbox canvas').getBoundingClientRect(); return [b.left + 200, b.top + 200]; }"
    )
    head.mouse.move(x, y)
    head.mouse.move(x - 30, y - 50, steps=4)
    start = in_map(head, "view")
    head.mouse.move(x - 50, y - 80, steps=4)
    head.mouse.up()
    after = in_map(head, "view")
    assert after["k"] - start["k"] == pytest.approx(20 / scale, rel=0.01)
    assert after["q"] - start["q"] == pytest.approx(30 / scale, rel=0.01)
    assert after["span"] == pytest.approx(before["span"])
    assert "pin=" not in head.url  # a drag is no click


@pytest.mark.parametrize("focused", [True, False])
def test_keys_move_and_zoom(head, focused):
    if focused:
        head.locator(".mapbox canvas").focus()
    head.keyboard.press("+")
    assert in_map(head, "view.span") == pytest.approx(TOKENS / 1.5)
    middle = in_map(head, "view")
    head.keyboard.press("w")
    head.keyboard.press("a")
    moved = in_map(head, "view")
    assert moved["q"] == pytest.approx(middle["q"] - 0.15 * middle["span"], abs=0.1)
    assert moved["k"] == pytest.approx(middle["k"] - 0.15 * middle["span"], abs=0.1)
    head.keyboard.press("s")
    head.keyboard.press("d")
    assert in_map(head, "view") == pytest.approx(middle, abs=0.1)
    for key in "wwwwwwaaaaaa":  # it stops where the map ends
        head.keyboard.press(key)
    assert in_map(head, "view.q") == pytest.approx(0, abs=1e-6)
    assert in_map(head, "view.k") == pytest.approx(0, abs=1e-6)
    head.keyboard.press("-")
    assert in_map(head, "view.span") == TOKENS
    head.keyboard.press("+")
    head.keyboard.press("0")
    assert in_map(head, "view.span") == TOKENS


def test_a_view_that_is_written_late_does_not_call_the_map_back(head):
    head.keyboard.press("0")
    until(head, "!location.hash.includes('span=')")
    head.evaluate(
        """() => { const m = document.querySelector(".mapbox canvas").headMap;
        const move = m.setView.bind(m), write = history.replaceState.bind(history);
        window.spans = [];
        m.setView = (view, glide) => { window.spans.push(view.span); move(view, glide); };
        history.replaceState = (...args) => {  // the next key comes while the first is being written
          history.replaceState = write;
          write(...args);
          document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "0", bubbles: true })); }; }"""
    )
    head.keyboard.press("+")
    until(head, "location.hash.includes('span=')")
    until(head, "!location.hash.includes('span=')")
    head.wait_for_timeout(100)  # a view is drawn after it is written
    assert head.evaluate("window.spans") == [pytest.approx(TOKENS / 1.5), 0]
    assert in_map(head, "view.span") == TOKENS


def test_going_back_takes_no_view_along(new_page):
    page = look(new_page(), tiny()[1], view="head", layer=0, head=0, q=20, k=5, span=20)
    page.get_by_role("button", name="next head").click()
    ready(page)
    page.evaluate(
        """() => new Promise((done) => { addEventListener("popstate", () => setTimeout(done, 200));
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "0", bubbles: true }));
        history.back(); })"""
    )
    ready(page)
    assert page.locator("h1").inner_text() == "0.0"
    assert in_map(page, "view.span") == pytest.approx(20, abs=0.05)


@pytest.mark.parametrize("focused", [True, False])
def test_enter_goes_to_the_strongest_link(head, wide, focused):
    rec, _ = wide
    if focused:
        head.locator(".mapbox canvas").focus()
    head.keyboard.press("Enter")
    until(head, "document.querySelector('.mapbox canvas').headMap.view.span < 30")
    whole = rec.weights(0, 1).nan_to_num(0)
    at = in_map(head, "cross")
    assert whole[at["query"], at["key"]] > 0.999 * whole.max()


def test_arrows_go_from_head_to_head_with_the_view_kept(new_page):
    page = look(new_page(), tiny()[1], view="head", layer=0, head=0, q=20, k=5, span=20)
    view = in_map(page, "view")
    assert [round(view[c]) for c in ("q", "k", "span")] == [20, 5, 20]
    for key, shown in (
        ("ArrowRight", "0.1"),
        ("ArrowDown", "1.1"),
        ("ArrowLeft", "1.0"),
        ("ArrowUp", "0.0"),
    ):
        page.keyboard.press(key)
        until(page, f"document.querySelector('h1').textContent === '{shown}'")
        ready(page)
        assert in_map(page, "view") == pytest.approx(view, abs=0.05)
    page.keyboard.press("ArrowUp")  # there is none above
    assert page.locator("h1").inner_text() == "0.0"
    page.get_by_role("button", name="next head").click()
    assert page.locator("h1").inner_text() == "0.1"


def test_the_sentence_is_of_the_head_that_is_seen(new_page):
    session, address = tiny()
    page = look(new_page(), address, view="head", layer=0, head=0, sinks="show")
    point(page, 30, 12)
    first = sentence(page, "reads")
    page.keyboard.press("ArrowRight")
    weight = float(session.of("0").rec.weights(0, 1, slice(30, 31), slice(12, 13)))
    assert said(weight) not in first
    assert said(weight) in sentence(page, said(weight))


def test_pointing_beside_the_map_says_nothing(head):
    head.keyboard.press("0")
    point(head, 500, 100)
    sentence(head, "reads")
    right = head.evaluate(
        """() => { const m = document.querySelector('.mapbox canvas').headMap, b = m.canvas.getBoundingClientRect();
        return [b.left + m.margin.left + m.side + 12, b.top + m.margin.top + m.side / 2, m.width - m.margin.left - m.side]; }"""
    )
    assert right[2] > 15  # there is room beside it
    head.keyboard.press("+")
    head.mouse.move(right[0], right[1])
    until(head, "document.querySelector('.pointed').textContent === ''")
    assert in_map(head, "cross") is None


def test_who_may_not_look_is_said(head):
    head.locator(".mapbox canvas").focus()
    point(head, 100, 900)
    assert sentence(head, "look") == "Nobody may look here."


def test_the_mini_map_shows_where_one_is_and_goes_there(head):
    head.keyboard.press("+")
    head.keyboard.press("+")
    span = in_map(head, "view.span")
    until(head, "document.querySelector('.mapbox canvas').headMap.mini")
    x, y = head.evaluate(
        """() => { const m = document.querySelector('.mapbox canvas').headMap, b = m.canvas.getBoundingClientRect();
        return [b.left + m.mini.x + 0.5 * m.mini.size, b.top + m.mini.y + 0.75 * m.mini.size]; }"""
    )
    head.mouse.click(x, y)
    view = in_map(head, "view")
    assert view["span"] == pytest.approx(span)
    assert view["k"] + span / 2 == pytest.approx(0.5 * TOKENS, abs=15)
    assert view["q"] + span / 2 == pytest.approx(0.75 * TOKENS, abs=15)
    assert "pin=" not in head.url


def test_the_axes_say_who_asks_and_words_appear_when_close(new_page, wide):
    """Canvas text cannot be read back, so what is written is listened to."""
    page = new_page()
    page.add_init_script(
        """window.written = new Set();
        const before = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (t, ...at) { written.add(t); return before.call(this, t, ...at); };"""
    )
    look(page, wide[1], view="head")
    written = page.evaluate("[...written]")
    assert {"is asked (key) →", "← asks (query)"} <= set(written)
    assert not any("word" in text for text in written)
    look(page, wide[1], view="head", q=500, k=100, span=20)
    until(page, "written.has('word505') && written.has('word105')")


def test_screen_readers_are_told(head):
    assert head.locator(".pointed").get_attribute("aria-live") == "polite"
    label = head.get_by_role("application").get_attribute("aria-label")
    assert re.match(r"map of head 0\.1\. W A S D move", label)
    for name in ("next layer", "layer before", "next head", "head before", "keys", "light or dark"):
        assert head.get_by_role("button", name=name, exact=True).count() == 1
    unnamed = head.evaluate(
        "[...document.querySelectorAll('button, select, input')].filter((e) => !(e.innerText.trim() || e.getAttribute('aria-label') || e.closest('label'))).length"
    )
    assert unnamed == 0
