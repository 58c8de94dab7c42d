"""Other kinds of recordings: two texts on two axes, patches of an image; and hostile words anywhere."""

import pytest
import torch
import transformers
from pages import EVERY, HOSTILE, look, name_heads, point, ready, said, serve, tiny_session, until

import multihead as mh
from multihead.views.page.session import Session
from multihead.views.page.tiles import Map


def tiny_t5():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


@pytest.fixture(scope="module")
def translated():
    """A tiny T5: 9 words asked by 6 words."""
    model = tiny_t5()
    with torch.no_grad(), mh.record(model, stats=EVERY) as rec:
        model(input_ids=torch.arange(3, 12)[None], decoder_input_ids=torch.arange(20, 26)[None])
    rec.source_words = [[f"source{i}" for i in range(9)]]
    rec.words = [[f"target{i}" for i in range(6)]]
    session = Session()
    session.add(rec, "translated", {"model": "tiny T5"})
    return rec, serve(session)


@pytest.fixture(scope="module")
def padded():
    """Two texts translated together; of the second's source 5 words of 9 are padding."""
    model = tiny_t5()
    real = torch.arange(9) < torch.tensor([[9], [4]])
    with torch.no_grad(), mh.record(model, stats=EVERY) as rec:
        model(
            input_ids=torch.arange(3, 21).view(2, 9), attention_mask=real.long(),
            decoder_input_ids=torch.arange(20, 32).view(2, 6),
        )  # fmt: skip
    session = Session()
    session.add(rec, "two of them", {"model": "tiny T5"})
    return rec, session, serve(session)


