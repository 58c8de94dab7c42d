"""Take it along: pictures, tables, the whole as one file that needs no network, and a notebook."""

import base64
import csv
import html
import io
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from pages import HOSTILE, in_map, look, point, ready, recorded, said, tiny, tiny_session, until
from PIL import Image

import multihead as mh
from multihead.views.page.session import Session

EXACT = (1, 2)


@pytest.fixture
def exporting(new_page):
    return look(
        new_page(), tiny()[1], view="head", layer=1, head=2, tab="export", q=10, k=2, span=20
    )


def saved(page, button: str) -> tuple[str, bytes]:
    with page.expect_download() as coming:
        page.get_by_role("button", name=button, exact=True).click()
    return coming.value.suggested_filename, coming.value.path().read_bytes()


def test_the_view_as_png(exporting):
    name, data = saved(exporting, "PNG")
    assert name == "head-1.2.png"
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(data) > 5000
    picture = np.asarray(Image.open(io.BytesIO(data)).convert("L")).astype(int)
    ramp = picture[-14, 14:120]  # under the map, beside what it means
    assert (np.diff(ramp) <= 0).mean() > 0.95
    assert ramp[0] - ramp[-1] > 150


def test_the_view_as_svg_with_words_as_text(exporting):
    name, data = saved(exporting, "SVG")
    assert name == "head-1.2.svg"
    tree = ET.fromstring(data)
    space = "{http://www.w3.org/2000/svg}"
    words = [t.text for t in tree.iter(f"{space}text") if t.text]
    told = " ".join(t.text for t in tree.iter(f"{space}tspan"))
    assert "head 1.2 of tiny, 4-bit quantised" in told
    assert "every link" in told
    assert tiny()[0].of("0").rec.words[0][12] in words
    assert {"is asked (key) →", "← asks (query)"} < set(words)
    assert len(words) == 42
    image, ramp = tree.iter(f"{space}image")
    assert image.get("href").startswith("data:image/png;base64,")
    assert len(image.get("href")) > 500
    shades = np.asarray(Image.open(io.BytesIO(base64.b64decode(ramp.get("href").split(",")[1]))))
    assert shades.shape[:2] == (1, 128)  # from one end of the scale to the other
    assert shades[0, 0, :3].mean() > 200 > 60 > shades[0, -1, :3].mean()


@pytest.mark.parametrize("view", ["home", "head", "compare"])
def test_every_view_as_it_is_on_the_screen(new_page, view):
    page = look(
        new_page(), tiny()[1], view=view, layer=1, head=2, a="1.2", b="0.1", q=0, k=0, span=20
    )
    page.get_by_role("button", name="Export", exact=True).first.click()
    name, data = saved(page, "View as SVG")
    assert name == f"multihead-{view}.svg"
    tree, space = ET.fromstring(data), "{http://www.w3.org/2000/svg}"
    words = [t.text for t in tree.iter(f"{space}text")]
    assert "multihead" in words
    assert "Export" not in words[-3:]  # the window over the view is no part of it
    assert [i for i in tree.iter(f"{space}image") if len(i.get("href")) > 200]
    name, data = saved(page, "View as PNG")
    assert name == f"multihead-{view}.png"
    picture = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
    assert picture.shape[1] == 2 * page.viewport_size["width"]
    assert picture.std() > 10


def test_the_table_as_csv_and_json(exporting):
    heads = tiny()[0].of("0").heads()
    name, data = saved(exporting, "CSV")
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    assert name == "heads.csv"
    assert [float(r["entropy"]) for r in rows] == [h["entropy"] for h in heads]
    assert "induction on cue 0.84" in rows[5]["names"]
    name, data = saved(exporting, "JSON")
    assert name == "heads.json"
    told = json.loads(data)
    assert [list(row) for row in told] == [list(row) for row in rows]  # the same columns
    assert [{k: row[k] for k in heads[0]} for row in told] == json.loads(json.dumps(heads))
    assert told[5]["names"] == ["induction on cue 0.84", "first token at rest 0.60"]
    assert told[5]["induction, on cue"] == 0.5


