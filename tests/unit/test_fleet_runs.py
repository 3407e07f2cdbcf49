"""Runs through pyinfra on hosts that aren't there: failures, exceptions and hangs of one are no other's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
import pytest
from pyinfra import host, state
from pyinfra.api import FunctionCommand, Inventory, State, StringCommand, operation
from pyinfra.api.exceptions import DeployError, InventoryError

from lmcache_fleet.changes import Change
from lmcache_fleet.failures import Failure
from lmcache_fleet.fleet import Fleet
from lmcache_fleet.problems import InputError
from lmcache_fleet.recording import recorder_of
from operations.transport import _check_data_first, prepare_pyinfra


def made(count: int, deploy: Callable[[], None], **special: dict[str, Any]) -> Fleet:
    names = [f"@fake/n{number:02d}" for number in range(1, count + 1)]
    data = [(name, {"fake_delay": 0, "fake_delay_jitter": 0, **special.get(name[-3:], {})}) for name in names]
    return Fleet(Inventory((data, {}), racks=(names[:2], {"failure_domain": "r1"})), deploy)


def short(names: Any) -> set[str]:
    return {name[-3:] for name in names}


@operation()
def work(step: str) -> Any:
    recorder = recorder_of(state._get_module())
    assert recorder is not None
    recorder.step(host.name, step, [Change(step, None, "done")])

    def slowly(state: Any, host: Any) -> bool:
        gevent.sleep(host.data.get("slow", {}).get(step, 0))
        if host.data.get("broken") == step:
            recorder.fail(Failure(host.name, step, "it broke", ""))
            return False
        return True

    yield StringCommand("echo", step)
    yield FunctionCommand(slowly, (), {})


def two_steps() -> None:
    if host.data.get("wrong"):
        raise ValueError("a slip")
    for step in host.loop(["first", "second"]):
        work(step, name=step)


def test_thirty_hosts_are_planned_and_nothing_is_run() -> None:
    fleet = made(30, two_steps)
    found = fleet.run(fleet.names)
    assert not found.failures
    assert all(list(found.pending(name)) == ["first", "second"] for name in fleet.names)
    assert len(found.steps) == 30


def test_a_broken_host_and_a_hung_one_cost_the_others_nothing() -> None:
    fleet = made(30, two_steps, n07={"broken": "first"}, n09={"slow": {"first": 3600}}, n11={"slow": {"second": 0.5}})
    began = time.monotonic()
    found = fleet.run(fleet.names, change=True, host_limit=2)
    assert time.monotonic() - began < 120
    assert short(found.failures) == {"n07", "n09"}
    assert found.failures["@fake/n07"].cause == "it broke"
    assert "given up" in found.failures["@fake/n09"].cause
    assert found.failures["@fake/n09"].remedy
    # What failed went no further; the others did all.
    assert list(found.steps["@fake/n07"]) == ["first"]
    assert all(list(found.steps[name]) == ["first", "second"] for name in fleet.names if short([name]) - {"n07", "n09"})


def test_the_same_fleet_can_be_run_again_and_in_parts() -> None:
    fleet = made(6, two_steps)
    for part in (fleet.names[:1], fleet.names[1:4], fleet.names[4:], fleet.names):
        assert set(fleet.run(part, change=True).steps) == set(part)


def test_runs_of_different_hosts_go_on_side_by_side_and_do_not_mix() -> None:
    fleet = made(12, two_steps)
    fleet.override["slow"] = {"first": 0.2, "second": 0.2}
    parts = [fleet.names[start : start + 4] for start in (0, 4, 8)]
    began = time.monotonic()
    runs = [gevent.spawn(fleet.run, part, change=True) for part in parts]
    gevent.joinall(runs, raise_error=True)
    assert time.monotonic() - began < 10
    for part, run in zip(parts, runs, strict=True):
        assert not run.value.failures
        assert {name: list(steps) for name, steps in run.value.steps.items()} == {
            name: ["first", "second"] for name in part
        }
    # One that is given up takes nothing of another with it.
    fleet.override["slow"] = {"second": 1}
    doomed, other = gevent.spawn(fleet.run, parts[0], change=True), gevent.spawn(fleet.run, parts[1], change=True)
    gevent.sleep(0.5)
    doomed.kill()
    found = other.get()
    assert not found.failures
    assert set(found.steps) == set(parts[1])


def test_a_load_balancer_of_hosts_needs_no_part_where_they_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """config.py has pyinfra check hosts' data, the names of load balancers among it, at the beginning of every run."""
    monkeypatch.setattr(State, "init", State.init)
    _check_data_first()
    drain = {"haproxy": {"hosts": ["@fake/n04"], "backend": "vllm"}}
    fleet = made(4, two_steps, n01={"drain": drain}, n02={"drain": drain})
    assert not fleet.run(fleet.names[:3]).failures
    fleet.shell()
    drain["haproxy"]["hosts"] = ["@fake/n05"]
    with pytest.raises(InputError, match="has no host '@fake/n05'"):
        fleet.run(fleet.names[:3])


