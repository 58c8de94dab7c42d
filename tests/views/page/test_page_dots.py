"""The dots of Compare: many that are brushed, and numbers that are nearly the same."""

import torch
from pages import look, recorded, serve, tiny_session

from multihead.views.page.session import Session


def test_of_many_that_are_brushed_it_says_how_many_more_there_are(new_page):
    torch.manual_seed(2)
    session = Session()
    session.add(recorded(torch.randn(70, 12, 8), torch.randn(70, 12, 8)), "m", {"model": "by hand"})
    brushed = "_".join(f"0.{h}" for h in range(63))
    page = look(new_page(), serve(session), view="compare", filter=f"in:{brushed}")
    page.wait_for_selector(".brushed")
    assert page.locator(".brushed button").count() == 60
    assert "and 3 heads more" in page.locator(".brushed").inner_text()
    page.get_by_role("link", name="all of them on Home").click()
    page.wait_for_selector(".home")
    assert page.locator(".cell.dim").count() == 7
    few = look(new_page(), serve(session), view="compare", filter="in:0.1_0.2")
    assert "more" not in few.locator(".brushed").inner_text()


def test_ticks_have_the_digits_that_tell_them_apart(new_page):
    session = tiny_session()
    shown = session.of("0")
    heads = [
        {**row, "entropy": 29.74 + 0.002 * i, "distance": 1e-4 * i}
        for i, row in enumerate(shown.heads())
    ]
    shown.heads = lambda batch=0: heads
    page = look(new_page(), serve(session), view="compare", x="distance", y="entropy")
    across = list(page.locator(".scatter text[text-anchor=middle]").all_text_contents())[:-2]
    up = page.locator(".scatter text[text-anchor=end]").all_text_contents()
    assert len(set(up)) == len(up) > 3
    assert {"29.742", "29.744"} < set(up)
    assert len(set(across)) == len(across) > 3