def test_a_file_gives_the_same_tables(exporting, from_disk):
    tables = {}
    for page in (exporting, from_disk(tiny_session(), [EXACT], view="home")):
        page.get_by_role("button", name="Export", exact=True).first.click()
        page.wait_for_selector("dialog[open]")
        for kind in ("CSV", "JSON"):
            with page.expect_download() as coming:
                page.locator("dialog").get_by_role("button", name=kind, exact=True).click()
            tables.setdefault(kind, []).append(coming.value.path().read_text())
    one, other = (list(csv.DictReader(io.StringIO(text))) for text in tables["CSV"])
    assert [list(row) for row in one] == [list(row) for row in other]
    for row, same in zip(one, other, strict=True):
        for key, value in row.items():
            number = value.replace(".", "").replace("e-", "").isdecimal()
            assert float(same[key]) == float(value) if number else same[key] == value
    assert json.loads(tables["JSON"][0]) == json.loads(tables["JSON"][1])


def test_the_whole_as_one_page(exporting):
    exporting.get_by_label("heads, exactly").fill(" 0.1, 1.2 ")
    name, data = saved(exporting, "HTML")
    assert name == "multihead.html"
    assert b"<!doctype html>" in data[:20]
    assert b'"exact":["0.1","1.2"]' in data


def test_a_wrong_choice_of_heads_is_said(exporting):
    exporting.get_by_label("heads, exactly").fill("all of them")
    exporting.get_by_role("button", name="HTML", exact=True).click()
    exporting.wait_for_selector(".panel [role=alert]")
    assert "heads are given as" in exporting.locator(".panel [role=alert]").inner_text()
    exporting.troubles.clear()  # a refusal is what was asked for


# ---- from disk, with the network off ------------------------------------------------------------


def test_the_file_has_home_and_every_view(from_disk):
    page = from_disk(tiny()[0], [EXACT])
    page.wait_for_selector(".verified")
    assert page.locator(".cell").count() == 6
    assert page.locator(".found li").all_inner_texts() == tiny()[0].findings("0")
    assert page.locator(".about").inner_text().split("\n")[1:] == ["60 tokens", "no BOS"]
    assert page.get_by_role("button", name="Your own text").count() == 0
    page.locator(".cell").nth(5).click()
    ready(page)
    for tab in ("Names", "Cut and see", "Joins", "Export", "Text"):
        page.get_by_role("tab", name=tab).click()
        assert page.locator(".panel").inner_text()
    page.get_by_role("tab", name="Export").click()
    assert saved(page, "JSON")[0] == "heads.json"
    assert saved(page, "PNG")[1][:4] == b"\x89PNG"
    page.get_by_role("link", name="Compare").click()
    page.locator("circle[data-at='1.2']").click()
    assert "a=1.2" in page.url
    page.reload()
    page.wait_for_selector(".scatter")


@pytest.mark.parametrize("by", ["weight", "norm"])
def test_an_exact_head_is_exact_at_every_zoom(from_disk, by):
    rec = tiny()[0].of("0").rec
    page = from_disk(
        tiny()[0], [EXACT], view="head", layer=1, head=2, q=30, k=10, span=12, sinks="show", by=by
    )
    until(page, "document.querySelector('.mapbox canvas').headMap.shown.map.by === arg", by)
    ready(page)
    weights = rec.weights(*EXACT, by=by)
    for query, key in ((35, 15), (41, 10), (33, 20)):
        shown = page.evaluate(
            "([q, k]) => document.querySelector('.mapbox canvas').headMap.valueAt({query: q, key: k})",
            [query, key],
        )
        assert shown == pytest.approx(float(weights[query, key]), abs=1e-5)
    point(page, 35, 15)
    until(page, "document.querySelector('.pointed').textContent.includes('(35) reads')")
    assert f"reads {said(float(weights[35, 15]))} from" in page.locator(".pointed").inner_text()
    page.locator(".reader .word").nth(40).click()
    until(page, "document.querySelector('.sentence').textContent.includes('(40) reads')")
    best = float(weights[40].max())
    assert f"reads {said(best)} from" in page.locator(".sentence").inner_text()
    until(page, "document.querySelectorAll('.strip').length === 3")


