"""A plan says each thing once, forgets no host, and its exit status tells what is to be done."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lmcache_fleet.changes import Change
from lmcache_fleet.failures import Failure
from lmcache_fleet.grouping import plan_of
from lmcache_fleet.recording import HostReport, Recorder
from lmcache_fleet.reporters.plan import show_plan

NAMES = [f"h{number}" for number in range(1, 9)]
CHANGES = [(), (Change("vllm", "1", "2"),), (Change("x.yaml", "as is", "changed", ("-a: 1", "+a: 2")),)]


def printed(found: Any) -> str:
    out = io.StringIO()
    show_plan(Console(file=out, width=200), found)
    return out.getvalue()


@given(
    st.dictionaries(
        st.sampled_from(NAMES), st.tuples(st.sampled_from(CHANGES), st.sampled_from(CHANGES), st.booleans()), min_size=1
    )
)
def test_every_host_is_in_one_place_and_hosts_that_agree_are_together(hosts: dict[str, Any]) -> None:
    recorder = Recorder()
    for name, (one, two, fails) in hosts.items():
        recorder.step(name, "01 one", one)
        recorder.step(name, "02 two", two)
        if fails:
            recorder.fail(Failure(name, "02 two", "broken", "mend it"))
    names = [name for name in NAMES if name in hosts]
    found = plan_of(names, recorder)
    grouped = [name for group in found.groups for name in group.hosts]
    failed = [failure.host for failure in found.failures]
    assert sorted([*grouped, *found.settled, *failed]) == names
    assert len({str(group.steps) for group in found.groups}) == len(found.groups)
    assert set(failed) == {name for name, (_, _, fails) in hosts.items() if fails}
    assert found.status == (1 if failed else 2 if grouped else 0)
    answer = json.loads(json.dumps(found.as_json()))
    assert set(answer["hosts"]) == set(hosts)
    text = printed(found)
    assert all(name in text for name in grouped + failed)


def test_texts_are_shown_with_their_diff_once_for_all_hosts_that_agree() -> None:
    recorder = Recorder()
    for name in ("h1", "h2", "h3"):
        recorder.step(name, "13 lmcache_config", CHANGES[2])
    text = printed(plan_of(["h1", "h2", "h3"], recorder))
    assert text.count("+a: 2") == 1
    assert "h1 h2 h3  (1 change each)" in text
    assert "==> 3 hosts with changes pending" in text


def test_a_reimaged_host_and_a_rolled_back_one_are_said_so() -> None:
    recorder = Recorder()
    back = {"who": "me@here", "when": "2026-01-01T00:00:00Z", "from": "bbb"}
    recorder.reports["h1"] = HostReport("bbb", machine_id="new", known_machine_id="old")
    recorder.reports["h2"] = HostReport("bbb", current="aaa", machine_id="m", known_machine_id="m", rolled_back=back)
    recorder.reports["h3"] = HostReport("bbb", current="bbb", machine_id="m", rolled_back=back)
    notes = plan_of(["h1", "h2", "h3"], recorder).notes
    assert "reimaged" in notes["h1"]
    assert "roll forward again" in notes["h2"]
    assert "h3" not in notes


def test_a_failure_says_what_to_do() -> None:
    recorder = Recorder()
    recorder.fail(Failure("h1", "connect", "no route", "look at the [cable]"))
    recorder.fail(Failure("h1", "later", "another", ""))
    text = printed(plan_of(["h1"], recorder))
    assert "h1: failed at connect: no route" in text
    assert "look at the [cable]" in text
    assert "another" not in text
