"""Compare: every head as a dot, two heads or recordings side by side, and their difference."""

import pytest
import torch
from pages import (
    in_map,
    look,
    pixels,
    point,
    ready,
    recorded,
    redrawn,
    said,
    serve,
    tiny,
    tiny_session,
    until,
)
from small_reports import WORDS

from multihead.views.page.session import Session


@pytest.fixture
def compared(new_page):
    page = look(new_page(), tiny()[1], view="compare", a="0.1", b="1.2")
    ready(page)
    return page


def value_at(page, query: int, key: int, nth: int):
    return page.evaluate(
        """([query, key, nth]) =>
        document.querySelectorAll('.mapbox canvas')[nth].headMap.valueAt({query, key})""",
        [query, key, nth],
    )


def centres(page) -> dict[str, tuple[float, float]]:
    return {
        dot.get_attribute("data-at"): (
            float(dot.get_attribute("cx")),
            float(dot.get_attribute("cy")),
        )
        for dot in page.locator("circle").all()
    }


def test_every_head_is_a_dot_at_its_two_numbers(new_page):
    page = look(new_page(), tiny()[1], view="compare")
    heads = tiny()[0].of("0").heads()
    places = centres(page)
    assert len(places) == 6
    for stat, axis, sign in (("distance", 0, 1), ("entropy", 1, -1)):  # up is less in y
        order = sorted(heads, key=lambda h: h[stat])
        along = [places[f"{h['layer']}.{h['head']}"][axis] * sign for h in order]
        assert along == sorted(along)
    page.get_by_label("across").select_option("peak")
    page.get_by_label("up").select_option("hidden")
    assert "x=peak" in page.url
    assert page.locator("circle").count() == 6
    assert page.locator(".whisker").count() == 0
    first = page.locator("circle").first
    assert first.get_attribute("aria-label").startswith("head 0.0: ")


def test_scores_have_whiskers_inside_of_the_frame(new_page):
    page = look(new_page(), tiny()[1], view="compare")
    page.wait_for_selector("option[value='induction, on cue']", state="attached")
    page.get_by_label("across").select_option("induction, on cue")
    page.get_by_label("up").select_option("self, at rest")
    assert page.locator(".whisker").count() == 12
    inside = page.evaluate(
        """() => { const box = document.querySelector('.scatter').getBoundingClientRect();
        return [...document.querySelectorAll('.whisker')].every((w) => { const b = w.getBoundingClientRect();
          return b.left >= box.left && b.right <= box.right && b.top >= box.top && b.bottom <= box.bottom; }); }"""
    )
    assert inside


def test_a_brush_filters_the_grid(new_page):
    page = look(new_page(), tiny()[1], view="compare")
    places = centres(page)
    box = page.locator(".scatter").bounding_box()
    scale = box["width"] / 520
    target = max(places, key=lambda at: places[at][0])
    x, y = box["x"] + places[target][0] * scale, box["y"] + places[target][1] * scale
    page.mouse.move(x - 9, y - 9)
    page.mouse.down()
    page.mouse.move(x + 5, y + 6, steps=3)
    page.mouse.move(x + 9, y + 9)
    page.mouse.up()
    page.wait_for_selector("text=1 head brushed")
    assert page.locator(".brushed button").all_inner_texts() == [target]
    assert page.locator("g.faded").count() == 5
    page.get_by_role("link", name="Home").click()
    assert page.locator(".cell.dim").count() == 5
    page.get_by_role("button", name="1 of 6 shown").click()
    assert page.locator(".cell.dim").count() == 0


def test_two_dots_are_picked_one_by_a_click_one_by_a_key(new_page):
    page = look(new_page(), tiny()[1], view="compare")
    page.locator("circle[data-at='0.1']").click()
    page.locator("circle[data-at='1.0']").focus()
    page.keyboard.press("Enter")
    ready(page)
    assert page.locator(".three figcaption").all_inner_texts()[0].startswith("a: 0.1")
    assert page.locator(".three figcaption").all_inner_texts()[1].startswith("b: 1.0")
    assert "a=0.1" in page.url
    assert "b=1.0" in page.url


def test_the_difference_is_the_difference(compared):
    rec = tiny()[0].of("0").rec
    one, two = rec.weights(0, 1), rec.weights(1, 2)
    for query, key in ((30, 3), (40, 40), (59, 0), (7, 5)):
        assert value_at(compared, query, key, 0) == pytest.approx(float(one[query, key]), abs=1e-3)
        assert value_at(compared, query, key, 1) == pytest.approx(float(two[query, key]), abs=1e-3)
        apart = float(one[query, key] - two[query, key])
        assert value_at(compared, query, key, 2) == pytest.approx(apart, abs=1e-3)
    numbers = compared.locator("table.both tbody tr").first.locator("td").all_inner_texts()
    heads = tiny()[0].of("0").heads()
    assert numbers == [said(heads[1]["entropy"]), said(heads[5]["entropy"])]