def by_hand(tokens: int) -> Session:
    torch.manual_seed(4)
    session = Session()
    rec = recorded(3 * torch.randn(2, tokens, 8), torch.randn(2, tokens, 8))
    session.add(rec, "by hand", {"model": "by hand"})
    return session


def largest_at(page, rec, head: int, query: int, key: int) -> tuple[float, float]:
    """What a cell of the map shows, and what it should."""
    f = in_map(page, "factor")
    shown = page.evaluate(
        "([q, k]) => document.querySelector('.mapbox canvas').headMap.valueAt({query: q, key: k})",
        [query, key],
    )
    rows, keys = (slice(at // f * f, (at // f + 1) * f) for at in (query, key))
    return shown, float(rec.weights(0, head, rows, keys).max())


def test_a_long_exact_head_pools_as_the_server_does(from_disk):
    session = by_hand(700)
    page = from_disk(session, [(0, 0)], view="head", sinks="show")
    assert in_map(page, "factor") > 1
    shown, expected = largest_at(page, session.of("0").rec, 0, 500, 200)
    assert shown == pytest.approx(expected, abs=1e-5)


def test_a_pooled_head_says_so(from_disk):
    session = by_hand(200)
    page = from_disk(session, [(0, 0)], view="head", head=1, sinks="show")
    told = page.locator(".left").inner_text()
    assert "Pooled in this file: the largest of 4×4 weights. Exact in it: 0.0" in told
    assert "largest of 4×4" in page.locator(".legend").inner_text()
    shown, expected = largest_at(page, session.of("0").rec, 1, 150, 20)
    assert shown == pytest.approx(expected, rel=1e-3, abs=1e-7)
    page.locator(".reader .word").nth(40).click()
    until(
        page,
        "document.querySelector('.sentence').textContent.includes('0.1 is pooled in this file')",
    )
    page.get_by_label("pooled by").select_option("mean")
    page.wait_for_selector("text=it has the largest weights alone")


def test_a_short_head_that_is_not_exact_is_rounded_and_says_so(from_disk):
    page = from_disk(tiny()[0], [EXACT], view="head", layer=0, head=0)
    told = page.locator(".left").inner_text()
    assert "Rounded in this file: every weight to three digits. Exact in it: 1.2" in told


def test_hostile_words_stay_text_in_the_file(from_disk):
    session = tiny_session()
    words = (HOSTILE * 5)[:60]
    session.of("0").rec.words = [words]
    page = from_disk(session, [EXACT], view="head", layer=1, head=2, pin="q28")
    until(page, "document.querySelector('.sentence').textContent.includes('reads')")
    assert page.locator("img").count() == 0
    assert page.title() == "1.2 · multihead"
    assert page.locator(".reader .word").first.inner_text() == HOSTILE[0].replace(" ", "·")


# ---- in a notebook ------------------------------------------------------------------------------


def test_two_cells_of_a_notebook_at_once(new_page, tmp_path):
    rec = tiny()[0].of("0").rec
    cells = [
        mh.explore(rec, heads=[EXACT])._repr_html_(),
        mh.explore(rec, heads=[(0, 1)])._repr_html_(),
    ]
    path = tmp_path / "notebook.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><title>{html.escape('a notebook')}</title>"
        + "".join(cells),
        "utf-8",
    )
    page, asked = new_page(offline=True), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    for nth, (layer, head) in enumerate((EXACT, (0, 1))):
        frame = page.frame_locator("iframe").nth(nth)
        frame.locator(".cell").nth(3 * layer + head).click()
        frame.locator("canvas[data-ready=true]").wait_for()
        assert frame.locator("h1").inner_text() == f"{layer}.{head}"
        assert "Pooled in this file" not in frame.locator(".left").inner_text()
        frame.locator(".reader .word").nth(30).click()
        best = float(rec.weights(layer, head, slice(30, 31)).max())
        frame.locator(f".sentence:has-text('(30) reads {said(best)} from')").wait_for()
    first = page.frame_locator("iframe").nth(0)
    assert first.locator("h1").inner_text() == "1.2"  # the other cell changed nothing here
    assert all(not url.startswith("http") for url in asked)
