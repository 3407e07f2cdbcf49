"""Preflight on a fleet of four kinds: every truth named, the good host ready, and nothing changed.

About a minute on two cores, most of it reimaging.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import faults, services
from tests.lab.conftest import REPO, RunningLab
from tests.lab.fleet import Fleet

PROFILES = {"h1": "910b3x8", "h2": "910b3-8020", "h3": "910b3-olddriver", "h4": "910b3-twocann"}


@pytest.fixture(scope="module")
def fleet(lab: RunningLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four fresh hosts of four kinds; LMCACHE_FLEET_TEST_REUSE leaves them as they are afterwards."""
    before = {name: lab.host(name).profile for name in PROFILES}
    services.control(lab.lab.paths.lab)
    for name, profile in PROFILES.items():
        if before[name] != profile:
            lab.reimage(name, profile=profile)
    yield Fleet(lab, tmp_path_factory.mktemp("artifacts"), "deploys/preflight.py")
    services.control(lab.lab.paths.lab)
    if not os.environ.get("LMCACHE_FLEET_TEST_REUSE"):
        for profile in set(before.values()):
            lab.reimage(*(name for name in PROFILES if before[name] == profile), profile=profile)


def preflight(fleet: Fleet, *options: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Run `lmcache-fleet preflight --json`; its exit status and what it says of each host."""
    program = str(Path(sys.executable).parent / "lmcache-fleet")
    done = subprocess.run(
        [program, "preflight", "inventories/lab.py", "playbooks/ascend.yaml", "--lang", "en", "--json", *options],
        cwd=REPO, env={**fleet.env(), **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout, done.stderr
    hosts: dict[str, Any] = json.loads(done.stdout)["hosts"]
    return done.returncode, hosts


def errors(host: dict[str, Any]) -> set[str]:
    return {item["check"] for item in host["findings"] if item["severity"] == "error"}


def messages(host: dict[str, Any]) -> dict[str, str]:
    return {item["check"]: item["message"] for item in host["findings"]}


def test_each_truth_is_named_on_its_host_and_the_good_one_is_ready(fleet: Fleet) -> None:
    status, hosts = preflight(fleet)
    assert status == 1
    assert {name for name, host in hosts.items() if host["ready"]} == {"h1"}
    assert not [item for item in hosts["h1"]["findings"] if item["severity"] != "info"]
    assert errors(hosts["h2"]) == {"npu-in-use"}
    assert "-8020" in messages(hosts["h2"])["npu-in-use"]
    assert errors(hosts["h3"]) == {"driver-version", "driver-cannot-register-memory"}
    assert "23.0.6" in messages(hosts["h3"])["driver-version"]
    assert errors(hosts["h4"]) == {"cann-version", "nnal-other-version"}
    assert "/usr/local/Ascend/cann-9.1.0" in messages(hosts["h4"])["cann-version"]
    assert "8.5.0" in messages(hosts["h4"])["cann-several"]


def test_the_deploy_asks_each_host_once_changes_nothing_and_fails_only_the_bad(fleet: Fleet, tmp_path: Path) -> None:
    listing = fleet.listing("h1", "/opt /etc /var/lib/dpkg")
    result, counts = fleet.counted(tmp_path / "counts.json", "-y")
    assert result.code != 0
    assert counts == dict.fromkeys(PROFILES, 1)
    failed = {line.split(" | ")[0] for line in result.table.splitlines()}
    assert failed == {"h2", "h3", "h4"}
    assert "upgrade the driver" in result.table
    assert fleet.listing("h1", "/opt /etc /var/lib/dpkg") == listing


@contextmanager
def unit(fleet: Fleet, host: str, name: str, command: str) -> Iterator[None]:
    """Something of somebody else's that runs on a host."""
    fleet.root(host, f"systemd-run --quiet --unit {name} {command}")
    try:
        yield
    finally:
        fleet.root(host, f"systemctl stop {name}", check=False)


def test_what_others_hold_is_named_with_its_holder_while_they_hold_it(fleet: Fleet) -> None:
    hold = "/usr/local/libexec/lmcache-fleet-lab/hold-npu"
    lock = "/var/lib/dpkg/lock-frontend"
    posix_lock = f"import fcntl,time; f=open('{lock}','w'); fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(90)"
    with (
        unit(fleet, "h1", "other-engine", f"{hold} 0 57000 other-engine"),
        unit(fleet, "h1", "other-web", "python3 -m http.server 8000"),
        unit(fleet, "h1", "other-apt", f'python3 -c "{posix_lock}"'),
        unit(
            fleet,
            "h1",
            "other-run",
            "bash -c 'mkdir -p /opt/lmcache-fleet; exec flock /opt/lmcache-fleet/.run.lock sleep 90'",
        ),
    ):
        fleet.root("h1", "for i in $(seq 50); do ss -Hltn | grep -q :8000 && break; sleep 0.1; done")
        status, hosts = preflight(fleet, "--limit", "h1")
    assert status == 1
    said = messages(hosts["h1"])
    assert {"port-taken", "device-memory-short", "run-lock-held"} <= errors(hosts["h1"])
    assert re.search(r"8000 is taken by python3 \(pid \d+", said["port-taken"])
    assert "other-engine" in said["devices-held"]
    assert "python3" in said["package-lock-held"]
    status, hosts = preflight(fleet, "--limit", "h1")
    assert (status, errors(hosts["h1"])) == (0, set())


def test_an_index_that_is_down_is_named_by_host_and_control_machine(fleet: Fleet) -> None:
    services.control(fleet.lab.lab.paths.lab, down=True)
    try:
        status, hosts = preflight(fleet, "--limit", "h1")
    finally:
        services.control(fleet.lab.lab.paths.lab)
    assert status == 1
    assert "index-unreachable" in errors(hosts["h1"])
    assert "index-unreachable-from-control" in messages(hosts["h1"])


def test_a_host_that_cannot_be_reached_is_named_and_the_others_are_judged(fleet: Fleet) -> None:
    faults.stop_sshd(fleet.lab.lab, "h4")
    try:
        status, hosts = preflight(fleet, "--limit", "h1,h4")
    finally:
        faults.start_sshd(fleet.lab.lab, "h4")
    assert status == 1
    assert hosts["h1"]["ready"]
    assert hosts["h4"]["failed"]["step"] == "connect"


def test_a_pin_that_no_index_has_is_named_while_nothing_is_touched(fleet: Fleet) -> None:
    code, hosts = preflight(fleet, "--limit", "h1", "--data", f"vars={json.dumps({'triton_ascend': '9.9'})}")
    assert code == 1
    assert errors(hosts["h1"]) == {"pin-unavailable"}
    assert "triton-ascend==9.9" in messages(hosts["h1"])["pin-unavailable"]
