"""A fleet as they are: two 910B3 hosts, an A3, a 310P3, and three that can't take part. Each test builds on the last.

About four minutes on two cores, most of it the three native builds and the first installs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.conftest import own_lab
from tests.lab.fleet import Fleet

PROFILES = {
    "h1": "910b3x8",
    "h2": "910b3x8",
    "h3": "a3x16",
    "h4": "310p3",
    "h5": "910b3-8020",
    "h6": "910b3-olddriver",
    "h7": "910b3-twocann",
}
GOOD = {"h1": "Ascend910B3", "h2": "Ascend910B3", "h3": "Ascend910_9382"}
# What an operator writes into the host data of the one host with cards that nobody vouches for.
EXPERIMENTAL = {"allow_experimental": True}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Seven fresh hosts of a lab of their own, and an empty artifact store."""
    with own_lab("mixed", PROFILES) as lab:
        yield Fleet(lab, tmp_path_factory.mktemp("artifacts"))


def built_for(fleet: Fleet) -> list[str]:
    """The SoCs for which the store holds a build."""
    manifests = [path / "manifest.json" for path in fleet.artifacts.glob("wheels/lmcache_ascend/*")]
    return sorted(json.loads(path.read_text())["key"]["soc"] for path in manifests)


def test_the_good_hosts_converge_and_the_others_are_refused_each_with_its_own_reason(fleet: Fleet) -> None:
    run = fleet.run("-y", "--json", limit=900)
    assert run.code != 0
    assert {host for host, _ in run.changed} == set(GOOD)
    rows = dict(line.split(" | ", 1) for line in run.table.splitlines())
    assert set(rows) == set(PROFILES) - set(GOOD), run.err
    assert "Ascend310P3 is experimental in this playbook" in rows["h4"]
    assert "allow_experimental" in rows["h4"]
    assert "-8020" in rows["h5"]
    assert "found 23.0.6, wanted >=24.1" in rows["h6"]
    assert "8.5.0" in rows["h7"]
    for host, soc in GOOD.items():
        assert fleet.active(host)
        record = json.loads(fleet.root(host, "cat /opt/lmcache-fleet/current/records/native-lmcache_ascend.json"))
        assert record["key"]["soc"] == soc
        assert fleet.evidence(host, fleet.serving(host), "online")["ok"]
    assert built_for(fleet) == sorted(set(GOOD.values()))
    assert run.err.count("building lmcache_ascend") == 2


def test_an_experimental_soc_takes_part_when_its_host_says_so_and_is_marked(fleet: Fleet) -> None:
    run = fleet.run("-y", "--json", "--limit", "h4", limit=600, **EXPERIMENTAL)
    assert run.code == 0, run.err
    assert any("experimental: nobody vouches for ascend on Ascend310P3" in line for line in run.diff["h4"])
    assert fleet.active("h4")
    assert built_for(fleet) == sorted({*GOOD.values(), "Ascend310P3"})


def test_what_converged_stays_as_it_is_beside_the_refused(fleet: Fleet) -> None:
    run = fleet.run("-y", "--json")
    assert run.code != 0
    assert run.changed == set()
    assert "building" not in run.err


def test_reimaged_hosts_of_each_soc_build_nothing(fleet: Fleet) -> None:
    before = fleet.wheels()
    fleet.lab.reimage("h2", profile="910b3x8")
    run = fleet.run("-y", "--json", "--limit", "h2", limit=600)
    assert run.code == 0, run.err
    assert "building" not in run.err
    assert fleet.wheels() == before
    assert fleet.active("h2")


def test_a_host_without_cards_builds_for_a_named_soc_and_the_fleet_takes_its_wheel(
    fleet: Fleet, tmp_path: Path
) -> None:
    # A machine with the toolkit, and neither card nor driver.
    fleet.lab.reimage("h5", profile="910b3x8")
    fleet.root("h5", "rm -rf /usr/local/sbin/npu-smi /usr/local/bin/npu-smi /usr/local/Ascend/driver/version.info")
    fresh = Fleet(fleet.lab, tmp_path)
    refused = fresh.run("--dry", "--limit", "h5")
    assert refused.code != 0
    assert "h5" in refused.table
    built = fresh.run("-y", "--limit", "h5", limit=600, build_for="Ascend910B3")
    assert built.code == 0, built.err
    assert built_for(fresh) == ["Ascend910B3"]
    assert fresh.run("--dry", "--json", "--limit", "h5", build_for="Ascend910B3").planned == set()
    fleet.lab.reimage("h1", profile="910b3x8")
    taken = fresh.run("-y", "--limit", "h1", limit=600)
    assert taken.code == 0, taken.err
    assert "building" not in taken.err
    assert fresh.active("h1")
