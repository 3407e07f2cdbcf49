"""The other two upstream lines on one host, one after the other: converged, proven, and again without a change.

About two and a half minutes on two cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import services
from tests.lab.conftest import RunningLab
from tests.lab.fleet import PREFIX, Fleet

SERVER = "lmcache-fleet-server.service"


@pytest.fixture(scope="module")
def fleet(lab: RunningLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One fresh host with eight Ascend 910B3, and an empty artifact store."""
    reuse = os.environ.get("LMCACHE_FLEET_TEST_REUSE")
    if reuse:
        yield Fleet(lab, Path(reuse))
        return
    before = lab.host("h1").profile
    lab.reimage("h1", profile="910b3x8")
    services.control(lab.lab.paths.lab)
    yield Fleet(lab, tmp_path_factory.mktemp("artifacts"))
    lab.reimage("h1", profile=before)


def proven(fleet: Fleet, deploy: str) -> str:
    """Run a line's deploy to its end, hold its evidence to what it must say, and run it again: nothing may change."""
    fleet.playbook = deploy
    result = fleet.run("-y", "--json", "--limit", "h1")
    assert result.code == 0, result.err
    release = fleet.serving("h1")
    assert fleet.active("h1")
    for stage in ("offline", "online"):
        evidence = fleet.evidence("h1", release, stage)
        assert evidence["ok"], evidence
    before = (fleet.listing("h1"), fleet.main_pid("h1"))
    again = fleet.run("-y", "--json", "--limit", "h1")
    assert again.code == 0, again.err
    assert again.changed == set()
    assert fleet.run("--dry", "--json", "--limit", "h1").planned == set()
    assert (fleet.listing("h1"), fleet.main_pid("h1")) == before
    return release


def installed(fleet: Fleet, release: str) -> set[str]:
    """Names and versions of what a release holds."""
    names = fleet.root("h1", f"ls {PREFIX}/releases/{release}/venv/lib/python3*/site-packages").split()
    return {name.removesuffix(".dist-info") for name in names if name.endswith(".dist-info")}


def test_what_cannot_be_had_is_told_before_anything_is_changed(fleet: Fleet) -> None:
    fleet.playbook = "deploys/ascend-dsv4.py"
    before = fleet.root("h1", f"find {PREFIX} /etc/systemd/system | sort", check=False)
    run = fleet.run("-y", "--json", "--limit", "h1", triton_ascend="9.9")
    assert run.code != 0
    (row,) = run.table.splitlines()
    host, step, cause, remedy = row.split(" | ")
    assert (host, step) == ("h1", "06 packages triton-ascend")
    assert "triton-ascend==9.9" in cause
    assert "ascend/simple" in cause
    assert "check extra_index_urls" in remedy
    assert fleet.root("h1", f"find {PREFIX} /etc/systemd/system | sort", check=False) == before


def test_the_branch_for_lmcache_045_is_proven(fleet: Fleet) -> None:
    release = proven(fleet, "deploys/ascend-dsv4.py")
    assert "lmcache-0.4.5" in installed(fleet, release)
    assert "discard_partial_chunks" in fleet.root("h1", f"cat {PREFIX}/current/bin/vllm")
    expected = fleet.root("h1", f"cat {PREFIX}/current/records/dependencies.json")
    assert "vllm wants torch==2.11.0" in expected


def test_mp_mode_follows_on_the_same_host_and_is_proven(fleet: Fleet) -> None:
    before = fleet.releases("h1")
    release = proven(fleet, "deploys/ascend-mp.py")
    assert before < fleet.releases("h1"), "the line before is still there to go back to"
    assert "lmcache-0.5.6" in installed(fleet, release)
    assert fleet.root("h1", f"systemctl is-active {SERVER}") == "active"
    assert "lmcache_mp_connector" in fleet.root("h1", f"cat {PREFIX}/current/bin/vllm")
    # The wheel of the index is a CUDA build; what is installed was built here, without CUDA.
    tags = fleet.root("h1", f"cat {PREFIX}/current/venv/lib/python3*/site-packages/lmcache-0.5.6.dist-info/WHEEL")
    assert "manylinux" not in tags
