"""Home: what was found, the text with its loss, and every head in a grid."""

import pytest
from pages import ABOUT, look, name_heads, serve, tiny, tiny_session, until
from small_reports import name, verdict


@pytest.fixture
def home(new_page):
    return look(new_page(), tiny()[1])


def test_it_is_always_said_what_is_looked_at(new_page):
    page = new_page()
    for view in ("home", "head", "compare"):
        look(page, tiny()[1], view=view)
        about = page.locator("header .about")
        assert about.locator("b").inner_text() == ABOUT
        assert about.inner_text().split("\n")[1:] == ["60 tokens", "no BOS"]
        assert about.evaluate("e => e.scrollWidth <= e.clientWidth")


def test_the_text_is_there_with_its_loss(home):
    rec = tiny()[0].of("0").rec
    words = home.locator(".home .reader .word")
    assert words.all_inner_texts() == rec.words[0]
    strip = home.locator(".home .strip")
    assert strip.inner_text().split("\n")[0].startswith("loss")
    assert f"up to {rec.loss.nan_to_num(0).max():.3f} nats" in strip.inner_text()
    shades = words.evaluate_all("all => all.map((e) => e.style.backgroundColor)")
    assert shades[0] == ""  # nothing came before it
    strength = [float(s.rpartition(",")[2].strip(" )")) for s in shades[1:]]
    order = sorted(range(59), key=lambda i: rec.loss[0, i + 1])
    assert strength[order[-1]] > strength[order[0]]


def test_every_head_is_a_thumbnail_with_its_marks(home):
    cells = home.locator(".grid .cell")
    until(home, "document.querySelectorAll('.grid .cell').length === 6")
    assert home.locator(".grid .line").count() == 2
    marks = [c.locator(".marks").inner_text() for c in cells.all()]
    assert marks == ["I", "P", "", "", "", "I1"]
    drawn = """all => all.map((c) => new Set(c.getContext("2d").getImageData(0, 0, 32, 32).data).size)"""
    assert min(home.locator(".cell canvas").evaluate_all(drawn)) > 8
    row = tiny()[0].of("0").heads()[5]
    label = cells.nth(5).get_attribute("aria-label")
    assert label == (
        f"head 1.2, entropy {row['entropy']:.3f}, induction 0.84, first token 0.60"
    )  # fmt: skip
    cells.nth(5).click()
    assert home.locator("h1").inner_text() == "1.2"


def test_the_grid_is_framed_sorted_and_filtered(home):
    heads = tiny()[0].of("0").heads()
    home.get_by_label("framed by").select_option("distance")
    home.get_by_label("order").select_option("most")
    order = sorted(heads, key=lambda h: -h["distance"])
    shown = home.locator(".cell .at").all_inner_texts()
    assert shown == [f"{h['layer']}.{h['head']}" for h in order]
    home.get_by_label("order").select_option("least")
    assert home.locator(".cell .at").all_inner_texts() == shown[::-1]
    home.get_by_label("only").select_option("induction")
    assert set(home.locator(".cell .at").all_inner_texts()) == {"0.0", "1.2"}
    home.get_by_label("order").select_option("place")
    assert home.locator(".cell").count() == 6
    assert home.locator(".cell.dim").count() == 4
    home.get_by_role("button", name="2 of 6 shown").click()
    assert home.locator(".cell.dim").count() == 0


def test_findings_are_sentences_with_heads_to_open(home):
    session = tiny()[0]
    told = home.locator(".found li")
    home.wait_for_selector(".found li")
    assert told.all_inner_texts() == session.findings("0")
    links = home.locator(".found li a")
    assert links.all_inner_texts() == ["1.2", "0.0", "0.1"]
    links.nth(2).click()
    assert home.locator("h1").inner_text() == "0.1"


def test_verified_heads_are_buttons(home):
    verified = home.locator(".verified button")
    home.wait_for_selector(".verified")
    assert verified.all_inner_texts() == ["1.2 induction"]  # the other verdict does not hold
    verified.click()
    assert home.locator("h1").inner_text() == "1.2"


