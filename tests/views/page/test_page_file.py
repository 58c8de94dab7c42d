"""A file that carries some heads pooled claims no more of them than it has."""

import pytest
import torch
from pages import POINT, in_map, point, ready, recorded, said, tiny_session, until

from multihead.views.page.session import Session

TOKENS, FACTOR = 500, 8


@pytest.fixture(scope="module")
def session():
    """Two heads that look at the token before them, of 500 tokens; one of them will be exact."""
    torch.manual_seed(4)
    query, key = torch.randn(2, TOKENS, 8), torch.randn(2, TOKENS, 8)
    places = torch.randn(TOKENS, 24)
    query = torch.cat([query, 3 * places.roll(1, 0).expand(2, -1, -1)], -1)
    key = torch.cat([key, places.expand(2, -1, -1)], -1)
    made = Session()
    made.add(recorded(query, key), "by hand", {"model": "by hand"})
    return made


def largest(session, head: int, query: int, key: int) -> float:
    rows, keys = (slice(at // FACTOR * FACTOR, (at // FACTOR + 1) * FACTOR) for at in (query, key))
    return float(session.of("0").rec.weights(0, head, rows, keys).max())


def test_two_heads_are_compared_at_the_factor_that_both_have(from_disk, session):
    page = from_disk(session, [(0, 0)], view="compare", a="0.0", b="0.1", sinks="show")
    ready(page)
    assert [in_map(page, "factor", nth) for nth in range(3)] == [FACTOR] * 3
    for query, key in ((300, 299), (490, 30), (120, 119)):
        one, two = (largest(session, head, query, key) for head in range(2))
        for nth, expected in enumerate((one, two, one - two)):
            shown = page.evaluate(
                """([query, key, nth]) =>
                document.querySelectorAll(".mapbox canvas")[nth].headMap.valueAt({query, key})""",
                [query, key, nth],
            )
            assert shown == pytest.approx(expected, abs=1e-3)
    assert f"largest of {FACTOR}×{FACTOR}" in page.locator(".legend").inner_text()
    assert f"largest of {FACTOR}×{FACTOR}" in page.locator(".difference .scale").inner_text()
    assert "0.1 is pooled in this file" in page.locator(".pair").inner_text()


def test_of_a_pooled_cell_no_link_is_named_and_none_is_held(from_disk, session):
    page = from_disk(session, [(0, 0)], view="head", head=1, sinks="show")
    point(page, 300, 298)
    until(page, "document.querySelector('.pointed').textContent.includes('argest')")
    value = said(largest(session, 1, 300, 298))
    told = page.locator(".pointed").inner_text()
    assert told.startswith(f"The largest of rows 296–303 over keys 296–303 is {value}")
    page.mouse.click(*page.evaluate(POINT, [300, 298, 0]))
    until(page, "document.querySelector('.mapbox canvas').headMap.view.span < 200")
    assert "pin=" not in page.url
    assert page.get_by_text("held").count() == 0
    view = in_map(page, "view")
    assert view["q"] < 296
    assert view["q"] + view["span"] > 303
    page.keyboard.press("0")
    point(page, 499, 490)  # the last cell is not whole
    until(page, "document.querySelector('.pointed').textContent.includes('rows 496–499')")


@pytest.fixture(scope="module")
def sunk():
    """300 tokens; all of the second head's look at key 20 more than at others."""
    torch.manual_seed(1)
    query, key = torch.randn(2, 300, 8), torch.randn(2, 300, 8)
    query[1, :, 0], key[1, :, 0], key[1, 20, 0] = 3.0, 0.0, 9.0
    made = Session()
    made.add(recorded(query, key), "by hand", {"model": "by hand"})
    return made


@pytest.mark.parametrize("exact", [0, 1])
def test_a_sink_of_one_is_hidden_in_both_of_a_file_too(from_disk, sunk, exact):
    rec = sunk.of("0").rec
    page = from_disk(sunk, [(0, exact)], view="compare", a="0.0", b="0.1")
    ready(page)
    f = in_map(page, "factor")
    assert f == 8
    for nth, head in enumerate((0, 1)):
        cell = rec.weights(0, head, slice(200, 208), slice(16, 24)).clone()
        cell[:, 4] = 0
        shown = page.evaluate(
            """(nth) => document.querySelectorAll(".mapbox canvas")[nth].headMap
            .valueAt({ query: 203, key: 18 })""",
            nth,
        )
        if head == 0 and exact == 1:  # what is beside the key in its cell is not carried
            assert shown != shown  # NaN
            assert in_map(page, "shown.hidden", nth) == [*range(16, 24)]
        else:
            assert shown == pytest.approx(float(cell.max()), abs=1e-3)
            assert in_map(page, "shown.hidden", nth) == [20]
    chip = page.locator("button.sinks").inner_text()
    assert chip.startswith("weight on key 20 hidden in both: a ")
    point(page, 203, 18, nth=1)
    until(page, "document.querySelectorAll('.pointed')[1].textContent !== ''")
    told = page.locator(".pointed").all_inner_texts()
    most = said(float(rec.weights(0, 1, slice(200, 208), slice(20, 21)).max()))
    assert f"hidden: {most}" in told[1]
    assert "–" not in told[2].replace("200–207", "").replace("16–23", "")


def test_head_opens_on_the_first_head_that_is_exact(from_disk):
    page = from_disk(tiny_session(), [(1, 1), (0, 2)])
    page.get_by_role("link", name="Head", exact=True).click()
    ready(page)
    assert page.locator("h1").inner_text() == "1.1"
    assert "Pooled" not in page.locator(".left").inner_text()
    page.keyboard.press("ArrowUp")
    until(page, "document.querySelector('h1').textContent === '0.1'")
    assert "layer=0" in page.url
    page.reload()
    ready(page)
    assert page.locator("h1").inner_text() == "0.1"
