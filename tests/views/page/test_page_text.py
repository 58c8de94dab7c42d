"""The text beside the map: where a token looks, who looks at it, what comes next; names; joins."""

import pytest
import torch
from pages import look, point, recorded, said, serve, tiny, until

from multihead.views.page.session import Session

PIECES = ["a", " cat", "\n", "\t", "", "\r\n", "\ufffd", "日本", "\u202eevil", "\u200b"]


def rec():
    return tiny()[0].of("0").rec


@pytest.fixture
def head(new_page):
    return look(new_page(), tiny()[1], view="head", layer=1, head=2)


def top_of(page) -> list[tuple[str, str]]:
    rows = page.locator("table.top").first.locator("tr").all()
    return [
        (r.locator("td").nth(0).inner_text(), r.locator("td").nth(2).inner_text()) for r in rows
    ]


def expected(weights: torch.Tensor) -> list[tuple[str, str]]:
    words, best = rec().words[0], weights.nan_to_num(0).topk(5)
    return [
        (f"‘{words[i]}’ ({i})", said(v))
        for i, v in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        if v > 0
    ]


def test_a_word_is_held_and_where_it_looks_is_read(head):
    head.locator(".reader .word").nth(30).click()
    row = rec().weights(1, 2, slice(30, 31))[0]
    head.wait_for_selector("table.top")
    assert top_of(head) == expected(row)
    word, (best, value) = rec().words[0][30], expected(row)[0]
    assert head.locator(".sentence").inner_text() == f"‘{word}’ (30) reads {value} from {best}."
    assert head.locator(".reader .pinned").inner_text() == word
    assert head.locator(".reader").get_by_role("option", selected=True).all_inner_texts() == [word]
    shades = head.locator(".reader .word").evaluate_all(
        "all => all.map((e) => parseFloat((e.style.backgroundColor.match(/[\\d.]+\\)/) || ['0'])[0]))"
    )
    assert shades.index(max(shades)) == int(row.argmax())
    assert not any(shades[31:])  # it may not look there
    head.get_by_role("button", name="held").click()
    assert "pin=" not in head.url


def test_who_looks_at_it(head):
    head.locator(".reader .word").nth(12).click()
    head.get_by_role("radio", name="who looks at it").click()
    until(head, "document.querySelector('.sentence').textContent.includes('read most by')")
    column = rec().weights(1, 2, None, slice(12, 13))[:, 0]
    assert top_of(head) == expected(column)
    word, (best, value) = rec().words[0][12], expected(column)[0]
    whole = said(float(column.nan_to_num(0).sum()))
    assert head.locator(".sentence").inner_text() == (
        f"‘{word}’ (12) is read most by {best}: {value}. In all it gets the weight of {whole} rows."
    )
    head.locator("table.top button.word").first.click()
    until(head, "/[#&]pin=q\\d+/.test(location.hash) && !location.hash.includes('pin=q12')")


def test_hovering_reads_without_holding(head):
    head.locator(".reader .word").nth(20).hover()
    until(head, "document.querySelector('.sentence').textContent.includes('(20) reads')")
    point(head, 33, 5)
    until(head, "document.querySelector('.sentence').textContent.includes('(33) reads')")
    assert "pin=" not in head.url


def test_words_stay_under_the_pointer(head):
    before = head.locator(".reader .word").nth(40).bounding_box()
    head.locator(".reader .word").nth(40).hover()
    until(head, "document.querySelector('.sentence').textContent.includes('(40) reads')")
    assert head.locator(".reader .word").nth(40).bounding_box() == before
    head.get_by_role("radio", name="who looks at it").click()
    head.locator(".reader .word").nth(40).hover()
    until(head, "document.querySelector('.sentence').textContent.includes('(40) is read')")
    assert head.locator(".reader .word").nth(40).bounding_box() == before
    rows = head.locator("table.top tr").evaluate_all(
        "a => a.map((r) => r.getBoundingClientRect().bottom)"
    )
    assert max(rows) <= head.locator(".links").evaluate("e => e.getBoundingClientRect().bottom")


def test_by_norm_the_links_are_those_of_the_norm(new_page):
    page = look(new_page(), tiny()[1], view="head", layer=1, head=2, pin="q30", by="norm")
    row = rec().weights(1, 2, slice(30, 31), by="norm")[0]
    until(
        page,
        "document.querySelector('table.top')?.textContent.includes(arg)",
        said(float(row.max())),
    )
    assert top_of(page) == expected(row)
    unit, (best, value) = "weight × ‖v W_O‖", expected(row)[0]
    told = f"‘{rec().words[0][30]}’ (30) reads {value} from {best}, {unit}."
    assert page.locator(".sentence").inner_text() == told
    assert page.locator("table.top caption").first.inner_text() == f"reads most from ({unit})"
    rows = page.locator("table.top").first.locator("tr").last.bounding_box()
    box = page.locator(".links").bounding_box()
    assert rows["y"] + rows["height"] <= box["y"] + box["height"]  # and there is room for it
    page.get_by_role("radio", name="who looks at it").click()
    page.get_by_text(f"is read most by ({unit})").wait_for()
    assert page.locator(".sentence").inner_text().endswith(f", {unit}.")


