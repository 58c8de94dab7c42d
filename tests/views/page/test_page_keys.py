"""All of it by keys alone: the grid of heads, the words of a text, the lasso, the brush."""

import pytest
from pages import in_map, look, point, tiny, tiny_session, until


def focused(page) -> str:
    return page.evaluate("document.activeElement.dataset.at || document.activeElement.tagName")


@pytest.fixture
def home(new_page):
    return look(new_page(), tiny()[1])


# ---- the grid of heads --------------------------------------------------------------------------


def test_the_grid_is_one_stop_and_arrows_go_in_two_directions(home):
    assert home.locator(".grid .cell[tabindex='0']").count() == 1
    home.get_by_label("only").focus()
    home.keyboard.press("Tab")
    assert focused(home) == "0.0"
    for key, there in (
        ("ArrowRight", "0.1"), ("ArrowDown", "1.1"), ("ArrowDown", "1.1"), ("ArrowLeft", "1.0"),
        ("End", "1.2"), ("ArrowRight", "1.2"), ("ArrowUp", "0.2"), ("Home", "0.0"),
        ("Control+End", "1.2"), ("Control+Home", "0.0"), ("ArrowUp", "0.0"), ("ArrowDown", "1.0"),
        ("ArrowRight", "1.1"),
    ):  # fmt: skip
        home.keyboard.press(key)
        assert focused(home) == there, key
    cell = home.locator(".cell[data-at='1.1']")
    outline = cell.evaluate(
        "e => [getComputedStyle(e).outlineStyle, getComputedStyle(e).outlineWidth]"
    )
    assert outline == ["solid", "3px"]
    home.keyboard.press("Tab")
    assert focused(home) != "1.2"  # out of the grid, at once
    home.keyboard.press("Shift+Tab")
    assert focused(home) == "1.1"  # and back to where one was
    home.keyboard.press("Enter")
    until(home, "document.querySelector('h1')?.textContent === '1.1'")
    home.keyboard.press("h")
    home.wait_for_selector(".home")
    assert home.locator(".cell[tabindex='0']").get_attribute("data-at") == "1.1"


def test_sorted_heads_are_gone_through_line_by_line(home):
    home.get_by_label("order").select_option("most")
    order = home.locator(".cell .at").all_inner_texts()
    home.locator(".cell[tabindex='0']").focus()
    home.keyboard.press("Home")
    for there in order[1:]:
        home.keyboard.press("ArrowRight")
        assert focused(home) == there
    home.get_by_label("only").select_option("induction")  # the one that was held is not there now
    assert home.locator(".cell[tabindex='0']").count() == 1
    home.evaluate("document.querySelector('.grid').style.width = '60px'")  # a head a line
    home.locator(".cell[tabindex='0']").focus()
    first = focused(home)
    home.keyboard.press("ArrowDown")
    assert {first, focused(home)} == {"0.0", "1.2"}


# ---- the lasso ----------------------------------------------------------------------------------


@pytest.fixture
def cutting(new_page):
    return look(new_page(), tiny()[1], view="head", layer=1, head=2, tab="cut", sinks="show")


def test_links_in_a_box_made_by_keys_are_cut_as_by_cut(cutting):
    point(cutting, 20, 2)
    until(cutting, "document.querySelector('.mapbox canvas').headMap.cross?.query === 20")
    cutting.keyboard.press("l")
    until(cutting, "document.activeElement.tagName === 'CANVAS'")
    for key, times in (("ArrowDown", 4), ("ArrowUp", 1), ("ArrowRight", 1), ("Shift+ArrowDown", 9),
                       ("Shift+ArrowUp", 1), ("Shift+ArrowRight", 4)):  # fmt: skip
        for _ in range(times):
            cutting.keyboard.press(key)
    assert in_map(cutting, "lasso.points") == [[23, 3], [23, 8], [32, 8], [32, 3]]
    words = tiny()[0].of("0").rec.words[0]
    box = (
        f"rows ‘{words[23]}’ (23) to ‘{words[31]}’ (31), keys ‘{words[3]}’ (3) to ‘{words[7]}’ (7)"
    )
    assert cutting.locator(".pointed").inner_text().startswith(f"Box: {box}.")
    assert cutting.locator("h1").inner_text() == "1.2"  # arrows were the box's
    assert cutting.get_by_role("button", name="Cut the links inside").is_disabled()
    cutting.keyboard.press("Enter")
    until(cutting, "document.querySelector('.pointed').textContent.startsWith('Taken')")
    with cutting.expect_request("**/cut.json") as asked:
        cutting.get_by_role("button", name="Cut the links inside").press("Enter")
    assert asked.value.post_data_json["lasso"] == [[23, 3], [23, 8], [32, 8], [32, 3]]
    cutting.wait_for_selector(".sentence b")
    cutting.locator(".mapbox canvas").focus()
    cutting.keyboard.press("ArrowLeft")  # they are the heads' again
    until(cutting, "document.querySelector('h1').textContent === '1.1'")


