"""A fixture for folders of tests on small tensors: their conftest imports it."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """On tensors this small, threads only wait for one another: a hundred times longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
