"""An LMCache server alone on a booted host: converged, proved by LMCache's own client, switched, taken back, refused.

Host, systemd, network and installers are real; LMCache is the lab's stand-in. The real one is proved by
tests/real/test_server_alone.py. In this order, each on the last. About a minute on two cores.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import REPO, own_lab
from tests.lab.fleet import PREFIX, Fleet, Result, quoted

HOST, OTHER = "h1", "h2"
UNIT = "lmcache-fleet-server.service"
PORT, HTTP = 5555, 8090


@dataclass
class Server:
    """Runs of the playbook on one host, and what tests ask of its server."""

    fleet: Fleet

    def run(self, *options: str, role: str = "lmcache_server", **variables: Any) -> Result:
        """Run the playbook to its end."""
        given = {"l1_size_gb": 1, **variables}
        data = ["--limit", HOST, "--data", f"roles={json.dumps([role])}"]
        return self.fleet.run(*data, *options, limit=300, **given)

    def root(self, command: str, host: str = HOST) -> str:
        """What a command of root's prints on a host."""
        return self.fleet.root(host, command)

    @property
    def pid(self) -> int:
        """The server's process."""
        return int(self.root(f"systemctl show -p MainPID --value {UNIT}"))

    def listens(self, port: int) -> set[str]:
        """Addresses on which a port is open."""
        return {line.split()[3].rpartition(":")[0] for line in self.root(f"ss -Hltn 'sport = :{port}'").splitlines()}

    def reached(self, host: str, port: int) -> bool:
        """Whether another host's connection to a port of ours comes through."""
        place = (self.fleet.lab.host(HOST).address, port)
        ask = f"import socket; print(socket.socket().connect_ex({place!r}))"
        return self.root(f"python3 -c {quoted(ask)}", host) == "0"

    def proved(self, stage: str) -> dict[str, Any]:
        """The serving release's evidence, which reached the control machine."""
        found = self.fleet.evidence(HOST, self.fleet.serving(HOST), stage)
        assert found["ok"], found
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One host for the server, and another that may reach it."""
    with own_lab("server", {HOST: "none", OTHER: "none"}) as lab:
        yield Server(Fleet(lab, tmp_path_factory.mktemp("server") / "artifacts", "deploys/server.py"))


def test_a_host_with_another_role_is_left_alone(server: Server) -> None:
    before = server.fleet.listing(HOST, "/opt /etc")
    result = server.run("-y", "--json", role="engine")
    assert result.code == 0, result.err
    assert result.changed == set()
    assert server.fleet.listing(HOST, "/opt /etc") == before


def test_it_is_proved_by_a_store_and_a_retrieve_before_and_after_the_switch(server: Server) -> None:
    result = server.run("-y", "--json")
    assert result.code == 0, result.err
    for stage in ("offline", "online"):
        evidence = server.proved(stage)
        assert evidence["mode"] == "server"
        assert evidence["tokens"] == {
            "prompt": 1033,
            "stored": 1024,
            "hit_after_reset": 1024,
            "retrieved_after_restart": 1024,
        }
    # On line it was the service that was asked, and off line another process.
    assert server.proved("online")["pids"] == [server.pid]
    assert server.proved("offline")["pids"] == []
    assert server.root(f"ps -o user= -p {server.pid}") == "lmcache"
    assert server.root(f"systemctl is-enabled {UNIT}") == "enabled"
    assert "could not be found" in server.root("systemctl status lmcache-fleet-vllm.service 2>&1 || true")
    names = server.root(f"ls {PREFIX}/current/venv/lib/python3*/site-packages")
    assert "lmcache" in names
    assert "vllm" not in names
    assert server.listens(PORT) == server.listens(HTTP) == {"127.0.0.1"}
    # The sandbox of the unit that stands beside vLLM, as systemd sees it.
    shown = server.root(f"systemctl show -p NoNewPrivileges -p ProtectSystem -p CapabilityBoundingSet -p User {UNIT}")
    assert set(shown.split("\n")) == {
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "CapabilityBoundingSet=",
        "User=lmcache",
    }


def test_again_nothing_changes_by_one_command(server: Server, tmp_path: Path) -> None:
    before = (server.fleet.listing(HOST), server.pid)
    planned = server.run("--dry", "--json")
    assert planned.code == 0, planned.err
    assert planned.planned == set()
    counts = tmp_path / "counts.json"
    data = ["--limit", HOST, "--data", 'roles=["lmcache_server"]', "-y", "--json"]
    again = server.fleet.run(*data, env={"COUNTS": str(counts)}, l1_size_gb=1)
    assert again.code == 0, again.err
    assert again.changed == set(), again.err
    assert list(json.loads(counts.read_text()).values()) == [1]
    assert (server.fleet.listing(HOST), server.pid) == before


def test_an_address_of_its_own_opens_the_data_port_alone_and_a_way_back_closes_it(server: Server) -> None:
    first, address = server.fleet.serving(HOST), server.fleet.lab.host(HOST).address
    assert not server.reached(OTHER, PORT)
    result = server.run("-y", "--json", listen=address)
    assert result.code == 0, result.err
    assert server.fleet.serving(HOST) != first
    server.proved("offline")
    assert server.proved("online")["pids"] == [server.pid]
    assert (server.listens(PORT), server.listens(HTTP)) == ({address}, {"127.0.0.1"})
    assert (server.reached(OTHER, PORT), server.reached(OTHER, HTTP)) == (True, False)
    back = Fleet(server.fleet.lab, server.fleet.artifacts, "deploys/rollback.py").run("--limit", HOST, "-y")
    assert back.code == 0, back.err
    assert server.fleet.serving(HOST) == first
    assert server.listens(PORT) == {"127.0.0.1"}
    server.proved("online")


def test_a_server_that_keeps_nothing_is_refused_and_the_old_one_serves_on(server: Server) -> None:
    serving, pid = server.fleet.serving(HOST), server.pid
    # Healthy, and its memory has no room for a single chunk.
    result = server.run("-y", l1_size_gb=0.0001)
    assert result.code != 0
    assert "no-hit" in result.err
    assert (server.fleet.serving(HOST), server.pid) == (serving, pid)


LEFT = "lmcache-fleet-vllm.service"
LEFT_TEXT = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"


def test_a_port_that_is_taken_fails_on_line_and_what_served_before_serves_again(server: Server) -> None:
    serving = server.fleet.serving(HOST)
    # What an earlier release of another playbook ran is a part of it.
    server.root(f"printf '{LEFT_TEXT}' > /etc/systemd/system/{LEFT}; systemctl enable --quiet --now {LEFT}")
    server.root("systemd-run --quiet --unit taken python3 -m http.server --bind 127.0.0.1 7777")
    try:
        # The HTTP side moves too: whether the old release is back is asked where the old one answers.
        result = server.run("-y", port=7777, http_port=7778)
    finally:
        server.root("systemctl stop taken")
    assert result.code != 0
    assert f"back on {serving}" in result.err
    assert "which failed too" not in result.err
    assert server.fleet.serving(HOST) == serving
    assert server.listens(PORT) == {"127.0.0.1"}
    assert server.root(f"systemctl is-active {LEFT}; systemctl is-enabled {LEFT}").split() == ["active", "enabled"]


def test_a_unit_that_nothing_wants_any_more_is_told_and_goes_without_a_restart(server: Server) -> None:
    before = server.pid
    planned = server.run("--dry", "--diff")
    assert any(LEFT in line and "nothing wants it any more" in line for line in planned.diff[HOST]), planned.err
    result = server.run("-y", "--json")
    assert result.code == 0, result.err
    assert server.pid == before
    assert server.root(f"systemctl is-active {LEFT} || true") == "inactive"
    left = server.root(f"find /etc/systemd -name {LEFT}")
    assert left == ""
    again = server.run("--dry", "--json")
    assert again.planned == set(), again.err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("      server:\n", "      args: [--max-model-len, 8]\n      server:\n", "args: of vLLM"),
        ("      server:\n", "      model: m\n      server:\n", "`model` is given and `connector` is not"),
        ('        host: "{{ listen }}"\n', "        host: 0.0.0.0\n", "name its address in the fleet's own network"),
        ("mode: server}", "mode: mp}", "give it `mode: server`"),
    ],
)
def test_a_playbook_that_asks_for_what_cannot_be_is_refused_before_anything_is_touched(
    server: Server, tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = (REPO / "playbooks/server.yaml").read_text()
    assert old in text
    # Beside its siblings: the inventory's variables are for any of them.
    place = shutil.copytree(REPO / "playbooks", tmp_path / "playbooks") / "server.yaml"
    place.write_text(text.replace(old, new))
    before = server.fleet.listing(HOST, "/opt /etc")
    fleet = Fleet(server.fleet.lab, server.fleet.artifacts, "deploys/apply.py")
    data = ["--limit", HOST, "--data", f"playbook={place}", "--data", 'roles=["lmcache_server"]']
    refused = fleet.run(*data, "-y")
    assert refused.code != 0
    assert said in refused.err
    assert server.fleet.listing(HOST, "/opt /etc") == before
