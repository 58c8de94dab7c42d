"""Labels that somebody gave, as long and as odd as they come; and small words that must be right."""

import xml.etree.ElementTree as ET

import pytest
import torch
from pages import EVERY, look, ready, recorded, serve

import multihead as mh
from multihead.views.page.session import Session

ODD = "a\u202eb c\x00d"
LONG = "a rather long name of a text that goes on and on"


def session_of(*labels: str, words: list[str] | None = None) -> Session:
    torch.manual_seed(5)
    session = Session()
    for label in labels:
        rec = recorded(torch.randn(1, 20, 8), torch.randn(1, 20, 8), words)
        session.add(rec, label, {"model": "by hand"})
    return session


def test_labels_are_legible_and_keep_their_spaces(new_page):
    page = look(new_page(), serve(session_of("plain", ODD)))
    options = page.locator("header option").evaluate_all("all => all.map((o) => o.textContent)")
    assert options == ["plain", "a\ufffdb c\ufffdd"]
    look(page, page.url.partition("#")[0], view="compare", a="0.0", b="0.0", rb="1")
    ready(page)
    choices = page.locator(".pair option").evaluate_all("all => all.map((o) => o.textContent)")
    assert "a\ufffdb c\ufffdd" in choices
    assert "a\ufffdb c\ufffdd" in page.locator(".three figcaption").nth(1).inner_text()


@pytest.mark.parametrize(("token", "seen"), [("\n", "⏎"), (" a", "·a"), ("<s>", "<s>")])
def test_the_first_token_is_seen_as_tokens_are(new_page, token, seen):
    session = session_of("plain")
    session.of("0").about |= {"bos": True, "bos_token": token}
    page = look(new_page(), serve(session))
    assert page.locator(".about span").nth(1).inner_text() == f"begins with {seen}"


def test_a_word_without_end_is_wrapped(new_page):
    words = ["x" * 3000, *(f"w{i}" for i in range(19))]
    page = look(new_page(), serve(session_of("plain", words=words)))
    assert page.locator(".reader").evaluate("e => e.scrollWidth <= e.clientWidth")
    first, box = (page.locator(at).first.bounding_box() for at in (".reader .word", ".reader"))
    assert first["x"] + first["width"] <= box["x"] + box["width"]


def test_a_view_that_is_exported_cuts_a_label_off_where_the_page_does(new_page):
    page = look(new_page(), serve(session_of(LONG, "other")))
    box = page.locator("header select").bounding_box()
    assert page.locator("header select").get_attribute("title") == LONG
    page.get_by_role("button", name="Export", exact=True).click()
    with page.expect_download() as coming:
        page.get_by_role("button", name="View as SVG").click()
    tree, space = ET.fromstring(coming.value.path().read_bytes()), "{http://www.w3.org/2000/svg}"
    (inside,) = (s for s in tree.iter(f"{space}svg") if s[0].text == LONG)
    assert float(inside.get("width")) == pytest.approx(box["width"], abs=0.1)
    assert float(inside.get("x")) == pytest.approx(box["x"], abs=0.1)


def begins_with(word: str) -> Session:
    """A text in which everybody looks at its first word."""
    query, key = torch.zeros(1, 40, 8), torch.zeros(1, 40, 8)
    query[..., 0], key[0, 0, 0] = 9, 9
    session = Session()
    words = [word, *(f"w{i}" for i in range(39))]
    session.add(recorded(query, key, words), "long", {"model": "by hand"})
    return session


def exported(page) -> list[str]:
    page.get_by_role("button", name="Export", exact=True).first.click()
    with page.expect_download() as coming:
        page.get_by_role("button", name="View as SVG").click()
    tree = ET.fromstring(coming.value.path().read_bytes())
    page.keyboard.press("Escape")
    return [t.text for t in tree.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("word", ["L" * 70 + "end", "·".join("long" for _ in range(5))])
def test_a_long_word_is_cut_short_and_its_place_stays_in_the_picture_too(new_page, word):
    page = look(new_page(), serve(begins_with(word)), view="head", sinks="show", pin="q20")
    page.wait_for_selector("table.top")
    cell, inside = (page.locator(f"table.top {at}").first.bounding_box() for at in ("td", "button"))
    assert inside["x"] + inside["width"] <= cell["x"] + cell["width"]
    assert page.locator("table.top .short").first.evaluate("e => e.scrollWidth > e.clientWidth")
    drawn = exported(page)
    caption = drawn.index("most")  # reads most from
    begun = next(i for i in range(caption, len(drawn)) if drawn[i].startswith(f"‘{word[:6]}"))
    assert drawn[begun].endswith("…")
    assert drawn[begun + 1] == "(0)"


def test_a_finding_is_in_the_picture_to_its_end(new_page):
    word = "L" * 150 + "end"
    page = look(new_page(), serve(begins_with(word)))
    page.wait_for_selector(".found li")
    assert page.locator(".found").evaluate("e => e.scrollWidth <= e.clientWidth")
    drawn = exported(page)
    first = next(i for i, one in enumerate(drawn) if one.startswith("(L"))
    last = next(i for i, one in enumerate(drawn) if one.endswith("end)."))
    assert last > first  # a line each
    assert "".join(drawn[first : last + 1]) == f"({word})."


def test_a_key_head_is_counted_from_0_and_says_so(new_page):
    attention = mh.MultiHeadAttention(24, 6, num_kv_heads=3, mask=mh.causal())
    with torch.no_grad(), mh.record(attention, stats=EVERY) as rec:
        attention(torch.randn(1, 20, 24))
    session = Session()
    session.add(rec, "a layer", {})
    page = look(new_page(), serve(session), view="head", head=4, tab="joins")
    shared = page.locator(".panel dd").first
    assert shared.inner_text() == "2, of 0 to 2, shared by 2 heads"


@pytest.mark.parametrize("heads", [1, 2])
def test_one_head_leaves_and_two_leave(heads):
    session = Session()
    session.add(recorded(torch.zeros(heads, 40, 8), torch.zeros(heads, 40, 8)), "even", {})
    (said,) = (s for s in session.findings("0") if "over 0.3 of a row" in s)
    assert said.startswith("0 of 1 head leaves" if heads == 1 else "0 of 2 heads leave ")
