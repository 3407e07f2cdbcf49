"""What is worked out once a process, however many hosts ask for it side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from lmcache_fleet.problems import Trouble

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


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
