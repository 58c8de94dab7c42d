"""Cut a head or some of its links and see; record a text of one's own."""

from collections.abc import Callable

import pytest
import torch
from pages import POINT, TEXT, in_map, loaded, look, said, serve, tiny, tiny_session, until
from small_reports import WORDS

import multihead as mh
from multihead.views.page.making import inside

HEAD = (1, 2)


def rec():
    return tiny()[0].of("0").rec


def losses(surgery) -> torch.Tensor:
    """What each token but the first costs, by the library's own door."""
    model, _ = loaded()
    with torch.no_grad(), surgery:
        logits = model(rec().ids).logits[0].float()
    return torch.nn.functional.cross_entropy(logits[:-1], rec().ids[0, 1:], reduction="none")


@pytest.fixture
def cutting(new_page):
    return look(new_page(), tiny()[1], view="head", layer=1, head=2, tab="cut", sinks="show")


def check_told(page, surgery: Callable) -> None:
    page.wait_for_selector(".sentence b")  # one run at a time: then the model is free
    after = losses(surgery(loaded()[0]))
    before = float(rec().loss[0].nanmean())
    mean = float(after.mean())
    sign = "+" if mean >= before else "−"
    assert (
        page.locator(".panel .sentence")
        .inner_text()
        .endswith(
            f"a token costs {said(mean)} nats instead of {said(before)}: {sign}{said(abs(mean - before))}."
        )
    )
    worse = after - rec().loss[0, 1:]
    worst = worse.topk(5)
    chips = page.locator(".panel p button.chip").all_inner_texts()
    assert chips == [
        f"‘{rec().words[0][i + 1]}’ ({i + 1}) +{v:.2f}"
        for i, v in zip(worst.indices.tolist(), worst.values.tolist(), strict=True)
        if v > 0
    ]


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_a_head_is_cut_as_by_ablate(cutting, by):
    cutting.get_by_label("its output becomes").select_option(by)
    cutting.get_by_role("button", name="Cut this head").click()
    check_told(cutting, lambda model: mh.ablate(model, heads=[HEAD], by=by))
    instead = {"zero": "nothing", "mean": "its mean"}[by]
    assert f"head 1.2 ({instead} in its place)" in cutting.locator(".panel .sentence").inner_text()


def test_next_words_before_and_after_stand_side_by_side(cutting):
    cutting.get_by_role("button", name="Cut this head").click()
    cutting.wait_for_selector(".panel .reader")
    assert "loss before, and after in red" in cutting.locator(".panel .strip").inner_text()
    cutting.locator(".panel .reader .word").nth(30).click()
    cutting.wait_for_selector("table.top >> nth=1")
    model, tokenizer = loaded()
    with torch.no_grad(), mh.ablate(model, heads=[HEAD], by="zero"):
        after = model(rec().ids).logits[0, 30].float().softmax(-1).topk(5)
    tables = cutting.locator("table.top").all()
    words = tables[1].locator("td:first-child").all_inner_texts()[:5]
    assert words == [tokenizer.decode([i]) for i in after.indices.tolist()]
    shares = tables[1].locator("td:nth-child(3)").all_inner_texts()
    assert shares == [f"{100 * p:.0f} %" for p in after.values.tolist()]
    before = tables[0].locator("td:first-child").all_inner_texts()[:5]
    assert before == [word for word, _ in tiny()[0].of("0").guesses[30]]


def test_links_inside_a_lasso_are_cut_as_by_cut(cutting):
    corners = [(20, 2), (20, 14), (50, 14), (50, 2)]
    assert cutting.get_by_role("button", name="Cut the links inside").is_disabled()
    cutting.get_by_role("button", name="Lasso links").click()
    until(cutting, "document.querySelector('.mapbox canvas').headMap.lassoing")
    x, y = cutting.evaluate(POINT, [*corners[0], 0])
    cutting.mouse.move(x, y)
    cutting.mouse.down()
    for corner in [*corners[1:], corners[0]]:
        cutting.mouse.move(*cutting.evaluate(POINT, [*corner, 0]), steps=4)
    cutting.mouse.up()
    drawn = in_map(cutting, "lasso.points")
    assert in_map(cutting, "view.span") == 60  # the map did not move
    cutting.get_by_role("button", name="Cut the links inside").click()
    links = inside([tuple(p) for p in drawn], 60)
    assert 300 < int(links.sum()) < 450  # about 30 × 12
    check_told(
        cutting, lambda model: mh.cut(model, heads=[HEAD], links=mh.dense(links[None, None]))
    )
    assert "the links inside the lasso of 1.2" in cutting.locator(".sentence").inner_text()
    cutting.keyboard.press("Escape")
    until(cutting, "document.querySelector('.mapbox canvas').headMap.lasso === null")


