"""Windows over the page: their keys are their own, and who leaves one leaves its work."""

import threading
import time

import pytest
from page_server import serving
from pages import in_map, look, serve, tiny, tiny_session, until


@pytest.fixture
def held(new_page):
    """A head with a token that is held."""
    return look(new_page(), tiny()[1], view="head", layer=1, head=2, pin="q9", q=5, k=0, span=20)


@pytest.mark.parametrize("name", ["keys", "Your own text", "Export"])
@pytest.mark.parametrize("focused", [True, False])
def test_escape_leaves_a_window_and_what_is_held_stays(held, name, focused):
    held.get_by_role("button", name=name, exact=True).click()
    held.wait_for_selector("dialog[open]")
    if not focused:
        held.locator("dialog h2").click()
    held.keyboard.press("Escape")
    held.wait_for_selector("dialog", state="detached")
    assert "pin=q9" in held.url
    held.keyboard.press("Escape")  # and now it is the page's own
    until(held, "!location.hash.includes('pin=')")


def test_the_key_that_opens_the_help_closes_it(held):
    held.keyboard.press("?")
    held.wait_for_selector("dialog[open]")
    view = in_map(held, "view")
    for key in ("h", "ArrowRight", "+", "w"):  # the page does not hear of them
        held.keyboard.press(key)
    held.keyboard.press("?")
    held.wait_for_selector("dialog", state="detached")
    assert held.locator("h1").inner_text() == "1.2"
    assert in_map(held, "view") == view


class Slow:
    """A recording that goes on until whoever asked for it has left."""

    def __init__(self, session):
        self.begun, self.left = threading.Event(), threading.Event()
        session.record = self.record

    def record(self, text, tokens, label, tell, typed=False):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                tell("Recording", 0.5)
            except Exception:
                self.left.set()
                raise
            self.begun.set()
            time.sleep(0.01)
        return "0"


@pytest.mark.parametrize("by", ["Escape", "close", "Stop"])
def test_who_leaves_a_recording_ends_it(new_page, by):
    session = tiny_session()
    slow = Slow(session)
    page = look(new_page(), serve(session), view="head", layer=1, head=2, pin="q9")
    page.get_by_role("button", name="Your own text").click()
    page.get_by_role("textbox", name="text").fill("the mole and the tower " * 4)
    page.get_by_role("button", name="Record").click()
    assert slow.begun.wait(20)
    page.get_by_role("button", name="Stop").wait_for()
    if by == "Escape":
        page.keyboard.press("Escape")
    else:
        page.get_by_role("button", name=by, exact=True).click()
    assert slow.left.wait(20)
    if by == "Stop":  # the text stays, to be changed or sent again
        until(page, "!document.querySelector('dialog [role=status]')")
        assert "mole" in page.get_by_role("textbox", name="text").input_value()
        assert page.get_by_role("button", name="Record").is_enabled()
        assert page.locator("dialog [role=alert]").count() == 0
    else:
        page.wait_for_selector("dialog", state="detached")
    assert "pin=q9" in page.url
    assert "rec=" not in page.url


def test_a_server_that_ends_while_it_records_is_said_to_have_ended(new_page):
    session = tiny_session()
    slow = Slow(session)
    page = new_page()
    with serving(session) as served:
        look(page, served.address, view="compare")
        page.get_by_role("button", name="Your own text").click()
        page.get_by_role("textbox", name="text").fill("the mole and the tower " * 4)
        page.get_by_role("button", name="Record").click()
        assert slow.begun.wait(20)
        page.locator("dialog [role=status]").wait_for()
    alert = page.locator("dialog [role=alert]")
    alert.wait_for()
    assert alert.inner_text().startswith("The server does not answer: it has ended.")
    assert "mole" in page.get_by_role("textbox", name="text").input_value()
    assert page.get_by_role("button", name="Record").is_enabled()
    page.troubles.clear()


# ---- the texts to choose from -------------------------------------------------------------------


def type_in(page, text: str) -> None:
    page.get_by_role("button", name="Your own text").click()
    page.get_by_role("textbox", name="text").fill(text)
    page.get_by_role("button", name="Record").click()
    page.wait_for_selector("dialog", state="detached")
    until(page, "document.querySelector('.reader .word')?.textContent === arg", text.split()[0])


def offered(page) -> list[str]:
    return page.locator("header select option").evaluate_all("all => all.map((o) => o.value)")


def test_every_text_that_there_is_can_be_chosen(new_page):
    session = tiny_session()
    page = look(new_page(), serve(session), view="head")
    assert offered(page) == []
    type_in(page, "mole tower was out and the light too")
    assert offered(page) == ["0", "1"]
    page.locator("header select").select_option("0")
    until(page, "document.querySelectorAll('.reader .word').length === 60")
    assert offered(page) == ["0", "1"]
    for n in range(4):  # four are kept, and the first of them goes
        type_in(page, f"w{n} mole tower was out and the light too")
        kept = [*session.shown]
        assert offered(page) == kept
        page.locator("header select").select_option("0")
        until(page, "document.querySelectorAll('.reader .word').length === 60")
        assert offered(page) == kept
    assert kept == ["0", "2", "3", "4", "5"]


def test_names_of_what_is_not_there_are_not_asked_for(new_page):
    page, asked = new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{tiny()[1]}#rec=7")
    page.get_by_role("button", name="Go to the first recording").wait_for()
    assert not [url for url in asked if "names.json" in url]
    page.get_by_role("button", name="Go to the first recording").click()
    page.wait_for_selector(".found li")
    page.troubles.clear()  # one refusal, as was asked for


@pytest.mark.parametrize("view", ["Home", "Compare"])
def test_every_view_says_that_the_server_has_ended(new_page, view):
    page = look(new_page(), tiny()[1], view="head", layer=1, head=2)
    page.context.set_offline(True)
    page.get_by_role("link", name=view, exact=True).click()
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert alert.inner_text().startswith("The server does not answer: it has ended.")
    page.troubles.clear()


def test_a_server_that_ended_is_said_to_have_ended(new_page):
    page = look(new_page(), tiny()[1], view="head", layer=1, head=2)
    page.context.set_offline(True)
    page.locator(".reader .word").nth(11).click()
    page.get_by_text("The server does not answer: it has ended.").first.wait_for()
    page.troubles.clear()
