"""What is worked out once a process, however many hosts ask for it side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from lmcache_fleet.problems import Trouble

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ById(Generic[V]):
    """A value as a cache's key, by identity: for what is made once a process and never changed.

    Args:
        value: the value; it lives as long as its key.
    """

    def __init__(self, value: V) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, ById) and other.value is self.value


class Once(Generic[K, V]):
    """Results by key. The first who asks makes one, all others wait for it; what failed fails for all, tried once."""

    def __init__(self) -> None:
        self._made: dict[K, V | Trouble] = {}
        self._turns: dict[K, threading.Lock] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The result of a key.

        Args:
            key: what the result depends on.
            make: makes it; called for the first one who asks.

        Raises:
            Trouble: it can't be made.
        """
        with self._turns.setdefault(key, threading.Lock()):
            if key not in self._made:
                try:
                    self._made[key] = make()
                except Trouble as trouble:
                    self._made[key] = trouble
        made = self._made[key]
        if isinstance(made, Trouble):
            raise made.with_traceback(None)
        return made
