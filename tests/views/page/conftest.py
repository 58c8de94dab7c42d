"""Settings and models that the tests of the explorer share."""

import pytest
from one_thread import one_thread
from page_server import serving, tiny_session
from small_reports import save_model

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a model of random weights."""
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def served(tiny):
    with serving(tiny_session(tiny)) as running:
        yield running