def test_three_verified_heads_at_most_each_once(new_page):
    session = tiny_session()
    heads = [(1, 2), (1, 2), (0, 1), (0, 2), (1, 0)]
    session.naming.verdicts = [verdict(name(a, h, "induction")) for a, h in heads]
    page = look(new_page(), serve(session))
    page.wait_for_selector(".verified")
    assert page.locator(".verified button").all_inner_texts() == [
        "1.2 induction", "0.1 induction", "0.2 induction",
    ]  # fmt: skip


APART = """() => {
    const bar = document.querySelector(".running progress"), words = document.createRange();
    words.selectNodeContents(bar.previousSibling);
    return bar.getBoundingClientRect().left - words.getBoundingClientRect().right;
}"""


def test_names_that_come_later_are_shown_without_a_reload(new_page):
    session = tiny_session(named=False)
    session.naming.state, session.naming.message, session.naming.share = "running", "Naming", 0.25
    page = look(new_page(), serve(session))
    page.wait_for_selector(".running")
    assert page.locator(".running progress").get_attribute("value") == "0.25"
    assert page.evaluate(APART) >= 2  # pixels between the words and the bar
    assert page.locator(".verified").count() == 0
    name_heads(session)
    page.wait_for_selector(".verified")
    assert page.locator(".running").count() == 0
    assert page.locator(".cell .marks").all_inner_texts()[5] == "I1"


@pytest.mark.parametrize(
    ("state", "says"),
    [("none", "No names were looked for"), ("failed", "No names: the process died")],
)
def test_it_says_why_there_are_no_names(new_page, state, says):
    session = tiny_session(named=False)
    session.naming.state, session.naming.message = state, "the process died"
    page = look(new_page(), serve(session))
    page.wait_for_selector(f"text={says}")
    look(page, page.url.partition("#")[0], view="head", tab="names")
    panel = page.locator(".panel").inner_text()
    assert says in panel
    assert "earned no name" not in panel  # nobody has looked


def test_a_token_tells_what_it_cost_by_pointer_click_and_key(home):
    rec = tiny()[0].of("0").rec
    told, words = home.locator(".home .told"), home.locator(".home .reader .word")

    def cost(i: int) -> str:
        return f"‘{rec.words[0][i]}’ ({i}) cost {float(f'{rec.loss[0, i]:.4g}'):.3f} nats."

    assert told.inner_text() == ""
    words.nth(7).hover()
    until(home, "document.querySelector('.home .told').textContent.includes('(7)')")
    assert told.inner_text() == cost(7)
    assert told.get_attribute("aria-live") == "polite"
    words.nth(9).click()
    home.mouse.move(5, 5)
    until(home, "document.querySelector('.home .told').textContent.includes('(9)')")
    assert words.nth(9).get_attribute("class") == "word pinned"
    assert f"{float(f'{rec.loss[0, 9]:.4g}'):.3f} nats" in home.locator(".home .strip").inner_text()
    reader = home.locator(".home .reader")
    reader.focus()
    home.keyboard.press("ArrowRight")
    until(home, "document.querySelector('.home .told').textContent.includes('(10)')")
    assert told.inner_text() == cost(10)
    active = reader.get_attribute("aria-activedescendant")  # and it is read out
    assert home.locator(f"#{active}").inner_text() == rec.words[0][10]
    assert home.locator(f"#{active}").get_attribute("aria-selected") == "true"
    home.keyboard.press("ArrowUp")
    until(home, "document.querySelector('.home .told').textContent.includes('(0)')")
    assert told.inner_text().endswith("has no loss: nothing before it tells of it.")
    words.nth(0).click()
    home.mouse.move(5, 5)
    until(home, "document.querySelector('.home .told').textContent === ''")
    assert reader.get_attribute("aria-activedescendant") is None