def test_times_uniform_the_links_are_weights_as_on_the_map(new_page):
    state = {"layer": 1, "head": 2, "pin": "q30", "by": "norm", "scale": "uniform"}
    page = look(new_page(), tiny()[1], view="head", **state)
    row = rec().weights(1, 2, slice(30, 31))[0]
    page.wait_for_selector("table.top")
    assert top_of(page) == expected(row)
    best, value = expected(row)[0]
    told = f"‘{rec().words[0][30]}’ (30) reads {value} from {best}."
    assert page.locator(".sentence").inner_text() == told
    assert page.locator("table.top caption").first.inner_text() == "reads most from"


def test_the_next_tokens_and_the_loss(head):
    head.locator(".reader .word").nth(30).click()
    head.wait_for_selector("table.top >> nth=1")
    guesses = tiny()[0].of("0").guesses[30]
    rows = head.locator("table.top").nth(1).locator("tr").all()
    assert [r.locator("td").nth(0).inner_text() for r in rows[:5]] == [word for word, _ in guesses]
    shares = [r.locator("td").nth(2).inner_text() for r in rows[:5]]
    assert shares == [f"{100 * p:.0f} %" for _, p in guesses]
    assert rows[5].inner_text() == f"this token cost {rec().loss[0, 30]:.2f} nats"


def test_strips_run_along_the_text(head):
    strips = head.locator(".strip")
    head.wait_for_selector(".strip")
    labels = [s.inner_text().split()[0] for s in strips.all()]
    assert labels == ["entropy", "distance", "received"]
    most = float(rec()[1]["entropy"][0, 2].max())
    assert f"up to {said(most)} nats" in strips.first.inner_text()
    box = strips.first.locator("canvas").bounding_box()
    head.mouse.click(box["x"] + box["width"] * 30.5 / 60, box["y"] + 10)
    until(head, "location.hash.includes('pin=q30')")
    here = float(rec()[1]["entropy"][0, 2, 30])
    until(head, "document.querySelector('.strip').textContent.includes(arg)", said(here))
    assert strips.first.locator("canvas").get_attribute("aria-label").startswith("entropy along")


def test_words_are_gone_through_by_keys(head):
    reader = head.get_by_role("listbox")
    reader.focus()
    head.keyboard.press("ArrowRight")
    head.keyboard.press("ArrowRight")
    until(head, "location.hash.includes('pin=q1')")
    head.keyboard.press("ArrowLeft")
    head.keyboard.press("ArrowLeft")  # the first stays held
    until(head, "location.hash.includes('pin=q0')")
    assert head.locator("h1").inner_text() == "1.2"  # arrows were the text's own
    head.keyboard.press("Escape")
    until(head, "!location.hash.includes('pin=')")


def test_spaces_line_ends_and_pieces_of_letters_are_seen(new_page):
    session = Session()
    words = PIECES * 4
    torch.manual_seed(2)
    made = recorded(torch.randn(1, 40, 8), torch.randn(1, 40, 8), words)
    session.add(made, "pieces", {"model": "pieces"})
    page = look(new_page(), serve(session), view="head", pin="q3")
    shown = page.locator(".reader .word").all_inner_texts()[:10]
    assert shown == ["a", "·cat", "⏎", "⇥", "∅", "␍⏎", "\ufffd", "日本", "\ufffdevil", "\ufffd"]
    assert page.locator(".reader br").count() == 8
    assert page.locator(".sentence").inner_text().startswith("‘⇥’ (3) reads")


def test_names_tell_why_one_may_believe_them(head):
    head.get_by_role("tab", name="Names").click()
    first, second = head.locator("article.name").all()
    told = first.inner_text()
    for line in (
        "induction on cue", "0.84, not below 0.81 (95 %)", "chance\n0.020", "controls, 99 %\n0.050",
        "0.100 over seeds", "587 rows", "Holds. With exactly these links cut, loss changes by +1.94",
        "(not below +1.60)", "other links of this head −0.13", "what should stay: +0",
    ):  # fmt: skip
        assert line in told, (line, told)
    assert "Not tested by cutting." in second.inner_text()
    scores = head.locator("table.scores tr").all_inner_texts()
    assert [s.split("\t")[0] for s in scores] == ["induction, on cue", "self, at rest"]
    assert "0.40 … 0.60" in scores[0]
    look(head, tiny()[1], view="head", layer=0, head=1, tab="names")
    until(head, "document.querySelector('.panel').textContent.includes('Does not hold.')")
    look(head, tiny()[1], view="head", layer=0, head=2, tab="names")
    until(head, "document.querySelector('.panel').textContent.includes('This head earned no name')")
