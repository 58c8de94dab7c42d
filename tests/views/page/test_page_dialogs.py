"""Windows over the page: their keys are their own, and who leaves one leaves its work."""

import pytest
from pages import in_map, look, tiny, until


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
