"""A bounded memory for what took time to make: the least used goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class Cache:
    """Values by key, up to so many bytes; one that is being made is made once and waited for."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._values:  # another made it while we waited
                    return self._values[key][0]
            try:
                value = make()
                self._put(key, value, size(value))
            finally:
                with self._lock:
                    self._making.pop(key, None)
        return value

    def _put(self, key: Hashable, value: Any, size: int) -> None:
        with self._lock:
            _, before = self._values.pop(key, (None, 0))  # two may have made it after all
            self._values[key] = (value, size)
            self.held += size - before
            while self.held > self.most and len(self._values) > 1:
                _, (_, old) = self._values.popitem(last=False)
                self.held -= old

    def drop(self, unwanted: Callable[[Hashable], bool]) -> None:
        with self._lock:
            for key in [key for key in self._values if unwanted(key)]:
                self.held -= self._values.pop(key)[1]