def test_what_was_pointed_at_before_does_not_take_the_words_of_a_box(cutting):
    point(cutting, 20, 2)  # which is told of a moment later
    cutting.keyboard.press("l")
    cutting.wait_for_timeout(150)
    assert cutting.locator(".pointed").inner_text().startswith("Box: rows")
    point(cutting, 21, 2)
    cutting.keyboard.press("Enter")
    cutting.wait_for_timeout(150)
    assert cutting.locator(".pointed").inner_text().startswith("Taken: rows")


def test_a_box_that_is_begun_while_the_page_is_being_drawn_stays(cutting):
    """What follows a drawing comes some time after it, and knew of no box then."""
    cutting.evaluate(
        """async () => { document.querySelector("[role=tab]").click();
        for (let i = 0; i < 9; i++) await null; // drawn, and no more
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "l", bubbles: true })); }"""
    )
    cutting.wait_for_timeout(150)
    assert len(in_map(cutting, "lasso.points")) == 4
    cutting.keyboard.press("Shift+ArrowDown")
    assert cutting.locator(".pointed").inner_text().startswith("Box: rows")


def test_a_box_begins_in_the_middle_stays_on_the_map_and_is_in_sight(new_page):
    page = look(
        new_page(), tiny()[1], view="head", layer=1, head=2, q=5, k=0, span=20, pin="q9", tab="text"
    )
    page.keyboard.press("L")
    page.wait_for_selector("text=Cut this head")  # what it is for
    assert in_map(page, "lasso.points") == [[15, 10], [15, 11], [16, 11], [16, 10]]
    for _ in range(30):
        page.keyboard.press("Shift+ArrowDown")
    assert in_map(page, "lasso.points")[2] == [46, 11]
    view = in_map(page, "view")
    assert view["q"] <= 45 < view["q"] + view["span"]
    for _ in range(60):
        page.keyboard.press("ArrowRight")
    assert in_map(page, "lasso.points")[2] == [46, 60]
    page.keyboard.press("Escape")
    until(page, "document.querySelector('.mapbox canvas').headMap.lasso === null")
    assert "pin=q9" in page.url  # the token is held as before
    assert page.get_by_role("button", name="Lasso links").is_visible()


def test_without_a_model_the_key_says_why_there_is_none_to_cut(from_disk):
    page = from_disk(tiny_session(), [(1, 2)], view="head", layer=1, head=2)
    page.keyboard.press("l")
    page.wait_for_selector("text=To cut, the model must be at hand")
    assert in_map(page, "lasso") is None


# ---- the brush ----------------------------------------------------------------------------------


def test_dots_are_one_stop_and_arrows_go_to_the_next(new_page):
    page = look(new_page(), tiny()[1], view="compare")
    assert page.locator("circle[tabindex='0']").count() == 1
    heads = {f"{h['layer']}.{h['head']}": h for h in tiny()[0].of("0").heads()}
    page.locator("circle[tabindex='0']").focus()
    seen = {focused(page)}
    for key in ("PageDown",) * 5:
        page.keyboard.press(key)
        seen.add(focused(page))
    assert seen == set(heads)
    for key, stat, sign in (
        ("ArrowLeft", "distance", -1), ("ArrowRight", "distance", 1),
        ("ArrowUp", "entropy", 1), ("ArrowDown", "entropy", -1),
    ):  # fmt: skip
        before = heads[focused(page)][stat]
        page.keyboard.press(key)
        there = heads[focused(page)][stat]
        edge = all(sign * (h[stat] - before) <= 0 for h in heads.values())
        assert sign * (there - before) > 0 or edge


def test_a_brush_by_keys_grows_and_is_taken_back(new_page):
    page = look(new_page(), tiny()[1], view="compare")
    page.locator("circle[tabindex='0']").focus()
    page.keyboard.press("Shift+ArrowLeft")
    page.wait_for_selector("text=1 head brushed")
    for key in ("Left", "Right", "Up", "Down"):
        for _ in range(30):
            page.keyboard.press(f"Shift+Arrow{key}")
    page.wait_for_selector("text=6 heads brushed")
    assert page.locator("rect.brush").count() == 1
    for key in ("Left", "Right", "Up", "Down"):
        for _ in range(30):
            page.keyboard.press(f"Control+Shift+Arrow{key}")
    page.wait_for_selector("text=1 head brushed")
    mine = focused(page)
    assert page.locator(".brushed button").all_inner_texts() == [mine]
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('.brushed')")
    assert page.locator("rect.brush").count() == 0
    page.keyboard.press("Enter")
    until(page, "location.hash.includes('a=')")
    assert f"a={mine}" in page.url


def test_the_help_tells_of_them(new_page):
    page = look(new_page(), tiny()[1], view="compare")
    page.keyboard.press("?")
    told = page.locator("dialog").inner_text()
    for said in ("a box of links to cut", "Shift with arrows brushes", "the heads on Home"):
        assert said in told
    assert page.locator("dialog").evaluate("e => e.scrollHeight <= e.clientHeight")