def test_the_padding_of_a_source_is_counted_and_no_strip_has_it(new_page, padded):
    rec, session, address = padded
    page = look(new_page(), address)
    about = page.locator(".about span").first
    assert about.inner_text() == "6 tokens; source 9 tokens"
    look(page, address, batch=1)
    until(page, "document.querySelector('.about').textContent.includes('padding')")
    assert about.inner_text() == "6 tokens; source 4 tokens, 5 of padding"
    assert page.locator(".about").evaluate("e => e.scrollWidth <= e.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    strips = session.of("0").head(Map(crossing(rec), 1, 1))["strips"]
    assert strips["received"][4:] == [None] * 5
    assert sum(strips["received"][:4]) == pytest.approx(6, rel=1e-3)  # a row each
    assert len(strips["entropy"]) == 6
    assert None not in strips["entropy"]


def crossing(rec) -> int:
    return next(layer.index for layer in rec.layers if layer.crosses)


def test_cross_attention_has_two_texts_on_two_axes(new_page, translated):
    rec, address = translated
    layer = crossing(rec)
    page = new_page()
    page.add_init_script(
        """window.written = new Set();
        const before = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (t, ...at) { written.add(t); return before.call(this, t, ...at); };"""
    )
    look(page, address, view="head", layer=layer, head=1)
    until(page, "written.has('target5') && written.has('source8') && !written.has('source9')")
    weights = rec.weights(layer, 1)
    assert weights.shape == (6, 9)
    point(page, 4, 7)
    until(page, "document.querySelector('.pointed').textContent.includes('reads')")
    told = f"‘target4’ (4) reads {said(float(weights[4, 7]))} from ‘source7’ (7)"
    assert page.locator(".pointed").inner_text() == told
    readers = page.get_by_role("listbox")
    assert readers.nth(0).locator(".word").all_inner_texts() == rec.words[0]
    assert readers.nth(1).locator(".word").all_inner_texts() == rec.source_words[0]


def test_either_text_can_be_held(new_page, translated):
    rec, address = translated
    layer = crossing(rec)
    weights = rec.weights(layer, 0)
    page = look(new_page(), address, view="head", layer=layer)
    readers = page.get_by_role("listbox")
    readers.nth(1).locator(".word").nth(8).click()  # there is no ninth word that asks
    best = int(weights[:, 8].argmax())
    until(
        page,
        "document.querySelector('.sentence').textContent.includes('‘source8’ (8) is read most by')",
    )
    assert f"‘target{best}’ ({best})" in page.locator(".sentence").inner_text()
    page.get_by_role("radio", name="where it looks").click()
    until(page, "!document.querySelector('.sentence').textContent.includes('source8’ (8) is')")
    readers.nth(0).locator(".word").nth(5).click()
    until(page, "document.querySelector('.sentence').textContent.includes('‘target5’ (5) reads')")
    page.locator("table.top button.word").first.click()
    key = int(weights[5].argmax())
    until(
        page,
        "document.querySelector('.sentence').textContent.startsWith(arg)",
        f"‘source{key}’ ({key}) is read most by",
    )
    readers.nth(0).locator(".word").nth(1).hover()
    readers.nth(1).locator(".word").nth(2).hover()


def strips(page) -> list[str]:
    """What each strip says: up to how much, or how much here."""
    return page.locator(".strip figcaption i").all_inner_texts()


@pytest.mark.parametrize("reads", ["from", "to"])
def test_a_strip_says_the_number_of_the_text_it_runs_along(new_page, translated, reads):
    rec, address = translated
    layer = crossing(rec)
    page = look(new_page(), address, view="head", layer=layer, head=1, pin="q5", reads=reads)
    page.wait_for_selector(".strip")
    keys = ("entropy", "distance", "received")
    numbers = [float(f"{float(rec.layers[layer][key][0, 1, 5]):.5g}") for key in keys]
    units = ("nats", "tokens", "rows")
    here = [f"{said(n)} {unit}" for n, unit in zip(numbers, units, strict=True)]
    told = strips(page)
    own = slice(0, 2) if reads == "from" else slice(2, 3)
    assert told[own] == here[own]
    others = [text for text in told if text not in told[own]]
    assert len(others) == (1 if reads == "from" else 2)
    assert all(text.startswith("up to ") for text in others)
    which = 2 if reads == "from" else 0  # a click on a strip holds a word of its own text
    strip = page.locator(".strip canvas").nth(which)
    wide = strip.bounding_box()["width"]
    strip.click(position={"x": wide * 2.5 / (9 if which else 6), "y": 10})
    word = "source2" if which else "target2"
    until(page, "document.querySelector('.sentence').textContent.startsWith(arg)", f"‘{word}’ (2)")


def test_home_marks_the_layers_that_cross(new_page, translated):
    rec, address = translated
    page = look(new_page(), address)
    page.wait_for_selector(".rowname")
    names = page.locator(".rowname").all_inner_texts()
    assert names == [
        f"{layer.index}×" if layer.crosses else str(layer.index) for layer in rec.layers
    ]
    for layer in rec.layers:  # the encoder's own, the decoder's own, and across
        look(page, address, view="head", layer=layer.index)
        until(page, "document.querySelector('h1').textContent === arg", f"{layer.index}.0")
        ready(page)


def seen_by_vit(size: int) -> Session:
    """A tiny ViT on an image of patches of 8 × 8."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=size, patch_size=8,
    )  # fmt: skip
    model = transformers.ViTModel(config).eval()
    with torch.no_grad(), mh.record(model, stats=EVERY) as rec:
        model(pixel_values=torch.randn(1, 3, size, size))
    session = Session()
    session.add(rec, "an image", {"model": "tiny ViT"})
    return session


def test_places_are_counted_where_there_are_no_tokens(new_page):
    page = look(new_page(), serve(seen_by_vit(64)))
    assert page.locator(".about span").first.inner_text() == "65 places"
    page.wait_for_selector(".found li")
    told = page.locator(".found li").all_inner_texts()
    assert told[0] == "0 of 2 heads leave over 0.3 of a row on the first place."
    assert seen_by_vit(32).findings("0") == [
        "In a recording of fewer than 32 places habits say nothing."
    ]


def test_an_image_has_patches(new_page):
    session = seen_by_vit(32)
    rec = session.of("0").rec
    page = look(new_page(), serve(session), view="head", sinks="show")
    words = page.locator(".reader .word").all_inner_texts()
    assert words[0] == "class"
    assert words[1:6] == [f"patch·{i // 4},{i % 4}" for i in range(5)]
    assert len(words) == 17
    assert page.locator(".about span").all_inner_texts() == ["17 places", "no text"]
    point(page, 3, 16)
    until(page, "document.querySelector('.pointed').textContent.includes('reads')")
    told = f"‘patch·0,2’ (3) reads {said(float(rec.weights(0, 0)[3, 16]))} from ‘patch·3,3’ (16)"
    assert page.locator(".pointed").inner_text() == told
    page.wait_for_selector(".strip")
    assert [text.split()[-1] for text in strips(page)] == ["nats", "positions", "rows"]  # no tokens
    look(page, page.url.partition("#")[0])
    page.wait_for_selector("text=No loss")


def test_hostile_words_are_only_ever_text(new_page):
    session = tiny_session()
    shown = session.of("0")
    shown.rec.words = [(HOSTILE * 5)[:60]]
    shown.guesses = [[(word, 0.1) for word in HOSTILE[:5]]] * 60
    shown.label = HOSTILE[0]
    shown.about |= {"model": HOSTILE[0], "bos": True, "bos_token": HOSTILE[0]}
    session.add(shown.rec, HOSTILE[0], shown.about)
    name_heads(session)
    page = new_page()
    address = serve(session)
    views = [
        {}, *({"view": "head", "pin": "q28", "tab": tab, "q": 0, "k": 0, "span": 30} for tab in ("text", "names", "cut", "joins", "export")),
        {"view": "compare", "a": "0.0", "b": "0.1", "rb": "1"},
    ]  # fmt: skip
    for view in views:
        look(page, address, **view)
        page.wait_for_selector(".panel, .grid, .scatter")
        if view.get("tab") == "text":
            until(page, "document.querySelector('.sentence').textContent.includes('reads')")
            point(page, 14, 0)
            until(page, "document.querySelector('.pointed').textContent.includes('<img·src=x')")
        if view.get("tab") == "cut":
            page.get_by_role("button", name="Cut this head").click()
            page.wait_for_selector(".panel .reader")
        assert page.locator("img, b >> text=/^$/ ").count() == 0
        assert page.locator("script").count() == 1
        assert page.locator(".about b").inner_text() == HOSTILE[0]
        assert "taken" not in page.title()
