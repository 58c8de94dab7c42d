"""The signed difference of two heads or recordings: what is largest in it, and whose words it tells."""

import torch
from pages import in_map, look, recorded, redrawn, serve, until

from multihead.views.page.session import Session


def test_enter_goes_to_where_the_two_differ_most_whichever_has_more(new_page):
    query, key = torch.zeros(2, 60, 8), torch.zeros(2, 60, 8)
    query[1, 40, 0], key[1, 7, 0] = 20.0, 1.0  # 1 reads one key there, and 0 all of them alike
    session = Session()
    session.add(recorded(query, key), "hand", {"model": "by hand"})
    page = look(new_page(), serve(session), view="compare", a="0.0", b="0.1")
    redrawn(page, "m.shown.minus", nth=2)
    page.locator(".mapbox canvas").nth(2).focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('.pointed')[2].textContent.includes(' = −')")
    cross = in_map(page, "cross", nth=2)
    assert (cross["query"], cross["key"]) == (40, 7)
