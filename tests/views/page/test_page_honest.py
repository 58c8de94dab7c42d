"""The map must not mislead: sinks, pooling, scales, norms."""

import re

import pytest
import torch
from pages import (
    POINT,
    grey,
    in_map,
    lonely_link,
    look,
    pixels,
    point,
    ready,
    recorded,
    redrawn,
    said,
    serve,
    tiny,
    until,
)  # fmt: skip

from multihead.views.page.session import Session

MANY, ASKS, ASKED = 8192, 6001, 2345


def page_of(rec, **about) -> str:
    session = Session()
    session.add(rec, "by hand", {"model": "by hand", **about})
    return serve(session)


def value_at(page, query: int, key: int):
    return page.evaluate(
        "([q, k]) => document.querySelector('.mapbox canvas').headMap.valueAt({query: q, key: k})",
        [query, key],
    )


# ---- 1: sinks -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sunk():
    """Two heads of 100 tokens that look at keys 0 and 17 more than at others."""
    torch.manual_seed(1)
    query, key = torch.randn(2, 100, 8), torch.randn(2, 100, 8)
    query[0, :, 0], key[0, :, 0] = 3.0, 0.0
    key[0, 0, 0] = key[0, 17, 0] = 6.0
    rec = recorded(query, key)
    return rec, page_of(rec)


def test_sinks_are_hidden_and_said_and_one_click_restores_them(new_page, sunk):
    rec, address = sunk
    page = look(new_page(), address, view="head")
    whole = rec.weights(0, 0)
    share = float(whole[:, [0, 17]].sum() / whole.sum())
    chip = page.locator("button.sinks")
    assert chip.inner_text() == f"{100 * share:.0f} % of weight hidden: keys 0, 17 show"
    assert value_at(page, 50, 17) != value_at(page, 50, 17)  # NaN
    rest = whole.clone()
    rest[:, [0, 17]] = 0
    assert in_map(page, "shown.most(1)") == pytest.approx(float(rest.max()), rel=1e-3)
    assert value_at(page, 50, 30) == pytest.approx(float(whole[50, 30]), rel=1e-3)  # as it was
    hatched, beside = pixels(page, [(50, 17), (50, 18)])
    masked = pixels(page, [(10, 90)])[0]
    column = {tuple(p) for p in pixels(page, [(q, 17.2) for q in range(20, 90)])}
    assert len(column) > 1  # lines, and not the plain grey of what may not be looked at
    assert beside != masked
    assert hatched
    chip.click()
    redrawn(page, "m.shown.map.sinks === 'show'")
    assert chip.inner_text() == f"{100 * share:.0f} % of weight on sinks: keys 0, 17 hide"
    assert value_at(page, 50, 17) == pytest.approx(float(whole[50, 17]), rel=1e-3)


@pytest.mark.parametrize("view", [{}, {"q": 40, "k": 10, "span": 20}], ids=["far", "close"])
def test_a_hidden_key_is_said_to_be_hidden_and_not_forbidden(new_page, sunk, view):
    rec, address = sunk
    page = look(new_page(), address, view="head", **view)
    point(page, 50, 17)
    until(page, "document.querySelector('.pointed').textContent !== ''")
    weight = said(float(rec.weights(0, 0)[50, 17]))
    told = f"Hidden: ‘word50’ (50) reads {weight} from ‘word17’ (17)"
    assert page.locator(".pointed").inner_text() == told
    point(page, 50, 57 if not view else 18)
    until(page, "!document.querySelector('.pointed').textContent.includes('Hidden')")
    assert ("may not look" in page.locator(".pointed").inner_text()) == (not view)


def test_a_head_without_sinks_hides_nothing(new_page, sunk):
    page = look(new_page(), sunk[1], view="head", head=1)
    assert page.locator("button.sinks").count() == 0
    assert value_at(page, 50, 0) == pytest.approx(float(sunk[0].weights(0, 1)[50, 0]), rel=1e-3)