def test_a_cut_is_of_the_head_that_is_seen(cutting):
    cutting.get_by_role("button", name="Cut this head").click()
    cutting.wait_for_selector(".sentence b")
    cutting.locator("body").press("ArrowLeft")
    until(cutting, "document.querySelector('h1').textContent === '1.1'")
    until(cutting, "!document.querySelector('.panel .sentence')")
    assert "cut=head" not in cutting.url


def test_a_cut_is_there_again_after_a_reload(cutting):
    cutting.get_by_label("its output becomes").select_option("mean")
    cutting.get_by_role("button", name="Cut this head").click()
    cutting.wait_for_selector(".sentence b")
    told = cutting.locator(".panel .sentence").inner_text()
    assert "(its mean in its place)" in told
    cutting.reload()
    cutting.wait_for_selector(".sentence b")
    assert cutting.locator(".panel .sentence").inner_text() == told
    assert cutting.get_by_label("its output becomes").input_value() == "mean"
    asked = []
    cutting.on("request", lambda request: asked.append(request.url))
    cutting.get_by_role("tab", name="Names").click()
    cutting.get_by_role("tab", name="Cut and see").click()
    assert cutting.locator(".panel .sentence").inner_text() == told
    assert not [url for url in asked if "/cut.json" in url]  # it was not run again
    cutting.get_by_label("its output becomes").select_option("zero")
    until(cutting, "document.querySelector('.sentence').textContent.includes('(nothing in')")


def test_without_a_model_it_says_what_is_needed(new_page):
    session = tiny_session()
    session.model = None
    page = look(new_page(), serve(session), view="head", tab="cut")
    assert "the model must be at hand" in page.locator(".panel").inner_text()
    assert page.get_by_role("button", name="Your own text").count() == 0


# ---- a text of one's own ------------------------------------------------------------------------


def test_a_typed_text_is_recorded_and_the_view_is_kept(new_page):
    session = tiny_session()
    page = look(
        new_page(), serve(session), view="head", layer=1, head=1, q=8, k=3, span=12, scale="log"
    )
    page.evaluate(
        """() => { window.told = [];
        new MutationObserver(() => { const p = document.querySelector("dialog progress"); if (p) told.push(p.value); })
          .observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true}); }"""
    )
    page.get_by_role("button", name="Your own text").click()
    assert page.get_by_role("button", name="Record").is_disabled()
    typed = " ".join(reversed(WORDS)) + " w7 w8 w9 mole tower"
    page.get_by_role("textbox", name="text").fill(typed)
    page.get_by_role("button", name="Record").click()
    page.wait_for_selector("dialog", state="detached")
    until(page, "document.querySelector('.about').textContent.includes('23 tokens')")
    until(page, "document.querySelectorAll('.reader .word').length === 23")
    assert page.evaluate("told")  # it told how far it was
    assert page.locator("h1").inner_text() == "1.1"
    until(
        page,
        "[...document.querySelectorAll('.mapbox canvas')].every((c) => c.dataset.ready === 'true')",
    )
    view = in_map(page, "view")
    assert [round(view[c]) for c in ("q", "k", "span")] == [8, 3, 12]
    made = session.of("1").rec
    assert page.locator(".reader .word").all_inner_texts() == made.words[0] == typed.split()
    value = page.evaluate(
        "document.querySelector('.mapbox canvas').headMap.valueAt({query: 15, key: 6})"
    )
    assert value == pytest.approx(float(made.weights(1, 1)[15, 6]), rel=1e-3, abs=1e-7)
    page.locator("header select").select_option("0")
    until(page, "document.querySelector('.about').textContent.includes('60 tokens')")
    until(page, "document.querySelectorAll('.reader .word').length === 60")
    assert page.locator(".reader .word").all_inner_texts() == TEXT.split()


def test_findings_are_those_of_the_text_that_is_seen(new_page):
    session = tiny_session()
    session.record(" ".join(WORDS[:12]), 60, "another", lambda *_: None)
    page = look(new_page(), serve(session))
    page.wait_for_selector(".found li")
    first, second = session.findings("0"), session.findings("1")
    assert first != second
    assert page.locator(".found li").all_inner_texts() == first
    page.locator("header select").select_option("1")
    until(page, "document.querySelector('.about').textContent.includes('12 tokens')")
    page.wait_for_function(
        "(n) => [...document.querySelectorAll('.found li')].map((e) => e.innerText).join('|') === n",
        arg="|".join(second),
    )


def test_a_text_that_is_too_short_is_refused_in_words(new_page):
    page = look(new_page(), tiny()[1])
    page.get_by_role("button", name="Your own text").click()
    page.get_by_role("textbox", name="text").fill("one")
    page.get_by_role("button", name="Record").click()
    page.wait_for_selector("dialog [role=alert]")
    assert page.locator("dialog [role=alert]").inner_text()
    assert page.get_by_role("button", name="Record").is_enabled()
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
