"""Waves: every host once, in order, domains apart, never more than asked for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmcache_fleet.rollout.waves import batches, parse_waves, plan_waves

HOSTS = st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True, max_size=40)
SIZES = st.lists(
    st.one_of(st.integers(1, 50).map(str), st.integers(1, 100).map(lambda number: f"{number}%")), min_size=1, max_size=4
)
DOMAINS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.sampled_from(["", "r1", "r2", "r3"]))


@given(HOSTS, SIZES, DOMAINS, st.booleans())
def test_every_host_is_in_one_wave_and_domains_are_kept_apart(
    hosts: list[str], sizes: list[str], domains: dict[str, str], same: bool
) -> None:
    waves = plan_waves(hosts, sizes, domains, same)
    dealt = [name for wave in waves for name in wave]
    assert sorted(dealt) == sorted(hosts)
    assert all(waves)
    assert plan_waves(hosts, sizes, domains, same) == waves
    for wave in waves:
        assert wave == sorted(wave, key=hosts.index)
        used = [domains[name] for name in wave if domains.get(name)]
        assert same or len(used) == len(set(used))


@given(HOSTS, SIZES)
def test_without_domains_the_order_is_the_inventorys_and_sizes_are_met(hosts: list[str], sizes: list[str]) -> None:
    waves = plan_waves(hosts, sizes, {})
    assert [name for wave in waves for name in wave] == hosts
    marks = sorted(
        {min(len(hosts), math.ceil(len(hosts) * int(s[:-1]) / 100) if s.endswith("%") else int(s)) for s in sizes}
    )
    done = 0
    for wave, mark in zip(waves, marks, strict=False):
        done += len(wave)
        assert done == mark


def test_the_usual_waves_of_a_fleet() -> None:
    hosts = [f"n{number:02d}" for number in range(30)]
    assert [len(wave) for wave in plan_waves(hosts, parse_waves("1,10%,50%,100%"), {})] == [1, 2, 12, 15]
    assert [len(wave) for wave in plan_waves(hosts[:4], parse_waves("1,10%,50%,100%"), {})] == [1, 1, 2]
    # What the sizes leave over comes in waves like the last.
    assert [len(wave) for wave in plan_waves(hosts[:7], parse_waves("1,3"), {})] == [1, 2, 2, 2]
    assert [len(wave) for wave in plan_waves(hosts[:3], parse_waves("1"), {})] == [1, 1, 1]


def test_a_rack_of_four_takes_four_waves_unless_told_otherwise() -> None:
    hosts = ["a1", "a2", "a3", "a4", "b1", "b2", "x"]
    domains = {name: name[0] for name in hosts if name != "x"}
    assert plan_waves(hosts, ["100%"], domains) == [["a1", "b1", "x"], ["a2", "b2"], ["a3"], ["a4"]]
    assert plan_waves(hosts, ["1", "100%"], domains)[0] == ["a1"]
    assert plan_waves(hosts, ["100%"], domains, same_domain_ok=True) == [hosts]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a number"),
        ("0", "expected a number"),
        ("1,x%", "expected a number"),
        ("-1", "expected a number"),
        ("101%", "more than the whole"),
        ("50%,10%", "at least as large"),
        ("3,1", "at least as large"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_waves(text)


@given(st.lists(st.text("ab", min_size=1), max_size=20), st.one_of(st.none(), st.integers(1, 5)))
def test_batches_keep_the_order_and_the_limit(wave: list[str], limit: int | None) -> None:
    found = batches(wave, limit)
    assert [name for batch in found for name in batch] == wave
    assert all(limit is None or len(batch) <= limit for batch in found)