# ---- 2: pooling ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lonely():
    rec = lonely_link(MANY, ASKS, ASKED)
    return rec, page_of(rec)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_one_link_among_8192_tokens_is_seen_and_a_click_lands_on_it(new_page, lonely, scheme):
    rec, address = lonely
    assert rec.weights(0, 0, slice(ASKS, ASKS + 1))[0, ASKED] == pytest.approx(0.9, abs=1e-4)
    page = look(new_page(color_scheme=scheme), address, view="head")
    f = in_map(page, "factor")
    assert f >= 16
    query, key = ASKS // f * f + f / 2, ASKED // f * f + f / 2
    here, *around = pixels(
        page, [(query, key)] + [(query + a * f, key + b * f) for a in (-2, 2) for b in (-2, 2)]
    )
    assert min(abs(grey(here) - grey(p)) for p in around) >= 20
    point(page, query, key)
    until(page, "document.querySelector('.pointed').textContent.includes('reads')")
    assert page.locator(".pointed").inner_text() == (
        f"‘word{ASKS}’ ({ASKS}) reads 0.900 from ‘word{ASKED}’ ({ASKED}), largest of {f}×{f}"
    )
    assert f"largest of {f}×{f}" in page.locator(".legend").inner_text()
    page.mouse.click(*page.evaluate(POINT, [query, key, 0]))
    until(page, "document.querySelector('.mapbox canvas').headMap.factor === 1")
    ready(page)
    view = in_map(page, "view")
    assert view["q"] < ASKS < view["q"] + view["span"]
    assert view["k"] < ASKED < view["k"] + view["span"]
    assert in_map(page, "cross")["query"] == ASKS
    assert value_at(page, ASKS, ASKED) == pytest.approx(0.9, abs=1e-3)
    assert "every link" in page.locator(".legend").inner_text()
    told = f"‘word{ASKS}’ ({ASKS}) reads 0.900"
    until(page, "document.querySelector('.sentence').textContent.startsWith(arg)", told)


