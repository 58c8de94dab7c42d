"""Settings that all tests share."""

import os
import signal

import pytest
import torch
from hypothesis import settings

# Without a GPU our kernels run step by step in Triton's interpreter, which must be said before
# anything imports Triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A job in the background ignores Ctrl-C, and so would the processes in which tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each run, so that green means green, and no deadline on a busy machine.
# `pytest --hypothesis-profile=default` searches afresh.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config):
    config.addinivalue_line("markers", "xdist_group: tests of one worker, in --dist loadgroup")


def pytest_collection_modifyitems(items):
    """Tests of one problem share the kernels that a GPU compiles for it."""
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("name")
        if isinstance(name, str):
            item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture
def by_three(monkeypatch):
    """Three groups of warps wherever they have registers, however few rows there are."""
    choice = "multihead.attention.fused.hopper_work.three_end_sooner"
    monkeypatch.setattr(choice, lambda *_, **__: True)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to train in, with the settings of a model of a moment."""
    from train_command import TINY  # which imports the library: after what is said above

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path
