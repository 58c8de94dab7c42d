"""Several texts recorded together: everything on the page is of the one that is shown."""

import csv
import io
import json

import pytest
import torch
from pages import EVERY, in_map, loaded, look, ready, redrawn, said, serve, tiny_session, until

import multihead as mh
from multihead.views.page.session import Session

LENGTH, SHORT = 40, 31  # the second text is padded


@pytest.fixture(scope="module")
def padded():
    """Two texts of one model, the second a shorter one; and behind them another recording."""
    model, tokenizer = loaded()
    torch.manual_seed(3)
    ids = torch.randint(3, 100, (2, LENGTH))
    ids[1, SHORT:] = 2
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [SHORT]])
    with torch.no_grad(), mh.record(model, stats=EVERY, tokenizer=tokenizer) as rec:
        model(ids, attention_mask=real.long())
    session = tiny_session()
    session.shown.clear()
    session.add(rec, "two texts", {"model": "tiny"})
    session.record("The red light on the mole was out and the tower too", 40, "one", lambda *_: 0)
    return session, rec, serve(session)


def second(rec, key: str) -> torch.Tensor:
    """A statistic of the second text, by hand, (head,)."""
    return rec.layers[1][key][1, :, :SHORT].mean(-1)


def test_the_table_is_of_one_text(padded):
    session, rec, _ = padded
    number = next(iter(session.shown))
    every = {batch: session.home(number, batch)["heads"] for batch in (0, 1)}
    for key in ("entropy", "distance", "peak"):
        told = [row[key] for row in every[1] if row["layer"] == 1]
        assert told == pytest.approx(second(rec, key).tolist(), rel=1e-4)
        assert told != [row[key] for row in every[0] if row["layer"] == 1]
    both = rec.heads()
    assert both[3]["entropy"] == pytest.approx(
        float(rec.layers[1]["entropy"][:, 0][rec.real].mean()), rel=1e-4
    )


def test_shares_and_columns_leave_padding_out(padded):
    from multihead.views.page.tiles import Map

    session, rec, _ = padded
    shown = session.of(next(iter(session.shown)))
    for head in range(rec.layers[1].heads):
        whole = rec.weights(1, head, batch=1)[:SHORT]
        which = Map(1, head, 1)
        assert shown.share_on(which, (0, 3)) == pytest.approx(
            float(whole[:, [0, 3]].sum() / SHORT), abs=1e-3
        )
        moved = rec.weights(1, head, batch=1, by="norm")[:SHORT].sum() / SHORT
        assert shown.head(which)["moves"][head] == pytest.approx(float(moved), rel=1e-3)
        told = shown.column(which, 0)["weights"]
        assert told[:SHORT] == pytest.approx(whole[:, 0].tolist(), abs=1e-4)
        assert not any(told[SHORT:])


def test_padding_is_dimmed_and_counts_nowhere(new_page, padded):
    session, rec, address = padded
    number = next(iter(session.shown))
    page = look(new_page(), address, rec=number, batch=1)
    page.get_by_text(f"{SHORT} tokens, {LENGTH - SHORT} of padding", exact=True).wait_for()
    word = page.locator(".reader .word").nth(SHORT)
    assert word.get_attribute("aria-label") == f"{word.inner_text()}, padding"
    assert page.locator(".reader .padding").count() == LENGTH - SHORT
    assert page.locator(".reader .word").nth(SHORT - 1).get_attribute("aria-label") is None
    assert float(word.evaluate("e => getComputedStyle(e).opacity")) < 0.6
    look(page, address, rec=number, batch=1, view="head", layer=1, head=2, tab="text")
    assert page.locator(".reader .padding").count() == LENGTH - SHORT
    assert in_map(page, "shown.padding") == [list(range(SHORT, LENGTH))] * 2
    most = float(rec.layers[1]["entropy"][1, 2, :SHORT].max())
    assert f"up to {said(float(f'{most:.5g}'))} nats" in page.locator(".strip").first.inner_text()
    look(page, address, rec=number, batch=0)
    page.get_by_text(f"{LENGTH} tokens", exact=True).wait_for()
    page.locator(".reader .padding").first.wait_for(state="detached")
    assert page.locator(".padding").count() == 0