def test_a_glide_lands_even_where_the_window_changes_meanwhile(new_page, lonely):
    page = look(new_page(reduced_motion="no-preference"), lonely[1], view="head")
    f = in_map(page, "factor")
    page.mouse.click(*page.evaluate(POINT, [ASKS // f * f + f / 2, ASKED // f * f + f / 2, 0]))
    until(page, "document.querySelector('.mapbox canvas').headMap.gliding")
    page.set_viewport_size({"width": 1280, "height": 760})
    until(page, "Math.abs(document.querySelector('.mapbox canvas').headMap.view.span - 24) < 0.01")
    until(page, "location.hash.includes('span=24')")  # and stays there
    view = in_map(page, "view")
    assert view["q"] == pytest.approx(ASKS - 12, abs=0.1)


@pytest.mark.parametrize("pool", ["largest", "mean", "sum"])
def test_what_a_cell_shows_is_what_the_legend_says(new_page, lonely, pool):
    rec, address = lonely
    page = look(new_page(), address, view="head", pool=pool)
    f = in_map(page, "factor")
    rows, keys = (slice(at // f * f, (at // f + 1) * f) for at in (ASKS, ASKED))
    cell = rec.weights(0, 0, rows, keys)
    expected = {"largest": cell.max(), "mean": cell.mean(), "sum": cell.sum()}[pool]
    assert value_at(page, ASKS, ASKED) == pytest.approx(float(expected), rel=2e-3)
    words = {"largest": "largest of", "mean": "mean of the visible links in", "sum": "sum of"}
    assert f"{words[pool]} {f}×{f}" in page.locator(".legend").inner_text()


# ---- 3: scales ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [60, 1000])
def test_a_uniform_head_is_flat_times_uniform(new_page, tokens):
    page = look(
        new_page(), page_of(recorded(torch.zeros(1, tokens, 8), torch.zeros(1, tokens, 8))),
        view="head", scale="uniform", sinks="show",
    )  # fmt: skip
    f = in_map(page, "factor")
    cells = range(0, tokens // f, max(1, tokens // f // 12))
    places = [(i * f + f / 2 - 0.5, j * f + f / 2 - 0.5) for i in cells for j in cells if j <= i]
    shades = pixels(page, places)
    for channel in zip(*shades, strict=True):
        assert max(channel) - min(channel) <= 2  # on the diagonal too
    legend = page.locator(".legend").inner_text()
    assert "× uniform" in legend
    assert "1 in the middle" in legend


@pytest.mark.parametrize("scale", ["linear", "log", "uniform"])
def test_the_legend_says_range_unit_and_pooling(new_page, sunk, scale):
    rec, address = sunk
    page = look(new_page(), address, view="head", head=1, scale=scale)
    whole = rec.weights(0, 1).nan_to_num(0)
    top = float(whole.max())
    low, high = page.locator(".legend .scale i").all_inner_texts()
    if scale == "uniform":
        times = float((whole * torch.arange(1, 101)[:, None]).max())
        assert high == said(times)
        assert low == f"1/{high}"
    else:
        assert high == said(top)
        assert low == ("0" if scale == "linear" else said(top / 10**4))
    unit = {"linear": "weight, linear,", "log": "weight, logarithmic,", "uniform": "× uniform,"}
    assert unit[scale] in page.locator(".legend .unit").inner_text()
    assert "every link" in page.locator(".legend").inner_text()


def test_equal_values_have_equal_pixels_across_tiles(new_page):
    """Every row of 600 tokens looks at its own key with the same weight; tiles end at 256 and 512."""
    basis = torch.eye(600)[None] * 300.0
    page = look(
        new_page(), page_of(recorded(basis, torch.eye(600)[None])),
        view="head", q=240, k=240, span=30, sinks="show",
    )  # fmt: skip
    diagonal = pixels(page, [(i, i) for i in range(242, 268)])
    assert len({tuple(p) for p in diagonal}) == 1


@pytest.mark.parametrize("view", [(500.3, 240.3, 30), (300.7, 200.1, 299)])
def test_there_is_no_seam_between_tiles(new_page, view):
    q, k, span = view
    rec = recorded(torch.zeros(1, 600, 8), torch.zeros(1, 600, 8))
    page = look(
        new_page(device_scale_factor=1.25), page_of(rec),
        view="head", scale="uniform", q=q, k=k, span=span, sinks="show",
    )  # fmt: skip
    row = q + 0.9 * span
    across = [(row, key / 10) for key in range(int(10 * k) + 5, int(10 * (k + 0.9 * span)))]
    assert any(abs(key - 255.5) < 0.1 for _, key in across)
    assert len({tuple(p) for p in pixels(page, across)}) == 1


def test_a_locked_scale_stays_from_head_to_head(new_page, sunk):
    rec, address = sunk
    page = look(new_page(), address, view="head", head=1)
    own = in_map(page, "shown.most(1)")
    page.get_by_role("button", name="lock scale").click()
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelector('h1').textContent === '0.0'")
    ready(page)
    assert in_map(page, "shown.most(1)") == pytest.approx(own)
    assert page.locator(".legend .scale i").all_inner_texts()[1] == said(own)
    page.get_by_role("button", name="scale locked").click()
    until(page, "document.querySelector('.mapbox canvas').headMap.shown.most(1) < arg", 0.99 * own)
    assert rec.weights(0, 1).max() == pytest.approx(own, rel=1e-3)


# ---- 4: what moves the output -------------------------------------------------------------------


def test_weight_times_norm_is_that_of_the_recording(new_page):
    rec = tiny()[0].of("0").rec
    page = look(new_page(), tiny()[1], view="head", layer=1, head=1, sinks="show")
    page.get_by_label("show").select_option("norm")
    redrawn(page, "m.shown.map.by === 'norm'")
    assert "weight × ‖v W_O‖, linear" in page.locator(".legend").inner_text()
    norms = rec.weights(1, 1, by="norm")
    values = page.evaluate(
        """() => { const m = document.querySelector(".mapbox canvas").headMap;
        return Array.from({length: 60}, (_, q) => m.valueAt({query: q, key: Math.floor(q / 2)})); }"""
    )
    expected = norms[torch.arange(60), torch.arange(60) // 2].tolist()
    assert values == pytest.approx(expected, rel=1e-3, abs=1e-5)
    point(page, 40, 20)
    until(page, "document.querySelector('.pointed').textContent.includes('reads')")
    assert said(float(norms[40, 20])) in page.locator(".pointed").inner_text()
    assert "W_O was found" in page.locator(".left").inner_text()


def test_it_is_said_where_w_o_was_not_found(new_page, sunk):
    page = look(new_page(), sunk[1], view="head")
    choice = page.get_by_label("show").locator("option[value=norm]")
    assert choice.is_disabled()
    assert "W_O was not found" in choice.inner_text()
    page.goto(page.url + "&by=norm")  # an address from another recording
    page.wait_for_selector("text=W_O was not found here")
    ready(page)
    assert value_at(page, 50, 30) == pytest.approx(float(sunk[0].weights(0, 0)[50, 30]), rel=1e-3)
    assert re.match(r"weight, linear", page.locator(".legend .unit").inner_text())