def test_zoom_and_cross_hair_are_linked(compared):
    point(compared, 40, 20, nth=0)
    compared.mouse.wheel(0, -600)
    until(
        compared,
        """[...document.querySelectorAll('.mapbox canvas')].every((c) => Math.abs(c.headMap.view.span
        - document.querySelector('.mapbox canvas').headMap.view.span) < 0.05 && c.headMap.view.span < 59)""",
    )
    ready(compared)
    point(compared, 40, 20, nth=1)
    until(
        compared,
        "[...document.querySelectorAll('.mapbox canvas')].every((c) => c.headMap.cross?.query === 40 && c.headMap.cross.key === 20)",
    )
    until(
        compared,
        "[...document.querySelectorAll('.pointed')].every((p) => p.textContent.includes('(20)'))",
    )
    rec = tiny()[0].of("0").rec
    one, two = float(rec.weights(0, 1)[40, 20]), float(rec.weights(1, 2)[40, 20])
    told = compared.locator(".pointed").all_inner_texts()
    assert f"reads {said(one)} from" in told[0]
    assert f"reads {said(two)} from" in told[1]
    apart = said(one - two).replace("-", "−", 1) if one < two else said(one - two)
    assert f"{said(one)} − {said(two)} = {apart}" in told[2]
    compared.mouse.move(5, 5)
    until(
        compared,
        "[...document.querySelectorAll('.mapbox canvas')].every((c) => c.headMap.cross === null)",
    )


PRESS = """(presses) => { const every = document.querySelectorAll('.mapbox canvas');
  for (const [nth, key] of presses) every[nth].dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true})); }"""
TOGETHER = """[...document.querySelectorAll('.mapbox canvas')].every((c) => {
  const {q, k, span} = c.headMap.view; return q === 0 && k === 0 && span === 60; })"""


def test_a_map_that_another_took_back_follows_it(compared):
    compared.evaluate(PRESS, [[1, "+"], [0, "0"]])  # what is written is as it was
    until(compared, TOGETHER)


def test_the_same_key_while_the_first_is_being_written(new_page):
    page = look(new_page(), tiny()[1], view="compare", a="0.1", b="1.2", q=20, k=5, span=20)
    ready(page)
    page.evaluate(
        f"""() => {{ const press = {PRESS}, write = history.replaceState.bind(history);
        history.replaceState = (...args) => {{
          history.replaceState = write; write(...args); press([[0, "0"]]); }};
        press([[0, "0"]]); }}"""
    )
    until(page, TOGETHER)


def test_legends_say_range_unit_and_pooling_and_the_range_is_one(compared):
    tops = [in_map(compared, "shown.most(1)", nth) for nth in range(3)]
    rec = tiny()[0].of("0").rec
    most = max(float(rec.weights(a, h).nan_to_num(0).max()) for a, h in ((0, 1), (1, 2)))
    assert tops == pytest.approx([most] * 3, rel=1e-3)  # equal values, equal pixels
    legend = compared.locator(".legend").inner_text()
    assert "weight, linear, every link" in legend
    apart = compared.locator("figure.difference .scale").inner_text()
    assert f"−{said(tops[2])}" in apart
    assert f"+{said(tops[2])}" in apart
    assert "weight, every link" in apart
    assert compared.get_by_label("show").locator("option").all_inner_texts() == [
        "weight", "weight × ‖v W_O‖",
    ]  # fmt: skip
    compared.get_by_label("show").select_option("norm")
    redrawn(compared, "m.shown.map.by === 'norm'")
    assert "weight × ‖v W_O‖, linear" in compared.locator(".legend").inner_text()
    norm = rec.weights(0, 1, by="norm")
    assert value_at(compared, 30, 3, 0) == pytest.approx(float(norm[30, 3]), rel=1e-3)