def test_strips_are_of_what_is_no_padding(padded):
    from multihead.views.page.tiles import Map

    session, rec, _ = padded
    strips = session.of(next(iter(session.shown))).head(Map(1, 2, 1))["strips"]
    assert [*strips] == ["entropy", "distance", "received"]
    for values in strips.values():
        assert None not in values[:SHORT]
        assert values[SHORT:] == [None] * (LENGTH - SHORT)
    got = rec.weights(1, 2, batch=1)[:SHORT].sum(0)
    assert strips["received"][:SHORT] == pytest.approx(got[:SHORT].tolist(), rel=1e-3)


def test_a_file_leaves_padding_out_as_the_server_does(from_disk, padded):
    _, rec, _ = padded
    only = Session()
    only.add(rec, "two texts", {"model": "tiny"})
    state = {"layer": 1, "head": 2, "pin": "q3", "reads": "to"}
    page = from_disk(only, [(1, 2)], batch=1, view="head", **state)
    page.wait_for_selector("table.top")
    column = rec.weights(1, 2, batch=1)[:SHORT, 3]
    whole = said(float(column.sum()))
    assert f"the weight of {whole} rows" in page.locator(".sentence").inner_text()
    assert page.locator(".reader .padding").count() == LENGTH - SHORT


def test_the_model_is_in_sight_beside_every_choice(new_page, padded):
    session, _, address = padded
    page = new_page()
    page.set_viewport_size({"width": 1280, "height": 720})
    look(page, address, rec=next(iter(session.shown)), batch=1)
    cut_off = page.locator(".about b").evaluate("(b) => b.scrollWidth > b.clientWidth + 1")
    box = page.locator(".about").bounding_box()
    assert not cut_off
    assert box["x"] + box["width"] <= 1280


def test_every_view_and_every_export_is_of_the_text_that_is_shown(new_page, padded, tmp_path):
    session, rec, address = padded
    number = next(iter(session.shown))
    page = look(new_page(), address, rec=number, batch=1, sort="most")
    told = second(rec, "entropy").tolist()
    page.wait_for_selector(".found li")
    assert session.findings(number, 1) != session.findings(number, 0)
    assert page.locator(".found li").all_inner_texts() == session.findings(number, 1)
    cell = page.locator(".cell[aria-label^='head 1.2, entropy']")
    assert f"entropy {said(float(f'{told[2]:.5g}'))}" in cell.get_attribute("aria-label")
    look(page, address, rec=number, batch=1, view="compare", a="1.0", b="1.2", x="peak")
    ready(page)
    row = page.locator("table.both tbody tr").first.locator("td").all_inner_texts()
    assert row == [said(float(f"{told[h]:.5g}")) for h in (0, 2)]
    dot = page.locator("circle[data-at='1.2']").get_attribute("aria-label")
    peak = float(f"{float(second(rec, 'peak')[2]):.5g}")
    assert dot == f"head 1.2: {said(peak)}, {said(float(f'{told[2]:.5g}'))}"
    look(page, address, rec=number, batch=1, view="head", layer=1, head=2, tab="export")
    kept = {}
    for button in ("CSV", "JSON", "HTML"):
        with page.expect_download() as coming:
            page.get_by_role("button", name=button, exact=True).click()
        kept[button] = coming.value.path().read_bytes()
    rows = [*csv.DictReader(io.StringIO(kept["CSV"].decode()))]
    assert [float(r["entropy"]) for r in rows[3:]] == pytest.approx(told, rel=1e-4)
    assert [r["entropy"] for r in json.loads(kept["JSON"])[3:]] == pytest.approx(told, rel=1e-4)
    path = tmp_path / "row.html"
    path.write_bytes(kept["HTML"])
    alone = look(new_page(offline=True), path.as_uri(), view="head", layer=1, head=2, sinks="show")
    assert alone.locator(".about").inner_text().endswith("row 1 of 2")
    assert alone.locator("header select").count() == 0
    assert alone.locator(".reader .word").nth(5).inner_text() == rec.words[1][5]
    shown = alone.evaluate(
        "document.querySelector('.mapbox canvas').headMap.valueAt({query: 20, key: 9})"
    )
    assert shown == pytest.approx(float(rec.weights(1, 2, batch=1)[20, 9]), abs=1e-4)


