"""A fleet behind a real load balancer under load: upgraded host by host without losing a request, or losing some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import balancer
from tests.lab.balancer import NGINX_FILE, Clients
from tests.lab.conftest import REPO
from tests.lab.fleet import UNIT, Fleet, until
from tests.lab.test_ascend import HOSTS, fleet

__all__ = ["fleet"]

# Two restarts and a proof on each of four hosts.
pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.environ.get("LMCACHE_FLEET_CHAOS") != "1", reason="long: scripts/test --chaos runs it"),
]

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
# The load balancer is on a host that also serves: its own upgrade doesn't touch it.
BALANCER = "h1"
VARIABLES = {"listen": "0.0.0.0"}
HAPROXY = {"haproxy": {"hosts": [BALANCER], "backend": "vllm"}, "limit": 60, "min_up": 2}
NGINX = {"nginx": {"hosts": [BALANCER], "file": NGINX_FILE}, "limit": 60}


@pytest.fixture(scope="module")
def serving(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet, serving on all addresses and slowly."""
    balancer.slow_answers(fleet, HOSTS)
    done = fleet.run("-y", **VARIABLES)
    assert done.code == 0, done.err
    until(lambda: all(fleet.healthy(host) for host in HOSTS))
    yield fleet
    balancer.usual_answers(fleet, HOSTS)


def command(
    fleet: Fleet, verb: str, host: str, settings: dict[str, object], check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run `lmcache-fleet drain` or `undrain`."""
    program = str(Path(sys.executable).parent / "lmcache-fleet")
    argv = [program, verb, "inventories/lab.py", host, "--data", f"drain={json.dumps(settings)}"]
    done = subprocess.run(argv, cwd=REPO, env=fleet.env(), capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0 or not check, done.stderr
    return done


def upgrade(fleet: Fleet, hosts: tuple[str, ...], settings: dict[str, object], **variables: object) -> None:
    """Each host in turn: out of service, another release, back in service."""
    for host in hosts:
        command(fleet, "drain", host, settings)
        done = fleet.run("-y", "--limit", host, **VARIABLES, **variables)
        assert done.code == 0, done.err
        command(fleet, "undrain", host, settings)


def test_four_hosts_behind_haproxy_are_upgraded_and_no_request_fails(serving: Fleet) -> None:
    fleet = serving
    balancer.haproxy(fleet, BALANCER, HOSTS)
    before = {host: fleet.serving(host) for host in HOSTS}
    with Clients(fleet.lab.host(BALANCER).address, MODEL).asking(6) as clients:
        until(lambda: clients.answers["whole"] >= 6)
        upgrade(fleet, HOSTS, HAPROXY, chunk_size=512)
    assert clients.wrong == []
    assert clients.answers["whole"] > 50
    for host in HOSTS:
        assert fleet.serving(host) != before[host]
        assert fleet.active(host)
    # Whoever was drained serves again.
    counts = {host: balancer.generated(fleet, host) for host in HOSTS}
    with Clients(fleet.lab.host(BALANCER).address, MODEL).asking(8) as again:
        until(lambda: again.answers["whole"] >= 16)
    assert again.wrong == []
    assert all(balancer.generated(fleet, host) > counts[host] for host in HOSTS)


def test_without_a_drain_requests_do_fail(serving: Fleet) -> None:
    """The twin of the test above: the same clients do notice a restart that nobody was told about."""
    fleet = serving
    balancer.haproxy(fleet, BALANCER, HOSTS)
    with Clients(fleet.lab.host(BALANCER).address, MODEL).asking(6) as clients:
        until(lambda: clients.answers["whole"] >= 6)
        fleet.root("h2", f"systemctl restart {UNIT}")
        until(lambda: fleet.healthy("h2"))
    assert clients.wrong
    assert any("cut off" in text or "IncompleteRead" in text for text in clients.wrong), clients.wrong


def test_a_host_whose_requests_do_not_end_is_put_back_or_cut_off_as_told(serving: Fleet) -> None:
    fleet = serving
    balancer.haproxy(fleet, BALANCER, HOSTS)
    # Requests that go past the load balancer: it has no session of them, and the engine knows better.
    stream = "import http.client as h, json\n" + (
        "c = h.HTTPConnection('127.0.0.1', 8000); b = {'prompt': 'x', 'max_tokens': 900, 'stream': True}\n"
        "c.request('POST', '/v1/completions', json.dumps(b)); c.getresponse().read()"
    )
    fleet.root("h2", f"systemd-run --quiet --collect --unit long-request python3 -c {balancer.quoted(stream)}")
    time.sleep(1)
    refused = command(fleet, "drain", "h2", {**HAPROXY, "limit": 3}, check=False)
    assert refused.returncode == 1
    assert "1 in the engine after 3 s; the host is back in service" in refused.stderr
    assert "at_limit: go_on" in refused.stderr
    told = command(fleet, "drain", "h2", {**HAPROXY, "limit": 3, "at_limit": "go_on"})
    assert "going on, as `drain.at_limit` says" in told.stderr
    fleet.root("h2", f"systemctl stop {UNIT}")
    late = command(fleet, "undrain", "h2", {**HAPROXY, "up_limit": 2}, check=False)
    assert late.returncode == 1
    assert "the health check doesn't see vllm/h2 up within 2 s: L4CON" in late.stderr
    fleet.root("h2", f"systemctl start {UNIT}")
    command(fleet, "undrain", "h2", HAPROXY)


def test_two_hosts_behind_nginx_are_upgraded_and_no_request_fails(serving: Fleet) -> None:
    fleet = serving
    balancer.nginx(fleet, BALANCER, ("h2", "h3"))
    before = {host: fleet.serving(host) for host in ("h2", "h3")}
    text = fleet.root(BALANCER, f"cat {NGINX_FILE}")
    with Clients(fleet.lab.host(BALANCER).address, MODEL).asking(4) as clients:
        until(lambda: clients.answers["whole"] >= 4)
        upgrade(fleet, ("h2", "h3"), NGINX, chunk_size=320)
        # A configuration that nginx refuses is not left behind, and nobody is drained.
        fleet.root(BALANCER, "echo 'broken on purpose;' > /etc/nginx/conf.d/other.conf")
        refused = command(fleet, "drain", "h2", NGINX, check=False)
        fleet.root(BALANCER, "rm /etc/nginx/conf.d/other.conf")
    assert clients.wrong == []
    assert clients.answers["whole"] > 20
    assert all(fleet.serving(host) != release for host, release in before.items())
    assert refused.returncode == 1
    assert "nginx refuses the new file, and the old one is back" in refused.stderr
    assert fleet.root(BALANCER, f"cat {NGINX_FILE}") == text
