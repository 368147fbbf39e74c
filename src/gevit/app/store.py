"""What the server remembers: the most recent things, and never more of them than was agreed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """A least-recently-used cache; threads may share it.

    >>> recent = Recent[str, int](2)
    >>> recent["a"], recent["b"] = 1, 2
    >>> recent.get("a")
    1
    >>> recent["c"] = 3
    >>> recent.get("b") is None, recent.get("a")
    (True, 1)
    """

    def __init__(self, most: int) -> None:
        """Remember at most so many."""
        self.most = most
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """What is remembered of `key`."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def __setitem__(self, key: Key, value: Value) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            self._forget(self.most)

    def make_room(self) -> list[tuple[Key, Value]]:
        """Forget what would be forgotten if one more came, and say what it was."""
        with self._lock:
            return self._forget(self.most - 1)

    def _forget(self, most: int) -> list[tuple[Key, Value]]:
        return [self._entries.popitem(last=False) for _ in range(len(self._entries) - most)]
