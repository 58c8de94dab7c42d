"""Settings that the tests of the monitor share."""

from one_thread import one_thread

__all__ = ["one_thread"]
