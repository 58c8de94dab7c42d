"""Settings that all tests share."""

from hypothesis import settings

# The same examples each run, so that green means green, and no deadline on a busy machine.
# `pytest --hypothesis-profile=default` searches afresh.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
