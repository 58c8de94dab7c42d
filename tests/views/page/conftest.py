"""Settings and models that the tests of the explorer share."""

from urllib.parse import urlencode

import pytest
from one_thread import one_thread
from page_server import serving, tiny_session
from pages import look, settled
from run_pages import READY
from small_reports import save_model

from multihead.views.page.standalone import standalone

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a model of random weights."""
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def served(tiny):
    with serving(tiny_session(tiny)) as running:
        yield running


@pytest.fixture
def from_disk(new_page, tmp_path):
    """Opens the page of a session as one file, which asks nobody for anything."""
    asked = []

    def open_page(session, heads, batch=0, **state):
        path = tmp_path / "page.html"
        path.write_bytes(standalone(session, "0", heads, batch))
        page = new_page(offline=True)
        page.on("request", lambda request: asked.append(request.url))
        return look(page, path.as_uri(), **state)

    yield open_page
    assert all(url.startswith(("file:", "blob:", "data:")) for url in asked)
    assert len({url for url in asked if url.startswith("file:")}) == 1  # itself alone


@pytest.fixture
def look_at_run(new_page):
    """Opens the page of a training run, and waits until its map is drawn."""

    def open_page(address, selector=READY, scheme="light", **state):
        page = new_page(color_scheme=scheme)
        page.goto(f"{address}#{urlencode(state)}")
        page.wait_for_selector(selector)
        settled(page)
        return page

    return open_page
