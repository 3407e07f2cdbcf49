"""The way back: which release, how it was put into service, and what goes when it is removed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts.releases import ReleaseSizes, ServiceRecords
from lmcache_fleet.inventory import host_settings
from lmcache_fleet.problems import InputError
from lmcache_fleet.release import HostReleases, NoWayBack, ReleaseState, rollback_target
from operations.service import _taken_back


def on_host(current: str | None, previous: str | None, *sealed: str, half: str = "", **more: Any) -> HostReleases:
    releases = {name: ReleaseState(name, sealed=True) for name in sealed}
    if half:
        releases[half] = ReleaseState(half)
    return HostReleases(current=current, previous=previous, releases=releases, **more)


def test_the_way_back_is_to_what_served_before() -> None:
    assert rollback_target(on_host("b", "a", "a", "b"), None) == "a"


def test_going_back_twice_is_not_going_forward() -> None:
    back = on_host("a", "b", "a", "b", rolled_back={"release": "a", "from": "b"})
    assert rollback_target(back, None) == "a"
    # An old mark, from before the host went forward again, says nothing.
    stale = on_host("c", "a", "a", "b", "c", rolled_back={"release": "a", "from": "b"})
    assert rollback_target(stale, None) == "a"


def test_a_release_is_named_by_its_beginning() -> None:
    host = on_host("bbb1", "aaa1", "aaa1", "aaa1-r2", "bbb1")
    assert rollback_target(host, "bbb") == "bbb1"
    assert rollback_target(host, "aaa1") == "aaa1"
    with pytest.raises(NoWayBack, match="may be aaa1 or aaa1-r2"):
        rollback_target(host, "aa")


@pytest.mark.parametrize(
    ("host", "wanted", "message"),
    [
        (on_host("a", None, "a"), None, "no release served before"),
        (on_host("b", "a", "b"), None, "a is no longer on the host"),
        (on_host("b", "a", "b", half="a"), None, "a was never proved"),
        (on_host("b", "a", "a", "b", half="c"), "c", "c was never proved"),
        (on_host("b", "a", "a", "b"), "x", "no release 'x'"),
        (on_host(None, None), None, "no release served before"),
    ],
)
def test_where_there_is_no_way_back_it_is_said_which_there_are(
    host: HostReleases, wanted: str | None, message: str
) -> None:
    with pytest.raises(NoWayBack, match=message) as caught:
        rollback_target(host, wanted)
    assert "on the host: " in caught.value.remedy


@given(
    st.sets(st.text("ab", min_size=1, max_size=4), max_size=6),
    st.sets(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.one_of(st.none(), st.text("ab", min_size=1, max_size=4)),
    st.one_of(st.none(), st.text("ab", min_size=1, max_size=4)),
)
def test_whatever_is_chosen_is_there_and_proved(
    sealed: set[str], half: set[str], previous: str | None, wanted: str | None
) -> None:
    releases = {name: ReleaseState(name, sealed=name in sealed) for name in sealed | half}
    host = HostReleases(current=next(iter(sorted(sealed)), None), previous=previous, releases=releases)
    try:
        name = rollback_target(host, wanted)
    except NoWayBack as error:
        assert error.remedy
    else:
        assert name in sealed
        assert name.startswith(wanted or previous or "")


def test_each_release_says_how_it_was_put_into_service(tmp_path: Path) -> None:
    def read() -> dict[str, Any]:
        fact = ServiceRecords()
        done = subprocess.run(
            ["sh", "-c", fact.command(str(tmp_path / "it's"))], capture_output=True, text=True, check=True
        )
        lines = done.stdout.splitlines()
        return fact.process(lines) if lines else {}

    assert read() == {}
    record = {"units": {"x.service": "[Unit]\nDescription='a'\tb\n"}, "start_timeout": 3}
    for name in ("aaa", "bbb", "ccc"):
        (tmp_path / "it's/releases" / name).mkdir(parents=True)
    (tmp_path / "it's/releases/aaa/service.json").write_text(json.dumps(record))
    (tmp_path / "it's/releases/bbb/service.json").write_text(json.dumps(record, indent=1))
    assert read() == {"aaa": record, "bbb": record}


def test_files_shared_with_another_release_are_not_freed(tmp_path: Path) -> None:
    one, two = tmp_path / "releases/one", tmp_path / "releases/two"
    for folder in (one, two):
        folder.mkdir(parents=True)
    big = 1 << 20
    (one / "shared").write_bytes(b"x" * big)
    os.link(one / "shared", two / "shared")
    (one / "own").write_bytes(b"x" * big)
    (one / "twice").write_bytes(b"x" * big)
    os.link(one / "twice", one / "again")
    fact = ReleaseSizes()
    done = subprocess.run(["sh", "-c", fact.command(str(tmp_path))], capture_output=True, text=True, check=True)
    sizes = fact.process(done.stdout.splitlines())
    assert 3 * big <= sizes["one"][0] < 3.1 * big
    assert 2 * big <= sizes["one"][1] < 2.1 * big
    assert big <= sizes["two"][0] < 1.1 * big
    assert sizes["two"][1] < 0.1 * big


def test_a_plain_run_after_a_way_back_says_that_it_goes_forward() -> None:
    mark = {"release": "a", "from": "b", "who": "me@here", "when": "2026-01-01T00:00:00+00:00"}
    text = _taken_back(on_host("a", "b", "a", "b", rolled_back=mark))
    assert text == "me@here took it back from b at 2026-01-01T00:00:00+00:00: this goes forward again"
    assert _taken_back(on_host("b", "a", "a", "b", rolled_back=mark)) == ""
    assert _taken_back(on_host("b", "a", "a", "b")) == ""


def test_how_far_a_run_goes_is_checked_like_all_data() -> None:
    assert host_settings("h", [{"until": "prepared", "rollback_to": "abc"}]).until == "prepared"
    with pytest.raises(InputError, match="until"):
        host_settings("h", [{"until": "half"}])
    with pytest.raises(InputError, match="rollback_to"):
        host_settings("h", [{"rollback_to": ""}])
