"""One LMCache server for engines on two other hosts: each proved with it, and one answers from what the other stored.

Hosts, systemd and the network between them are real; cards, vLLM and LMCache are the lab's. Two minutes on two cores.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_fleet.playbook.load import read_playbook
from tests.lab.conftest import REPO, own_lab
from tests.lab.fleet import Fleet
from tests.lab.systems_site import Systems, systems_site

CACHE, ENGINES = "h1", ("h2", "h3")
BESIDE = '      server: {port: 5555, http_port: 8090, l1_size_gb: "{{ l1_size_gb }}", chunk_size: "{{ chunk_size }}"}\n'
CONNECTOR = "module_path: lmcache.integration.vllm.lmcache_mp_connector}"


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systems]:
    """A host for the server, and two for engines."""
    with (
        own_lab("shared", dict.fromkeys((CACHE, *ENGINES), "h100x8")) as lab,
        systems_site(lab, tmp_path_factory.mktemp("shared")) as site,
    ):
        yield site


@pytest.fixture(scope="module")
def playbook(systems: Systems, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The playbook `cuda` whose engine has no server of its own and names the one on the other host."""
    address = systems.lab.host(CACHE).address
    text = (REPO / "playbooks/cuda.yaml").read_text()
    assert BESIDE in text
    assert CONNECTOR in text
    extra = f'{CONNECTOR[:-1]}, extra: {{lmcache.mp.host: "tcp://{address}", lmcache.mp.port: 5555}}}}'
    # Beside its siblings: the inventory's variables are for any of them.
    place = shutil.copytree(REPO / "playbooks", tmp_path_factory.mktemp("books") / "playbooks") / "cuda.yaml"
    place.write_text(text.replace(BESIDE, "").replace(CONNECTOR, extra))
    return place


def reads(systems: Systems) -> float:
    """Chunks that the server gave out, by its own counter."""
    url = "http://127.0.0.1:8090/metrics"
    text = systems.fleet("server").python(
        CACHE, f"import urllib.request as r; print(r.urlopen('{url}').read().decode())"
    )
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith("lmcache_mp_l1_read_chunks"))


def test_engines_of_two_hosts_are_proved_with_the_server_of_a_third(systems: Systems, playbook: Path) -> None:
    fleet = Fleet(systems.lab, systems.artifacts, "deploys/server.py")
    address = systems.lab.host(CACHE).address
    role = ["--data", 'roles=["lmcache_server"]']
    result = fleet.run("--limit", CACHE, "-y", *role, l1_size_gb=1, listen=address, limit=600)
    assert result.code == 0, result.err
    for host in ENGINES:
        before = reads(systems)
        result = systems.run("cuda", host, file=playbook)
        assert result.code == 0, result.err
        evidence = systems.fleet("cuda").evidence(host, systems.fleet("cuda").serving(host), "online")
        assert evidence["ok"], evidence
        # Nothing on this host can tell what the other one stored; that it gave it back, both can.
        assert evidence["tokens"]["stored"] is None
        assert evidence["tokens"]["retrieved_after_restart"] == 1024
        assert reads(systems) > before
        units = systems.fleet("cuda").root(host, "systemctl list-units --plain --no-legend 'lmcache-fleet-*'")
        assert "lmcache-fleet-vllm.service" in units
        assert "lmcache-fleet-server.service" not in units


def test_an_engine_answers_from_what_another_host_stored(systems: Systems, playbook: Path) -> None:
    first, other = ENGINES
    known = read_playbook(REPO / "playbooks/cuda.yaml").data["vars"]
    variables = {name: value for name, value in systems.places.items() if name in known}
    fleet = Fleet(systems.lab, systems.artifacts, "deploys/verify_cross_host.py")
    hosts = ["--limit", first, "--limit", other, "--data", f"playbook={playbook}"]
    result = fleet.run(*hosts, "-y", limit=300, **variables)
    assert result.code == 0, result.err
    name = systems.fleet("cuda").serving(other)
    path = systems.artifacts / "evidence" / other / name / f"cross-host-{first}.json"
    assert json.loads(path.read_text())["ok"]