def test_every_host_failing_is_no_exception() -> None:
    fleet = made(3, two_steps, **{f"n0{number}": {"broken": "first"} for number in (1, 2, 3)})
    assert short(fleet.run(fleet.names, change=True).failures) == {"n01", "n02", "n03"}


def test_a_wrong_playbook_is_one_error_before_anything_is_done() -> None:
    def refused() -> None:
        raise DeployError("playbooks/x.yaml:3:1: unknown key")

    fleet = made(4, refused)
    with pytest.raises(InputError, match=r"x\.yaml:3:1"):
        fleet.run(fleet.names, change=True)


def test_data_that_a_connector_refuses_is_one_error() -> None:
    fleet = made(2, two_steps, n02={"fake_delay": "soon"})
    with pytest.raises(InputError, match="fake_delay"):
        fleet.run(fleet.names)


def test_limits_name_hosts_patterns_and_groups_in_the_inventorys_order() -> None:
    fleet = made(6, two_steps)
    assert fleet.limited([]) == fleet.names
    assert fleet.limited(["@fake/n04,@fake/n01"]) == ["@fake/n01", "@fake/n04"]
    assert fleet.limited(["racks"]) == ["@fake/n01", "@fake/n02"]
    assert fleet.limited(["*n05", "racks"]) == ["@fake/n01", "@fake/n02", "@fake/n05"]
    with pytest.raises(InputError, match="did you mean '@fake/n01'"):
        fleet.limited(["@fake/n011"])
    with pytest.raises(InputError, match="no host"):
        fleet.limited(["racks", "x*"])


def test_data_reaches_the_hosts_and_settings_come_from_every_layer() -> None:
    seen = {}

    def look() -> None:
        seen[host.name] = host.data.get("until")

    fleet = made(3, look)
    fleet.override["until"] = "served"
    fleet.run(fleet.names[:2], data={"until": "prepared"})
    assert seen == dict.fromkeys(fleet.names[:2], "prepared")
    assert [fleet.settings(name).failure_domain for name in fleet.names] == ["r1", "r1", ""]


def test_variables_of_ones_own_playbook_are_known_and_a_slip_is_not(tmp_path: Path) -> None:
    prepare_pyinfra()
    playbook = tmp_path / "mine.yaml"
    playbook.write_text("vars: {shelf: 1}\n")

    def started(variables: dict[str, Any]) -> None:
        data = {"playbook": str(playbook), "vars": variables}
        State(inventory=Inventory((["@fake/n1"], {}), override_data=data))

    started({"shelf": 2, "vllm": "1"})
    with pytest.raises(InventoryError, match=r"vars\.shelve: .*did you mean 'shelf'"):
        started({"shelve": 2})