def uncut_and_cut(rec, by: str) -> torch.Tensor:
    """What each token but the first of the second text costs, by the library's own door."""
    model, _ = loaded()
    ids = rec.ids[1:, :SHORT]
    with torch.no_grad(), mh.ablate(model, heads=[(1, 2)], by=by):
        logits = model(ids).logits[0].float()
    return torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_the_text_that_is_shown_is_cut_without_its_padding(padded, by):
    session, rec, _ = padded
    seen = session.cut(next(iter(session.shown)), [(1, 2)], None, by, batch=1)
    after = uncut_and_cut(rec, by)
    assert seen["loss"][1:SHORT] == pytest.approx(after.tolist(), rel=1e-3)
    assert seen["loss"][SHORT:] == [None] * (LENGTH - SHORT)
    assert seen["mean"] == pytest.approx(float(after.mean()), rel=1e-4)
    assert seen["before"] == pytest.approx(float(rec.loss[1].nanmean()), rel=1e-4)
    assert len(seen["next"]) == len(seen["next_before"]) == LENGTH
    model, tokenizer = loaded()
    with torch.no_grad():
        best = model(rec.ids[1:, :SHORT]).logits[0, 12].topk(5).indices.tolist()
    assert [word for word, _ in seen["next_before"][12]] == [tokenizer.decode([i]) for i in best]
    with pytest.raises(ValueError, match="batch must be 0 to 1"):
        session.cut(next(iter(session.shown)), [(1, 2)], None, by, batch=2)


def test_padding_in_front_is_not_read(padded):
    """The same text, padded on the left, costs what it costs without padding."""
    session, rec, _ = padded
    model, tokenizer = loaded()
    text, front = rec.ids[1, :SHORT], LENGTH - SHORT
    ids = torch.cat([torch.full((front,), 2), text])[None]
    real = (torch.arange(LENGTH) >= front)[None]
    with torch.no_grad(), mh.record(model, stats=EVERY, tokenizer=tokenizer) as left:
        model(ids, attention_mask=real.long())
    number = session.add(left, "padded in front", {"model": "tiny"})
    seen = session.cut(number, [(1, 2)], None, "zero")
    del session.shown[number]
    assert seen["loss"][: front + 1] == [None] * (front + 1)
    expected = uncut_and_cut(rec, "zero").tolist()
    assert seen["loss"][front + 1 :] == pytest.approx(expected, rel=1e-3)


def test_the_page_cuts_the_text_that_is_shown(new_page, padded):
    session, rec, address = padded
    number = next(iter(session.shown))
    page = look(
        new_page(), address, rec=number, batch=1, view="head", layer=1, head=2, tab="cut", pin="q9"
    )
    page.get_by_role("button", name="Cut this head").click()
    page.wait_for_selector(".sentence b")
    mean = float(uncut_and_cut(rec, "zero").mean())
    told = page.locator(".panel .sentence").inner_text()
    assert (
        f"a token costs {said(mean)} nats instead of {said(float(rec.loss[1].nanmean()))}" in told
    )
    assert "after ‘" in page.locator(".links").inner_text()  # next words before and after


def test_another_recording_is_seen_from_its_first_text(new_page, padded):
    session, _, address = padded
    number, other = [*session.shown]
    page = look(new_page(), address, rec=number, batch=1, view="head")
    page.locator("header select").first.select_option(other)
    until(page, "document.querySelector('.about').textContent.includes('12 tokens')")
    assert page.locator("[role=alert]").count() == 0
    assert "batch=" not in page.url
    look(page, address, rec=number, batch=1, view="compare", a="1.0", b="1.2", rb=other)
    ready(page)
    redrawn(page, "m.shown.map.rec === arg && m.shown.map.batch === 0", other, nth=1)
    assert in_map(page, "shown.map.batch") == 1
    assert page.locator(".three figcaption").nth(1).inner_text().endswith("one, row 0")


def test_a_session_of_recordings_alone_says_how_many_rows_each_has(padded):
    session, rec, _ = padded
    first = next(iter(session.shown))
    alone = Session()
    alone.add(rec, "two texts", {})
    assert [r["batches"] for r in alone.home("0", 1)["recordings"]] == [2]
    assert [r["batches"] for r in session.home(first, 0)["recordings"]] == [2, 1]
