"""The signed difference of two heads or recordings: what is largest in it, and whose words it tells."""

import pytest
import torch
from pages import in_map, look, point, recorded, redrawn, serve, until

from multihead.views.page.session import Session


def test_enter_goes_to_where_the_two_differ_most_whichever_has_more(new_page):
    query, key = torch.zeros(2, 60, 8), torch.zeros(2, 60, 8)
    query[1, 40, 0], key[1, 7, 0] = 20.0, 1.0  # 1 reads one key there, and 0 all of them alike
    session = Session()
    session.add(recorded(query, key), "hand", {"model": "by hand"})
    page = look(new_page(), serve(session), view="compare", a="0.0", b="0.1")
    redrawn(page, "m.shown.minus", nth=2)
    page.locator(".mapbox canvas").nth(2).focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.pointed')[2].textContent.includes(' = −')")
    cross = in_map(page, "cross", nth=2)
    assert (cross["query"], cross["key"]) == (40, 7)


def test_of_two_texts_each_word_is_told_and_that_they_differ(new_page):
    torch.manual_seed(3)
    query, key = torch.randn(1, 30, 8), torch.randn(1, 30, 8)
    session = Session()
    for name in ("one", "two", "one"):
        rec = recorded(query, key + (name == "two"), [f"{name}{i}" for i in range(30)])
        session.add(rec, name, {"model": "by hand"})
    page = look(new_page(), serve(session), view="compare", a="0.0", b="0.0", rb="1")
    redrawn(page, "m.shown.minus?.rec === '1'", nth=2)
    page.get_by_text("The two texts differ").wait_for()
    point(page, 20, 4)
    until(page, "document.querySelectorAll('.pointed')[2].textContent.includes('(20)')")
    told = page.locator(".pointed").nth(2)
    assert told.inner_text().startswith(
        "a ‘one20’ (20) from ‘one4’ (4), b ‘two20’ (20) from ‘two4’ (4): "
    )
    assert told.evaluate("e => e.scrollHeight <= e.clientHeight")
    page.get_by_label("b of").select_option("2")
    redrawn(page, "m.shown.minus?.rec === '2'", nth=2)
    until(page, "!document.querySelector('.difference').textContent.includes('texts differ')")
    point(page, 21, 5)
    until(
        page, "document.querySelectorAll('.pointed')[2].textContent.startsWith('‘one21’ (21) from')"
    )


def test_a_pooled_cell_tells_the_number_that_colours_it(new_page):
    torch.manual_seed(3)
    rec = recorded(torch.randn(2, 600, 8), torch.randn(2, 600, 8))
    session = Session()
    session.add(rec, "hand", {"model": "by hand"})
    one, two = (rec.weights(0, h, slice(400, 404), slice(100, 104)) for h in (0, 1))
    means = {"mean": (one.mean(), (one - two).mean()), "sum": (one.sum(), (one - two).sum())}
    page = new_page()
    for pool, (mean, apart) in means.items():
        look(page, serve(session), view="compare", a="0.0", b="0.1", pool=pool)
        redrawn(page, "m.factor === 4 && m.shown.map.pool === arg", pool, nth=2)
        point(page, 401, 101)
        what = pool.capitalize()
        until(page, "document.querySelectorAll('.pointed')[0].textContent.includes(arg)", what)
        until(page, "document.querySelectorAll('.pointed')[2].textContent.includes(arg)", what)
        alone, _, both = page.locator(".pointed").all_inner_texts()
        assert alone.startswith(f"{what} of rows 400–403 over keys 100–103: ")
        assert _first(alone) == pytest.approx(float(mean), abs=6e-4)
        assert ". ‘word40" in alone  # and the largest link, by name
        assert both.startswith(f"{what}, a − b: ")
        assert _first(both) == pytest.approx(float(apart), abs=6e-4)
        assert "Rows 400–403, keys 100–103: " in both
    page.get_by_label("scale").select_option("uniform")
    point(page, 405, 101)
    until(page, "document.querySelectorAll('.pointed')[0].textContent.includes(' × uniform. ')")
    page.get_by_label("scale").select_option("linear")
    page.get_by_label("pooled by").select_option("largest")
    point(page, 401, 101)
    until(page, "document.querySelectorAll('.pointed')[0].textContent.startsWith('‘word40')")


def _first(said: str) -> float:
    return float(said.partition(": ")[2].split(". ")[0].replace("−", "-"))