def test_sinks_of_either_are_hidden_and_said(new_page):
    torch.manual_seed(1)
    query, key = torch.randn(2, 60, 8), torch.randn(2, 60, 8)
    query[0, :, 0], key[0, :, 0], key[0, 0, 0] = 3.0, 0.0, 6.0
    rec = recorded(query, key, [f"a_rather_long_word_{i}" for i in range(60)])
    session = Session()
    session.add(rec, "hand", {"model": "by hand"})
    page = look(new_page(), serve(session), view="compare", a="0.1", b="0.0")
    ready(page)
    whole = rec.weights(0, 0)
    share = float(whole[:, 0].sum() / whole.sum())
    chip = page.locator("button.sinks")
    other = rec.weights(0, 1)
    beside = float(other[:, 0].sum() / other.sum())  # no sink there, and hidden all the same
    until(page, "!document.querySelector('button.sinks').textContent.includes('not known')")
    assert beside > 0.01
    assert chip.inner_text() == (
        f"weight on key 0 hidden in both: a {100 * beside:.0f} %, b {100 * share:.0f} % show"
    )
    for nth in range(3):
        assert in_map(page, "shown.hidden", nth) == [0]  # hatched, not as if nobody might look
        assert value_at(page, 30, 0, nth) != value_at(page, 30, 0, nth)  # NaN
    point(page, 50, 0)
    for nth in range(3):  # each map asks for its own weight
        until(page, f"document.querySelectorAll('.pointed')[{nth}].textContent.includes('(0)')")
    told = page.locator(".pointed").all_inner_texts()
    one, two = said(float(other[50, 0])), said(float(whole[50, 0]))
    assert f"Hidden: ‘a_rather_long_word_…’ (50) reads {one} from" in told[0]
    assert f"Hidden: ‘a_rather_long_word_…’ (50) reads {two} from" in told[1]
    assert told[2].startswith("Hidden: ")
    assert told[2].endswith(f": a {one}, b {two}")
    point(page, 50, 20)
    until(page, "document.querySelectorAll('.pointed')[2].textContent.includes('(20)')")
    for part in (".pair", ".dots"):  # a long sentence pushes nothing out of sight
        assert page.locator(part).evaluate("e => e.scrollWidth <= e.clientWidth")
    chip.click()
    redrawn(page, "m.shown.map.sinks === 'show'", nth=2)
    assert "weight on key 0 shown" in chip.inner_text()
    apart = float(rec.weights(0, 1)[30, 0] - whole[30, 0])
    assert value_at(page, 30, 0, 2) == pytest.approx(apart, abs=1e-3)
    assert pixels(page, [(30, 3)])[0][3] == 255


def test_two_recordings(new_page):
    session = tiny_session()
    other = session.record(" ".join(reversed(WORDS * 3)), 54, "another", lambda *_: None)
    page = look(new_page(), serve(session), view="compare", a="0.1", b="0.1")
    ready(page)
    page.get_by_label("b of").select_option(other)
    page.wait_for_selector("text=different sizes (60 × 60, 54 × 54)")
    redrawn(page, "m.shown.map.rec === arg", other, nth=1)
    weight = float(session.of(other).rec.weights(0, 1)[30, 4])
    assert value_at(page, 30, 4, 1) == pytest.approx(weight, abs=1e-3)
    same = session.record(" ".join(reversed((WORDS * 4)[:60])), 60, "a third", lambda *_: None)
    page.reload()
    page.get_by_label("b of").select_option(same)
    until(page, "document.querySelectorAll('.mapbox canvas').length === 3")
    redrawn(page, "m.shown.minus.rec === arg", same, nth=2)
    first, second = (session.of(n).rec.weights(0, 1)[30, 4] for n in ("0", same))
    assert value_at(page, 30, 4, 2) == pytest.approx(float(first - second), abs=1e-3)


def test_heads_of_the_other_recording_are_offered(new_page):
    torch.manual_seed(4)
    many, one = (recorded(torch.randn(h, 30, 8), torch.randn(h, 30, 8)) for h in (4, 1))
    session = Session()
    session.add(many, "many", {"model": "by hand"})
    session.add(one, "one", {"model": "by hand"})
    page = look(new_page(), serve(session), view="compare", rec="0", a="0.0", b="0.3", rb="1")
    page.get_by_text("The other recording has no head 0.3").wait_for()
    assert page.locator(".mapbox").count() == 0
    choice = page.locator(".pair select").nth(1)
    assert choice.locator("option").all_inner_texts() == ["choose a head", "0.0"]
    choice.select_option("0.0")
    redrawn(page, "m.shown.map.rec === '1'", nth=1)
    assert value_at(page, 20, 4, 1) == pytest.approx(float(one.weights(0, 0)[20, 4]), abs=1e-3)
    look(page, serve(session), view="compare", rec="1", a="0.0", b="0.3", rb="0")  # the other way
    redrawn(page, "m.shown.map.rec === '0' && m.shown.map.head === 3", nth=1)
    assert value_at(page, 20, 4, 1) == pytest.approx(float(many.weights(0, 3)[20, 4]), abs=1e-3)
