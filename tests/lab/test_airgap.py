"""A site without a network: one host, converged from indexes, blanked, cut off, and converged from a bundle.

Each test builds on the last. About four minutes on two cores, most of it the native build and two first installs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import faults, services
from tests.lab.conftest import REPO, own_lab
from tests.lab.fleet import PREFIX, Fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One fresh host of a lab of its own, and an empty artifact store."""
    with own_lab("airgap", {"h1": "910b3x8"}) as lab:
        yield Fleet(lab, tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="module")
def connected(fleet: Fleet) -> dict[str, str]:
    """What a network makes of the host: its release, proved off-line, and each installed distribution's version."""
    run = fleet.run("-y", "--data", "until=prepared")
    assert run.code == 0, run.err
    return installed(fleet)


@pytest.fixture(scope="module")
def bundle(fleet: Fleet, connected: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for the host, made with a network."""
    root = tmp_path_factory.mktemp("bundle") / "b"
    done = command(fleet, "bundle", "playbooks/ascend.yaml", "-o", str(root), "--inventory", "inventories/lab.py")
    assert done.returncode == 0, done.stderr
    return root


@pytest.fixture(scope="module")
def site(fleet: Fleet, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The same host, blank and without a way out, and a control machine that never had a network."""
    fleet.lab.reimage("h1", profile="910b3x8")
    lab = fleet.lab.lab
    with faults.air_gapped(lab, "h1"):
        services.control(lab.paths.lab, down=True)
        yield Fleet(fleet.lab, tmp_path_factory.mktemp("site"))
        services.control(lab.paths.lab)


def command(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "lmcache_fleet.cli", *arguments]
    return subprocess.run(argv, cwd=REPO, env=fleet.env(), capture_output=True, text=True, check=False, timeout=300)


def installed(fleet: Fleet) -> dict[str, str]:
    program = (
        f"import json, glob; places = glob.glob('{PREFIX}/releases/*/venv/lib/python3*/site-packages'); "
        "from importlib.metadata import distributions as found; "
        "print(json.dumps({item.name: item.version for item in found(path=places)}))"
    )
    (release,) = fleet.releases("h1")
    versions: dict[str, str] = json.loads(fleet.python("h1", program))
    return {"release": release, **versions}


def test_an_altered_bundle_is_refused_before_anything_is_touched(site: Fleet, bundle: Path) -> None:
    victim = next(bundle.glob("files/*/vllm-*.whl"))
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    try:
        verified = command(site, "bundle", "--verify", str(bundle))
        run = site.run("-y", "--data", f"bundle={bundle}")
    finally:
        victim.write_bytes(whole)
    assert verified.returncode == 1
    assert run.code != 0
    for text in (verified.stderr, run.err):
        assert [line for line in text.splitlines() if "sha256 differs" in line and victim.name in line]
    assert site.root("h1", f"ls -A {PREFIX} 2>/dev/null", check=False) == ""
    assert command(site, "bundle", "--verify", str(bundle)).returncode == 0


def test_a_plan_from_the_bundle_names_the_same_release_and_touches_nothing(
    site: Fleet, bundle: Path, connected: dict[str, str]
) -> None:
    done = command(site, "plan", "inventories/lab.py", site.playbook, "--json", "--data", f"bundle={bundle}")
    assert done.returncode == 2, done.stdout + done.stderr
    host = json.loads(done.stdout)["hosts"]["h1"]
    assert {"00 bundle", "01 system_packages", "15 service"} <= set(host["steps"])
    assert connected["release"] in json.dumps(host["steps"]["02 release"])
    assert site.root("h1", f"ls -A {PREFIX} 2>/dev/null", check=False) == ""
    assert faults.outside_tries(site.lab.lab, "h1") == faults.Tries(0, 0)


def test_a_blank_host_without_a_network_gets_the_same_release_and_tries_no_connection(
    site: Fleet, bundle: Path, connected: dict[str, str]
) -> None:
    lab = site.lab.lab
    asked = len(services.accesses(lab.paths.lab))
    run = site.run("-y", "--json", "--data", f"bundle={bundle}", limit=600)
    assert run.code == 0, run.err
    assert installed(site) == connected
    assert site.serving("h1") == connected["release"]
    assert site.active("h1")
    assert site.evidence("h1", connected["release"], "online")["ok"]
    assert {("h1", "00 bundle"), ("h1", "01 system_packages")} <= run.changed
    # The extension came with the bundle.
    assert "building" not in run.err
    assert faults.outside_tries(lab, "h1") == faults.Tries(0, 0)
    assert len(services.accesses(lab.paths.lab)) == asked


def test_a_second_run_from_the_bundle_asks_the_host_once_and_changes_nothing(
    site: Fleet, bundle: Path, tmp_path: Path
) -> None:
    before = site.listing("h1"), site.main_pid("h1")
    run, counts = site.counted(tmp_path / "counts.json", "-y", "--json", "--data", f"bundle={bundle}")
    assert run.code == 0, run.err
    assert run.changed == set()
    assert counts == {"h1": 1}
    assert (site.listing("h1"), site.main_pid("h1")) == before


def test_a_rollout_from_the_bundle_carries_a_change_through_and_tries_no_connection(site: Fleet, bundle: Path) -> None:
    lab, old = site.lab.lab, site.serving("h1")
    asked = len(services.accesses(lab.paths.lab))
    done = command(
        site, "rollout", "inventories/lab.py", site.playbook, "--data", f"bundle={bundle}",
        "--data", 'vars={"chunk_size": 512}',
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.serving("h1") != old
    assert site.active("h1")
    assert faults.outside_tries(lab, "h1") == faults.Tries(0, 0)
    assert len(services.accesses(lab.paths.lab)) == asked


def test_the_counter_counts(site: Fleet) -> None:
    site.root("h1", "timeout 2 getent hosts example.org; timeout 2 bash -c ': >/dev/tcp/192.0.2.1/80'", check=False)
    site.root("h1", f"timeout 2 bash -c ': >/dev/tcp/{site.lab.lab.state.gateway}/8611'", check=False)
    tries = faults.outside_tries(site.lab.lab, "h1")
    assert tries is not None
    assert tries.packets >= 3
