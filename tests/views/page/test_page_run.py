"""A training run in the browser: every control, key, number and colour of it."""

import re

import pytest
from page_server import serving
from pages import said, settled
from run_pages import PIXEL, READY, expected, stands, step_of, values
from small_runs import (
    CELLS,
    STEPS,
    WARNED,
    cells,
    entropy,
    loss,
    top_score,
    write_run,
)

from multihead.views.page.runs import Run


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with serving(Run(write_run(tmp_path_factory.mktemp("runs") / "small"))) as served:
        yield served.address


@pytest.fixture
def look(look_at_run, address):
    return lambda **state: look_at_run(address, **state)


def test_the_numbers_are_those_of_the_file(look):
    page = look(step=300)
    assert values(page) == expected(entropy, 300)
    page.get_by_label("coloured by").select_option("max_score")
    assert values(page) == expected(top_score, 300)
    legend = page.get_by_label("legend of the heads").inner_text()
    assert said(top_score(0, 0, 0)) in legend
    assert said(top_score(600, 1, 2)) in legend
    assert page.locator(".curve .name-of").all_inner_texts() == [
        f"train_loss {said(loss(300) + 0.1)}",
        f"held_out_loss {said(loss(300) + 0.3)}",
        f"at the samples {said(loss(300))}",
    ]
    own = page.locator(".curve figcaption").nth(1).inner_text()
    assert own.endswith(f"head 0.0 {said(top_score(300, 0, 0))}")
    page.locator('.rcell[data-at="1.2"]').click()
    assert page.locator(".curve figcaption").nth(1).inner_text().endswith(
        f"head 1.2 {said(top_score(300, 1, 2))}"
    )  # fmt: skip
    assert page.locator("header .about").inner_text().split("\n")[0] == "small"
    page.wait_for_url(re.compile("stat=max_score"))


def test_buttons_slider_and_curves_go_through_time(look):
    page = look()
    stands(page, 600)
    for name, step in (("back", 500), ("first", 0), ("forward", 100), ("last", 600)):
        page.get_by_role("button", name=name, exact=True).click()
        stands(page, step)
        assert values(page) == expected(entropy, step)
    assert page.get_by_role("button", name="forward", exact=True).is_disabled()
    page.get_by_role("slider").fill("2")
    stands(page, 200)
    for nth in (0, 1):
        box = page.locator(".curve svg").nth(nth).bounding_box()
        page.mouse.click(box["x"] + 0.15 * box["width"], box["y"] + 0.5 * box["height"])
        stands(page, 0)
        page.mouse.click(box["x"] + 0.95 * box["width"], box["y"] + 0.5 * box["height"])
        stands(page, 600)


def test_keys_go_through_time_and_from_head_to_head(look):
    page = look(step=300)
    for key, step in (
        ("ArrowLeft", 200),
        ("ArrowRight", 300),
        ("Home", 0),
        ("PageDown", 100),
        ("End", 600),
        ("PageUp", 500),
    ):
        page.keyboard.press(key)
        stands(page, step)
    for key, head in (
        ("d", "0.1"),
        ("s", "1.1"),
        ("d", "1.2"),
        ("d", "1.2"),
        ("w", "0.2"),
        ("a", "0.1"),
        ("w", "0.1"),
    ):
        page.keyboard.press(key)
        page.locator(".headmap h1", has_text=head).wait_for()
        assert page.locator('.rcell[aria-pressed="true"]').get_attribute("data-at") == head
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("ArrowLeft")  # the keys are the dialog's now
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    stands(page, 500)
    page.get_by_role("slider").focus()
    page.keyboard.press("ArrowLeft")  # once, by the slider itself
    stands(page, 400)


def test_it_plays_pauses_and_begins_anew(look):
    page = look()
    page.get_by_label("speed").select_option("fast")
    page.keyboard.press("Tab")  # away from the choice, whose own keys these would be
    page.locator("h1").click()
    page.keyboard.press("Space")
    page.get_by_role("button", name="pause").wait_for()
    page.locator(".step-of", has_text=re.compile("^step [12]00$")).wait_for()  # from the beginning
    page.get_by_role("button", name="play").wait_for()  # at the end it stops
    stands(page, 600)
    page.get_by_label("speed").select_option("slow")
    page.get_by_role("button", name="play").click()
    page.locator(".step-of", has_text=re.compile("^step 0$")).wait_for()
    page.get_by_role("button", name="pause").click()
    at = step_of(page)
    page.wait_for_timeout(300)
    assert step_of(page) == at < 600


