"""A browser for the tests of pages, and a watch over what goes wrong in it."""

import os
from pathlib import Path

import pytest

# The shell is the same engine without the browser's own windows: a page in half the time.
CHROMIUMS = [Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium")]
SIZE = {"width": 1280, "height": 720}


@pytest.fixture(scope="module")
def browser():
    """The system's Chromium. One a module: while it is driven, asyncio.run is not to be had."""
    chromium = next((path for path in CHROMIUMS if path.exists()), None)
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("there is no Chromium, and under CI there must be; install chromium.")
        pytest.skip("there is no Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def new_page(browser):
    """Opens pages; afterwards nothing was logged, thrown or refused in any of them."""
    troubles, contexts = [], []

    def make(**more):
        context = browser.new_context(**{"viewport": SIZE, "reduced_motion": "reduce", **more})
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("requestfailed", lambda request: _failed(request, troubles))
        page.on("response", lambda r: troubles.append(r.url) if r.status >= 400 else None)
        page.troubles = troubles  # for whoever expects some
        return page

    yield make
    for context in contexts:
        context.close()
    assert troubles == []


def _failed(request, troubles: list[str]) -> None:
    if request.failure != "net::ERR_ABORTED":  # a view that was left gives its requests up
        troubles.append(f"{request.url}: {request.failure}")
