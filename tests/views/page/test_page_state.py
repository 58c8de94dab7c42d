"""Every view without an error; the address as the whole state; light, dark, and room for all of it."""

import re

import pytest
from pages import grey, in_map, look, pixels, ready, serve, tiny, tiny_session, until

from multihead.views.page.session import Session

TABS = ["text", "names", "cut", "joins", "export"]
VIEWS = [
    {"view": "home"}, {"view": "home", "sort": "most"},
    *({"view": "head", "layer": 1, "head": 2, "tab": tab, "pin": "q7"} for tab in TABS),
    {"view": "compare"}, {"view": "compare", "a": "0.1", "b": "1.2"},
]  # fmt: skip
OUTSIDE = """() => [...document.querySelectorAll("header *, .tools *, .legend *, .tabs *, .title *, .pair figcaption, .about *")]
  .filter((e) => { const b = e.getBoundingClientRect(); return b.width > 0 && (b.right > innerWidth + 0.5 || b.left < -0.5); })
  .map((e) => e.outerHTML.slice(0, 80))"""
OVERLAP = """() => { const every = [...document.querySelectorAll("header > *, .tools > *, .legend > *, .title > *, .tabs > *")]
    .filter((e) => e.getBoundingClientRect().width > 0), found = [];
  for (const a of every) for (const b of every) {
    if (a === b || a.contains(b) || b.contains(a)) continue;
    const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
    if (Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 1)
      found.push([a.outerHTML.slice(0, 60), b.outerHTML.slice(0, 60)]);
  } return found; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_has_room_and_no_error(new_page, scheme):
    page = new_page(color_scheme=scheme)
    for state in VIEWS:
        look(page, tiny()[1], **state)
        page.wait_for_selector(".panel, .grid, .scatter")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), state
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), state
        assert page.evaluate(OUTSIDE) == [], state
        assert page.evaluate(OVERLAP) == [], state
        assert page.locator("header .about b").is_visible()
    ready(page)  # the last one compares
    bottoms = page.locator(".mapbox canvas").evaluate_all(
        "all => all.map((c) => c.getBoundingClientRect().bottom)"
    )
    assert max(bottoms) <= 720  # three maps at once


def test_a_long_name_of_a_model_hides_nothing_else(new_page):
    session = tiny_session()
    session.of("0").about["model"] = "An-Organisation/A-Very-Long-Name-" * 4
    page = look(new_page(), serve(session))
    assert page.evaluate(OUTSIDE) == []
    about = page.locator("header .about span")
    assert page.evaluate(OVERLAP) == []
    assert about.all_inner_texts() == ["60 tokens", "no BOS"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_turn_and_the_map_with_them(new_page, scheme):
    page = look(new_page(color_scheme=scheme), tiny()[1], view="head")

    def bright() -> list[bool]:
        paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        masked = pixels(page, [(2, 55)])[0]  # where nobody may look
        return [
            sum(map(int, re.findall(r"\d+", paper)[:3])) > 3 * 128,
            grey(masked) > 128,
        ]

    assert bright() == [scheme == "light"] * 2
    page.get_by_role("button", name="light or dark").click()
    until(
        page,
        "new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(() => go(true))))",
    )
    assert bright() == [scheme == "dark"] * 2
    page.reload()
    ready(page)
    assert bright() == [scheme == "dark"] * 2
    page.get_by_role("link", name="Home").click()
    assert f"theme={'dark' if scheme == 'light' else 'light'}" in page.url


STATES = [
    {"view": "home", "stat": "distance", "sort": "most", "filter": "induction"},
    {"view": "head", "layer": "1", "head": "1", "q": "12", "k": "4", "span": "20", "scale": "log", "pool": "mean",
     "sinks": "show", "pin": "q20", "reads": "to", "by": "norm", "lock": "0.5"},
    {"view": "head", "layer": "1", "head": "2", "tab": "names"},
    {"view": "compare", "a": "0.1", "b": "1.2", "x": "peak", "y": "hidden", "q": "5", "k": "2", "span": "30"},
]  # fmt: skip


@pytest.mark.parametrize("state", STATES, ids=lambda s: s.get("tab", s["view"]))
def test_an_address_is_a_view(new_page, state):
    def shown(page):
        page.wait_for_selector(".panel, .grid, .scatter")
        if state["view"] != "home":
            ready(page)
        choices = page.locator("select").evaluate_all("all => all.map((s) => s.value)")
        maps = page.locator(".mapbox canvas").count()
        views = [in_map(page, "view", nth) for nth in range(maps)]
        pressed = page.locator("[aria-pressed], [aria-checked], [aria-selected]").evaluate_all(
            "all => all.map((e) => e.innerText + e.getAttribute('aria-pressed') + e.getAttribute('aria-checked') + e.getAttribute('aria-selected'))"
        )
        dim = page.locator(".cell, .cell.dim").count()
        return choices, views, pressed, dim

    page = new_page()
    first = shown(look(page, tiny()[1], **state))
    for value in state.values():
        assert value in page.url
    page.reload()
    again = shown(page)
    assert again[0] == first[0]
    assert again[2:] == first[2:]
    for before, after in zip(first[1], again[1], strict=True):
        assert after == pytest.approx(before, abs=0.02)
    if "span" in state:
        assert first[1][0]["span"] == pytest.approx(float(state["span"]), abs=0.02)


def test_what_one_does_is_written_into_the_address(new_page):
    page = look(new_page(), tiny()[1], view="head", layer=1, head=0)
    page.keyboard.press("+")
    page.keyboard.press("+")
    span = in_map(page, "view.span")
    until(page, "location.hash.includes(`span=${Number(arg.toFixed(2))}`)", span)
    page.get_by_label("scale").select_option("log")
    page.get_by_role("tab", name="Joins").click()
    assert "scale=log" in page.url
    assert "tab=joins" in page.url
    assert "token=" in page.url


def test_back_and_forward(new_page):
    page = look(new_page(), tiny()[1])
    page.wait_for_selector(".cell")
    page.locator(".cell").nth(1).click()
    ready(page)
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelector('h1').textContent === '1.1'")
    page.get_by_role("link", name="Compare").click()
    page.wait_for_selector(".scatter")
    page.go_back()
    until(page, "document.querySelector('h1')?.textContent === '1.1'")
    page.go_back()
    until(page, "document.querySelector('h1')?.textContent === '0.1'")
    page.go_back()
    page.wait_for_selector(".grid")
    page.go_forward()
    until(page, "document.querySelector('h1')?.textContent === '0.1'")


@pytest.mark.parametrize(
    "hash", ["view=nonsense", "view=head&layer=99&head=77&span=-4&q=NaN&pin=q999999", "a=x&b=9.9&view=compare&x=nothing",
             "view=head&scale=odd&pool=odd&by=odd&sinks=odd&lock=odd&tab=odd&reads=odd"],
)  # fmt: skip
def test_an_address_that_makes_no_sense_shows_what_there_is(new_page, hash):
    page = new_page()
    page.goto(f"{tiny()[1]}#{hash}")
    page.wait_for_selector(".panel, .grid, .scatter")
    if "view=head" in hash:
        ready(page)
    assert page.locator("[role=alert]").count() == 0


def test_a_recording_that_is_gone_leaves_a_way_back(new_page):
    page = new_page()
    page.goto(f"{tiny()[1]}#rec=7")
    page.get_by_role("button", name="Go to the first recording").click()
    page.wait_for_selector(".grid")
    page.troubles[:] = [t for t in page.troubles if "rec=7" not in t and "400" not in t]


def test_a_recording_without_maps_says_so(new_page):
    import torch
    from pages import EVERY, Attends

    import multihead as mh

    module = Attends()
    with torch.no_grad(), mh.record(module, stats=EVERY, keep_qk=False) as rec:
        module(*torch.randn(3, 1, 2, 20, 8))
    session = Session()
    session.add(rec, "statistics", {"model": "by hand"})
    page = new_page()
    page.goto(f"{serve(session)}#view=head")
    page.wait_for_selector("text=there are no maps")
    page.goto(f"{page.url.partition('#')[0]}#view=compare&a=0.0&b=0.1")
    page.wait_for_selector("text=no maps to compare")


def test_a_tile_that_fails_is_asked_for_again_but_not_at_once(new_page):
    page, asked = new_page(), []

    def broken(route):
        asked.append(route.request.url)
        route.fulfill(status=500, body='{"error": "out of order"}')

    page.route("**/tile/**", broken)
    page.goto(f"{tiny()[1]}#view=head")
    page.wait_for_selector(".legend .error")
    assert page.locator(".legend .error").inner_text() == "out of order"
    page.wait_for_timeout(100)
    assert len(asked) == 1
    page.unroute("**/tile/**")
    until(page, "!document.querySelector('.legend .error')")
    ready(page)
    page.troubles.clear()
