"""What is held stays in sight, and the sentence is of the link that one landed on."""

import pytest
import torch
from pages import POINT, in_map, lonely_link, look, point, ready, recorded, serve, until

from multihead.views.page.session import Session

TOKENS, ASKS, ASKED = 500, 400, 200  # in the corner of its cell

IN_SIGHT = """() => { const word = document.querySelector(".reader .pinned");
  if (!word) return false;
  const a = word.getBoundingClientRect(), b = word.closest(".reader").getBoundingClientRect();
  return a.top >= b.top - 1 && a.bottom <= b.bottom + 1; }"""


def cell(f: int) -> list[float]:
    """A place in the cell of the link, and not on it, on the first map."""
    return [ASKS + 0.75 * f - 0.5, ASKED + 0.75 * f - 0.5, 0]


@pytest.fixture(scope="module")
def address():
    """Two heads that see one link more than all others."""
    query, key = torch.zeros(2, TOKENS, 8), torch.zeros(2, TOKENS, 8)
    query[0, ASKS, 0], key[0, ASKED, 0] = 30.0, 1.0
    query[1, ASKS, 0], key[1, ASKED - 1, 0] = 30.0, 1.0
    session = Session()
    session.add(recorded(query, key), "by hand", {"model": "by hand"})
    return serve(session)


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_the_sentence_is_of_the_link_that_a_click_landed_on(new_page, address, motion):
    page = look(new_page(reduced_motion=motion), address, view="head")
    f = in_map(page, "factor")
    assert f > 1
    page.mouse.click(*page.evaluate(POINT, cell(f)))
    until(page, "document.querySelector('.mapbox canvas').headMap.factor === 1")
    ready(page)
    told = f"‘word{ASKS}’ ({ASKS}) reads"
    until(
        page,
        "document.querySelector('.pointed').textContent.endsWith(arg)",
        f"‘word{ASKED}’ ({ASKED})",
    )
    assert page.locator(".pointed").inner_text().startswith(told)
    page.wait_for_timeout(200)  # nothing comes late
    assert page.locator(".pointed").inner_text().startswith(told)
    cross = in_map(page, "cross")
    assert (cross["query"], cross["key"]) == (ASKS, ASKED)


def test_in_a_comparison_too(new_page, address):
    page = look(new_page(), address, view="compare", a="0.0", b="0.1")
    ready(page)
    f = in_map(page, "factor")
    page.mouse.click(*page.evaluate(POINT, cell(f)))
    until(page, "document.querySelector('.mapbox canvas').headMap.factor === 1")
    until(
        page,
        "[...document.querySelectorAll('.pointed')].every((p) => p.textContent.includes(arg))",
        f"({ASKED})",
    )
    page.wait_for_timeout(150)
    for nth, told in enumerate(page.locator(".pointed").all_inner_texts()):
        assert f"({ASKS})" in told
        assert f"({ASKED})" in told
        cross = in_map(page, "cross", nth)
        assert (cross["query"], cross["key"]) == (ASKS, ASKED)


def test_a_held_word_is_in_sight(new_page, address):
    page = look(new_page(), address, view="head", q=ASKS - 10, k=ASKED - 10, span=20)
    point(page, ASKS, ASKED)
    until(page, "document.querySelector('.reader .pinned')?.dataset.i === arg", str(ASKS))
    assert not page.evaluate(IN_SIGHT)  # to point is not to hold
    page.mouse.click(*page.evaluate(POINT, [ASKS, ASKED, 0]))
    page.wait_for_function(IN_SIGHT)
    assert f"pin=q{ASKS}" in page.url
    page.reload()
    ready(page)
    page.wait_for_selector(".strip")
    page.wait_for_timeout(200)
    assert page.evaluate(IN_SIGHT)


def test_a_click_lands_on_the_link_that_the_pointer_names(new_page):
    """Cells of little more than a pixel, and a place between two: a click has whole pixels alone."""
    session = Session()
    session.add(lonely_link(8192, 6000, 1234), "by hand", {"model": "by hand"})
    size = {"width": 1920, "height": 1080}
    page = look(new_page(viewport=size, device_scale_factor=2), serve(session), view="head")
    f = in_map(page, "factor")
    wide = f * in_map(page, "scale")
    assert 1 <= wide < 2
    left, top = page.evaluate(POINT, [6000 // f * f - 0.5, 1234 // f * f - 0.5, 0])
    x, y = left + 0.1 * wide, top + 0.1 * wide
    assert int(x) < left or int(y) < top  # in another cell
    page.mouse.move(x, y)
    told = "‘word6000’ (6000) reads 0.900 from ‘word1234’ (1234)"
    until(page, "document.querySelector('.pointed').textContent.startsWith(arg)", told)
    page.mouse.down()
    page.mouse.up()
    until(page, "location.hash.includes('pin=q')")
    assert "pin=q6000" in page.url
    until(page, "document.querySelector('.pointed').textContent === arg", told)


@pytest.mark.parametrize("view", [(ASKS - 30, ASKED - 30, 60), (5, 0, TOKENS - 5)])
def test_enter_says_the_link_that_it_goes_to(new_page, address, view):
    page = look(
        new_page(), address, view="head", **dict(zip(("q", "k", "span"), view, strict=True))
    )
    assert (in_map(page, "factor") == 1) == (view[2] == 60)  # single links, or pooled
    page.keyboard.press("Enter")
    until(page, "location.hash.includes(arg)", f"pin=q{ASKS}")
    told = f"‘word{ASKS}’ ({ASKS}) reads"
    until(page, "document.querySelector('.pointed').textContent.startsWith(arg)", told)
    assert page.locator(".pointed").inner_text().endswith(f"from ‘word{ASKED}’ ({ASKED})")
    cross = in_map(page, "cross")
    assert (cross["query"], cross["key"]) == (ASKS, ASKED)
