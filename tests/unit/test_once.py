"""What hosts side by side ask for is made once, and what failed is tried once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lmcache_fleet.once import Once
from lmcache_fleet.problems import Trouble


def test_many_who_ask_at_the_same_time_get_one_result() -> None:
    made: list[str] = []
    once: Once[str, str] = Once()

    def ask(key: str) -> str:
        def make() -> str:
            time.sleep(0.05)
            made.append(key)
            return key.upper()

        return once.get(key, make)

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, "aabbaabbabab")) == list("AABBAABBABAB")
    assert sorted(made) == ["a", "b"]


def test_what_can_not_be_made_is_tried_once_and_said_to_all() -> None:
    tries: list[int] = []
    once: Once[int, int] = Once()

    def fail() -> int:
        tries.append(1)
        raise Trouble("no such thing", "look elsewhere")

    for _ in range(3):
        with pytest.raises(Trouble, match="no such thing") as caught:
            once.get(7, fail)
        assert caught.value.remedy == "look elsewhere"
    assert len(tries) == 1


def test_a_slip_of_ours_is_not_kept() -> None:
    once: Once[int, int] = Once()
    with pytest.raises(ZeroDivisionError):
        once.get(1, lambda: 1 // 0)
    assert once.get(1, lambda: 5) == 5
