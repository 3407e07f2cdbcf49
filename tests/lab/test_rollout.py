"""Rollouts on three lab hosts: a gate that fails, a killed driver, a way back, a reimaged host. In this order.

About thirteen minutes on two cores that are busy with other things (a load of eleven); each builds on the last.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab import services
from tests.lab import balancer
from tests.lab.conftest import REPO, RunningLab
from tests.lab.fleet import PREFIX, UNIT, Fleet, Result, Started, until

HOSTS = ("h1", "h2", "h3")
DEPLOY = "deploys/ascend.py"
DROP_IN = f"/etc/systemd/system/{UNIT}.d"


class Rollouts(Fleet):
    """The fleet, worked on by `lmcache-fleet`."""

    def command(self, what: str, *options: str, **variables: Any) -> list[str]:
        program = str(Path(sys.executable).parent / "lmcache-fleet")
        given = ["--data", f"vars={json.dumps(variables)}"] if variables else []
        return [program, what, *given, *options]

    def call(self, what: str, *options: str, limit: float = 900, **variables: Any) -> Result:
        begin = time.monotonic()
        done = subprocess.run(
            self.command(what, *options, **variables), cwd=REPO, env=self.env(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=limit,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr, time.monotonic() - begin)

    def rollout(self, *options: str, **variables: Any) -> Result:
        return self.call("rollout", "inventories/lab.py", DEPLOY, "--limit", ",".join(HOSTS), *options, **variables)

    @contextmanager
    def rolling(self, log: Path, *options: str, **variables: Any) -> Iterator[Started]:
        """A rollout that goes on beside the test."""
        argv = self.command("rollout", "inventories/lab.py", DEPLOY, *options, **variables)
        with log.open("w") as out:
            process = subprocess.Popen(argv, cwd=REPO, env=self.env(), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        started = Started(process, log)
        try:
            yield started
        finally:
            started.kill()


@pytest.fixture(scope="module")
def fleet(lab: RunningLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollouts]:
    """Three fresh hosts with eight Ascend 910B3 each, and an empty artifact store; see test_ascend.py for REUSE."""
    reuse = os.environ.get("LMCACHE_FLEET_TEST_REUSE")
    if reuse:
        yield Rollouts(lab, Path(reuse))
        return
    before = {name: lab.host(name).profile for name in HOSTS}
    lab.reimage(*HOSTS, profile="910b3x8")
    services.control(lab.lab.paths.lab)
    yield Rollouts(lab, tmp_path_factory.mktemp("artifacts"))
    for profile in set(before.values()):
        lab.reimage(*(name for name in HOSTS if before[name] == profile), profile=profile)


def stages(text: str, host: str) -> list[str]:
    """The stages that a host went through, as a rollout printed them."""
    known = "preparing|prepared|draining|switching|undraining|done|back|failed"
    return re.findall(rf"^[\d:]+ {host} ({known})\b", text, re.MULTILINE)


def test_blank_hosts_are_rolled_out_with_one_build(fleet: Rollouts) -> None:
    result = fleet.rollout("--waves", "1,2,100%", "--max-unavailable", "3")
    assert result.code == 0, result.out + result.err
    at = {(host, stage): result.out.index(f" {host} {stage}") for host in HOSTS for stage in ("preparing", "done")}
    assert at["h1", "done"] < at["h2", "preparing"], "nothing of the others before one has shown that it works"
    assert at["h3", "preparing"] < at["h2", "done"] < at["h3", "done"], "prepared while the wave before is switched"
    for host in HOSTS:
        assert stages(result.out, host) == [
            "preparing", "prepared", "draining", "switching", "undraining", "done",
        ]  # fmt: skip
        assert fleet.active(host)
        assert fleet.evidence(host, fleet.serving(host), "online")["ok"]
    assert result.out.count("building lmcache_ascend") == 1
    plan = fleet.call("plan", "inventories/lab.py", DEPLOY, "--limit", ",".join(HOSTS), "--json")
    assert (plan.code, plan.answer["groups"]) == (0, [])
    again = fleet.rollout()
    assert again.code == 0
    assert all(stages(again.out, host) == ["done"] for host in HOSTS), again.out


def test_a_host_that_fails_its_gate_goes_back_and_the_budget_stops_the_rollout(fleet: Rollouts) -> None:
    old = {host: (fleet.serving(host), fleet.main_pid(host)) for host in HOSTS}
    plan = fleet.call("plan", "inventories/lab.py", DEPLOY, "--limit", ",".join(HOSTS), chunk_size=320)
    assert plan.code == 2
    assert "h1 h2 h3" in plan.out
    assert plan.out.count("+chunk_size: 320") == 1
    new = re.search(rf"release: {old['h1'][0]} → ([0-9a-f]+)", plan.out)
    assert new, plan.out
    # Whatever it is, on h2 the new release doesn't start.
    refuse = f"[Service]\\nExecStartPre=/bin/sh -c 'readlink {PREFIX}/current | grep -vq {new[1]}'\\n"
    fleet.root("h2", f'mkdir -p {DROP_IN}; printf "{refuse}" > {DROP_IN}/refuse.conf; systemctl daemon-reload')
    result = fleet.rollout("--waves", "1,100%", "--max-unavailable", "1", chunk_size=320)
    assert result.code == 1, result.out
    assert stages(result.out, "h1")[-1] == "done"
    assert result.out.index("h1 done") < result.out.index("h2 preparing"), "the second wave waits for the first"
    assert stages(result.out, "h2")[-2:] == ["switching", "back"]
    assert stages(result.out, "h3") == ["preparing", "prepared"], "its turn was after h2"
    assert f"h2: went back (15 service: release {new[1]} failed on line; back on {old['h2'][0]}" in result.out
    assert "STOPPED" in result.out
    assert fleet.serving("h1") == new[1]
    assert fleet.serving("h2") == old["h2"][0]
    assert (fleet.serving("h3"), fleet.main_pid("h3")) == old["h3"]
    assert all(fleet.active(host) for host in HOSTS)


def test_a_killed_driver_is_taken_up_again_and_no_second_one_works_beside_it(fleet: Rollouts, tmp_path: Path) -> None:
    new = fleet.serving("h1")
    kept = fleet.main_pid("h1")
    fleet.root("h2", f"rm -r {DROP_IN}; systemctl daemon-reload")
    wrong = fleet.rollout("--resume", chunk_size=336)
    assert wrong.code == 1
    assert "it had the variables {'chunk_size': 320}" in wrong.err
    options = ("--resume", "--max-unavailable", "1")
    with fleet.rolling(tmp_path / "killed.log", *options, chunk_size=320) as first:
        first.until("h2 15 service: switching to")
        second = fleet.rollout(chunk_size=320)
        assert second.code == 1
        assert re.search(rf"rollout by \S+ pid {first.process.pid} since", second.err), second.err
        first.kill()
    with fleet.rolling(tmp_path / "interrupted.log", *options, chunk_size=320) as third:
        third.until("h2 switching")
        third.interrupt()
        assert third.wait() == 130, third.text()
    text = third.text()
    assert stages(text, "h2")[-1] == "done", "a host that is half-way is brought through"
    assert "not changed: h3" in text
    assert fleet.active("h3")
    last = fleet.call("rollout", "inventories/lab.py", DEPLOY, "--resume", chunk_size=320)
    assert last.code == 0, last.out + last.err
    assert {fleet.serving(host) for host in HOSTS} == {new}
    assert fleet.main_pid("h1") == kept, "what was done was not done again"
    assert all(fleet.active(host) for host in HOSTS)
    done = fleet.call("rollout", "inventories/lab.py", DEPLOY, "--resume", chunk_size=320)
    assert (done.code, "is complete" in done.err) == (1, True)
    journals = list((fleet.artifacts / "rollouts").glob("*/*.jsonl"))
    assert {json.loads(line)["event"] for path in journals for line in path.read_text().splitlines()} >= {
        "begin", "host", "resume", "end",
    }  # fmt: skip


def test_a_way_back_is_one_restart_and_status_and_plan_say_what_holds(fleet: Rollouts) -> None:
    new, pid = fleet.serving("h1"), fleet.main_pid("h1")
    result = fleet.call("rollback", "inventories/lab.py", DEPLOY, "--wave", "1", chunk_size=320)
    assert result.code == 0, result.out + result.err
    old = fleet.serving("h1")
    assert old != new
    assert fleet.main_pid("h1") not in {0, pid}
    assert result.seconds < 120
    assert fleet.active("h1")
    assert "packages" not in result.out
    assert f"took it back from {new}" in result.out
    assert "goes forward again" in result.out
    again = fleet.call("rollback", "inventories/lab.py", "--limit", "h1")
    assert again.code == 0
    assert stages(again.out, "h1") == ["done"], "going back twice is not going forward"
    status = fleet.call("status", "inventories/lab.py", DEPLOY, "--json", "--limit", "h1,h2", chunk_size=320)
    assert status.code == 2
    hosts = status.answer["hosts"]
    assert hosts["h1"]["report"]["current"] == old
    assert hosts["h1"]["report"]["serving"] is True
    assert list(hosts["h1"]["steps"]) == ["15 service"]
    assert "roll forward again" in hosts["h1"]["note"]
    assert hosts["h2"]["state"] == "settled"
    assert all(item["size"] > 0 for item in hosts["h1"]["report"]["releases"])
    nowhere = fleet.call("rollback", "inventories/lab.py", "--limit", "h1", "--to", "nowhere")
    assert nowhere.code == 1
    assert "no release 'nowhere' on the host" in nowhere.out
    forward = fleet.call("rollback", "inventories/lab.py", "--limit", "h1", "--to", new[:6])
    assert forward.code == 0, forward.out
    assert fleet.serving("h1") == new


def test_a_reimaged_host_is_adopted_knowingly_and_converges_without_a_build(fleet: Rollouts) -> None:
    wheels = fleet.wheels()
    fleet.lab.reimage("h3", profile="910b3x8", adopt=False)
    plan = fleet.call("plan", "inventories/lab.py", DEPLOY, "--limit", "h3", chunk_size=320)
    assert plan.code == 1
    assert "lmcache-fleet adopt h3" in plan.out
    known = Path(fleet.lab.lab.reload().known_hosts)
    before = known.read_text()
    refused = fleet.call("adopt", "h3", "inventories/lab.py", "--fingerprint", "SHA256:" + "A" * 43)
    assert refused.code == 1
    shown = fleet.root("h3", "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert shown in refused.err
    assert known.read_text() == before
    adopted = fleet.call("adopt", "h3", "inventories/lab.py", "--fingerprint", shown)
    assert adopted.code == 0, adopted.err
    log = [json.loads(line) for line in (fleet.artifacts / "audit.jsonl").read_text().splitlines()]
    assert [entry["action"] for entry in log[-2:]] == ["adopt refused", "adopt"]
    assert log[-1]["new"] == shown
    assert shown not in log[-1]["old"]
    run = fleet.call("rollout", "inventories/lab.py", DEPLOY, "--limit", "h3", chunk_size=320)
    assert run.code == 0, run.out + run.err
    assert "building lmcache_ascend" not in run.out
    assert fleet.wheels() == wheels
    assert fleet.active("h3")
    assert fleet.serving("h3") == fleet.serving("h2")
    for stage in ("offline", "online"):
        assert fleet.evidence("h3", fleet.serving("h3"), stage)["ok"]


def test_a_host_that_does_not_answer_costs_a_bounded_time_and_is_named(fleet: Rollouts) -> None:
    pid = fleet.lab.lab.init_pid(fleet.lab.host("h3"))
    # Frozen, not off: connections are accepted by the kernel and nobody answers.
    sshd = fleet.root("h3", "systemctl show -p MainPID --value ssh")
    fleet.lab.lab.inside("h3", "kill", "-STOP", sshd)
    try:
        plan = fleet.call("plan", "inventories/lab.py", DEPLOY, "--limit", ",".join(HOSTS), "--json", chunk_size=320)
    finally:
        fleet.lab.lab.inside("h3", "kill", "-CONT", sshd)
    assert pid
    assert plan.seconds < 100
    assert plan.code == 1
    hosts = plan.answer["hosts"]
    assert (hosts["h1"]["state"], hosts["h2"]["state"], hosts["h3"]["state"]) == ("settled", "settled", "failed")
    assert hosts["h3"]["failure"]["step"] == "connect"


def test_signals_are_the_same_for_a_service_manager(fleet: Rollouts, tmp_path: Path) -> None:
    with fleet.rolling(tmp_path / "term.log", "--limit", "h1,h2", "--pause", "1h", chunk_size=352) as run:
        run.until("h1 preparing")
        run.process.send_signal(signal.SIGTERM)
        assert run.wait(60) == 130, run.text()
    assert "INTERRUPTED" in run.text()
    assert fleet.active("h1")


def test_each_host_is_out_of_its_load_balancer_while_it_is_switched(fleet: Rollouts) -> None:
    both = ("h1", "h2")
    balancer.haproxy(fleet, "h3", both)
    until(lambda: balancer.servers(fleet, "h3") == dict.fromkeys(both, "ready down"))
    drain = json.dumps({"haproxy": {"hosts": ["h3"], "backend": "vllm"}, "limit": 60})
    # Until now they listened on loopback alone: the change itself is what lets the load balancer reach them.
    options = ("--waves", "100%", "--max-unavailable", "1", "--data", f"drain={drain}")
    with balancer.watched(fleet, "h3") as seen:
        result = fleet.rollout(*options, chunk_size=352, listen="0.0.0.0")
    assert result.code == 0, result.out + result.err
    assert "left out, as load balancers of others: h3" in result.err
    for host, other in (both, both[::-1]):
        assert stages(result.out, host) == ["preparing", "prepared", "draining", "switching", "undraining", "done"]
        out = [states for states in seen if states[host].startswith("drained")]
        assert out, "it never was out"
        assert all(states[other].startswith("ready") for states in out), "one at a time"
        assert "ready down" not in {states[host] for states in seen[seen.index(out[0]) :]}, "back before it was up"
    assert balancer.servers(fleet, "h3") == dict.fromkeys(both, "ready up")
