"""`lmcache-fleet rollout` of four hosts behind a real HAProxy under load: no request fails."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.lab import balancer
from tests.lab.balancer import Clients
from tests.lab.conftest import own_lab
from tests.lab.fleet import Result, until
from tests.lab.test_drain import MODEL
from tests.lab.test_rollout import DEPLOY, Rollouts

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.environ.get("LMCACHE_FLEET_CHAOS") != "1", reason="long: scripts/test --chaos runs it"),
]

HOSTS = ("h1", "h2", "h3", "h4")
# A load balancer of others is no part of a rollout.
BALANCER = "h5"
DRAIN = {"haproxy": {"hosts": [BALANCER], "backend": "vllm"}, "limit": 60, "min_up": 2}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rollouts]:
    """Four blank hosts that will answer slowly, and a fifth with HAProxy before them."""
    with own_lab("rolling", {**dict.fromkeys(HOSTS, "910b3x8"), BALANCER: "none"}) as lab:
        fleet = Rollouts(lab, tmp_path_factory.mktemp("artifacts"))
        balancer.slow_answers(fleet, HOSTS)
        balancer.haproxy(fleet, BALANCER, HOSTS)
        yield fleet


def rollout(fleet: Rollouts, *options: str, **variables: object) -> Result:
    drain = ("--data", f"drain={json.dumps(DRAIN)}")
    return fleet.call("rollout", "inventories/lab.py", DEPLOY, *drain, *options, listen="0.0.0.0", **variables)


def course(fleet: Rollouts) -> list[tuple[str, str]]:
    """(host, stage) of the newest journal, in order."""
    path = max(fleet.artifacts.glob("rollouts/*/*.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["host"], line["stage"]) for line in lines if line["event"] == "host"]


def test_blank_hosts_come_into_service_one_and_all(fleet: Rollouts) -> None:
    """None is up yet, and that keeps none from being worked on."""
    done = rollout(fleet, "--waves", "100%", "--max-unavailable", "4")
    assert done.code == 0, done.out + done.err
    assert f"left out, as load balancers of others: {BALANCER}" in done.err
    assert balancer.servers(fleet, BALANCER) == dict.fromkeys(HOSTS, "ready up")


def test_a_rollout_under_load_fails_no_request(fleet: Rollouts) -> None:
    before = {host: fleet.serving(host) for host in HOSTS}
    with Clients(fleet.lab.host(BALANCER).address, MODEL).asking(6) as clients:
        until(lambda: clients.answers["whole"] >= 6)
        done = rollout(fleet, "--waves", "1,50%,100%", "--max-unavailable", "2", chunk_size=512)
    assert done.code == 0, done.out + done.err
    assert clients.wrong == []
    assert clients.answers["whole"] > 50
    for host in HOSTS:
        assert fleet.serving(host) != before[host]
        stages = [stage for name, stage in course(fleet) if name == host]
        assert stages == ["preparing", "prepared", "draining", "switching", "undraining", "done"]
    order = course(fleet)
    assert order.index(("h1", "done")) < order.index(("h2", "draining"))
    assert order.index(("h2", "done")) < order.index(("h3", "draining"))
    # Whoever was drained serves again.
    counts = {host: balancer.generated(fleet, host) for host in HOSTS}
    with Clients(fleet.lab.host(BALANCER).address, MODEL).asking(8) as again:
        until(lambda: again.answers["whole"] >= 16)
    assert again.wrong == []
    assert all(balancer.generated(fleet, host) > counts[host] for host in HOSTS)