def test_a_warning_leads_to_its_step_and_head(look):
    page = look(step=0)
    assert page.locator(".warnings h2").inner_text() == "3 warnings"
    listed = page.locator(".warnings button").all_inner_texts()
    assert [" ".join(one.split()) for one in listed] == [
        "step 300 1.2 entropy fell to 0.02", "step 500 the gradient was clipped",
        "step 500 0.4 logits explode"]  # fmt: skip
    assert len(listed) == sum(map(len, WARNED.values()))
    page.get_by_role("button", name="entropy fell").click()
    stands(page, 300)
    page.locator(".headmap h1", has_text="1.2").wait_for()
    assert page.locator(".rcell.warned").get_attribute("data-at") == "1.2"
    page.get_by_role("button", name="gradient was clipped").click()
    stands(page, 500)
    assert page.locator(".headmap h1").inner_text() == "1.2"  # it was of no head
    assert page.locator(".warnings [aria-current=step]").count() == 2
    assert page.locator(".curve .mark").count() == 2


def test_the_map_of_a_head_and_its_history(look):
    page = look(step=400, layer=1, head=2)
    big = page.locator(".big canvas")
    box = big.bounding_box()
    for row, column in ((5, 3), (5, 5)):
        page.mouse.move(
            box["x"] + (column + 0.5) * box["width"] / CELLS,
            box["y"] + (row + 0.5) * box["height"] / CELLS,
        )
        value = float(cells(400, 1, "largest")[2, row, column])
        page.get_by_text(
            f"row {row}, column {column} of {CELLS}: {said(value)}", exact=True
        ).wait_for()
    assert (
        said(float(cells(600, 1, "largest").max()))
        in page.get_by_label("legend of the maps").inner_text()
    )
    page.get_by_label("cells show the").select_option("mean")
    page.mouse.move(box["x"] + 3.5 * box["width"] / CELLS, box["y"] + 5.5 * box["height"] / CELLS)
    page.get_by_text(said(float(cells(400, 1, "mean")[2, 5, 3]))).first.wait_for()
    history = page.locator(".history button")
    assert history.all_inner_texts() == [f"{step:,}" for step in STEPS if step != 200]
    page.get_by_role("button", name="go to step 500").click()
    stands(page, 500)
    assert page.locator(".history .here").inner_text() == "500"
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    page.keyboard.press("PageDown")
    stands(page, 200)  # which has none
    page.get_by_text("step 100, the last map before 200: queries down, keys right").wait_for()


def test_maps_of_one_range_grow_darker(look):
    page = look(layer=0, head=0)
    page.wait_for_selector(".history canvas[data-ready=true]")
    drawn = page.locator(".history canvas")
    shades = [sum(drawn.nth(n).evaluate(PIXEL, [3, 3])[:3]) for n in range(6)]
    assert shades == sorted(shades, reverse=True)
    assert shades[0] > shades[-1] + 100
    assert len({tuple(drawn.nth(n).evaluate(PIXEL, [0, 7])) for n in range(6)}) == 1  # 0 in all


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_have_room_for_all(look, scheme):
    page = look(scheme=scheme, step=300)
    assert page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    ) == [1280, 720]
    outside = """() => [...document.querySelectorAll("header *, footer *, .tools *, .big, .big *, .history, .curves *")]
      .filter((e) => { const b = e.getBoundingClientRect(); return b.width && (b.right > 1280.5 || b.bottom > 720.5); }).map((e) => e.outerHTML.slice(0, 80))"""
    assert page.evaluate(outside) == []

    def bright() -> bool:
        paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        lowest = page.locator(".big canvas").evaluate(PIXEL, [0, 7])
        found = {sum(map(int, re.findall(r"\d+", paper)[:3])) > 384, sum(lowest[:3]) > 384}
        assert len(found) == 1
        return found.pop()

    assert bright() == (scheme == "light")
    page.get_by_role("button", name="light or dark").click()
    page.wait_for_url(re.compile(f"theme={'dark' if scheme == 'light' else 'light'}"))
    assert bright() == (scheme == "dark")
    page.reload()
    page.wait_for_selector(READY)
    settled(page)
    assert bright() == (scheme == "dark")


def test_an_address_is_a_view(look):
    state = {"step": "300", "stat": "max_score", "layer": "1", "head": "2", "pool": "mean"}
    page = look(**state)

    def shown() -> list:
        choices = page.locator("select").evaluate_all("all => all.map((s) => s.value)")
        return [choices, values(page), page.locator("h1").inner_text(), step_of(page)]

    first = shown()
    assert first[0][:2] == ["max_score", "mean"]
    assert first[1:] == [expected(top_score, 300), "1.2", 300]
    page.reload()
    page.wait_for_selector(READY)
    settled(page)
    assert shown() == first
    page.goto(
        f"{page.url.partition('#')[0]}#step=320&layer=99&head=9&stat=nothing&pool=sum&view=odd"
    )
    stands_near = page.locator(".step-of", has_text=re.compile("^step 300$"))
    stands_near.wait_for()
    page.locator("h1", has_text="1.2").wait_for()
    assert values(page) == expected(entropy, 300)
