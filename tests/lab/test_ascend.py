"""The Ascend playbook on a fleet of four: fresh hosts, drift, failures, killed runs. In this order, each on the last.

About eight minutes on two cores, of which the first test's fresh hosts take one and a half.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import ascend, services
from tests.lab.conftest import RunningLab
from tests.lab.fleet import PREFIX, UNIT, UV, Fleet

HOSTS = ("h1", "h2", "h3", "h4")
CONVERGED_BYTES = 100_000
UNIT_FILE = f"/etc/systemd/system/{UNIT}"


@pytest.fixture(scope="module")
def fleet(lab: RunningLab, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Four fresh hosts with eight Ascend 910B3 each, and an empty artifact store.

    LMCACHE_FLEET_TEST_REUSE names a store: hosts and store stay then, for work on single tests.
    """
    reuse = os.environ.get("LMCACHE_FLEET_TEST_REUSE")
    if reuse:
        yield Fleet(lab, Path(reuse))
        return
    left = _left_by_the_module_before
    if not left:
        profiles = {name: lab.host(name).profile for name in HOSTS}
        left.append((profiles, Fleet(lab, tmp_path_factory.mktemp("artifacts"))))
        lab.reimage(*HOSTS, profile="910b3x8")
    services.control(lab.lab.paths.lab)
    before, fleet = left[0]
    yield fleet
    services.control(lab.lab.paths.lab)
    if next_module_wants_the_fleet(request):
        return
    left.clear()
    for profile in set(before.values()):
        lab.reimage(*(name for name in HOSTS if before[name] == profile), profile=profile)


# Hosts' profiles before, and the fleet: installing four hosts takes minutes, so the next module goes on with them.
_left_by_the_module_before: list[tuple[dict[str, str], Fleet]] = []


def next_module_wants_the_fleet(request: pytest.FixtureRequest) -> bool:
    """Whether the module that runs after this one uses the fixture `fleet` too."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Side by side, nobody knows which module a worker gets next.
        return False
    items = request.session.items
    last = max(number for number, item in enumerate(items) if item.path == request.path)
    return any("fleet" in getattr(item, "fixturenames", ()) for item in items[last + 1 : last + 2])


@pytest.fixture
def converged(fleet: Fleet) -> Fleet:
    """The fleet as the playbook wants it; mended first when an earlier test failed."""
    assert fleet.run("-y").code == 0
    return fleet


# --- from fresh to converged ----------------------------------------------------------------------------------------


def test_four_fresh_hosts_end_with_evidence_from_each_and_one_build(fleet: Fleet) -> None:
    result = fleet.run("-y", "--json")
    assert result.code == 0, result.err
    assert {host for host, _ in result.changed} == set(HOSTS)
    for host in HOSTS:
        assert fleet.active(host)
        for stage in ("offline", "online"):
            evidence = fleet.evidence(host, fleet.serving(host), stage)
            assert evidence["ok"], evidence
    assert len(fleet.wheels()) == 1
    assert result.err.count("building lmcache_ascend") == 1


def test_a_second_run_changes_nothing_and_asks_each_host_once(fleet: Fleet, tmp_path: Path) -> None:
    before = {host: (fleet.listing(host), fleet.main_pid(host)) for host in HOSTS}
    moved = fleet.traffic()
    result, counts = fleet.counted(tmp_path / "run.json", "-y", "--json")
    moved = {host: total - moved[host] for host, total in fleet.traffic().items()}
    # Handshake, survey program and answer, and what the services say to each other meanwhile.
    assert max(moved.values()) < CONVERGED_BYTES, moved
    assert result.code == 0, result.err
    assert result.changed == set()
    assert counts == dict.fromkeys(HOSTS, 1)
    result, counts = fleet.counted(tmp_path / "dry.json", "--dry", "--json")
    assert result.code == 0
    assert result.planned == set()
    assert counts == dict.fromkeys(HOSTS, 1)
    assert {host: (fleet.listing(host), fleet.main_pid(host)) for host in HOSTS} == before


def test_a_dry_run_shows_files_and_pins_and_touches_nothing(converged: Fleet) -> None:
    fleet = converged
    before = {host: fleet.listing(host) for host in HOSTS}
    result = fleet.run("--dry", "--diff", chunk_size=512, triton_ascend="3.2.1")
    assert result.code == 0
    for host in HOSTS:
        text = "\n".join(line.strip() for line in result.diff[host])
        assert "--- config/lmcache.yaml\n+++ config/lmcache.yaml" in text
        assert "-chunk_size: 256\n+chunk_size: 512" in text
        assert "triton-ascend: 3.2.2 → 3.2.1" in text
        assert f"process of {UNIT}: started from release {fleet.serving(host)}" in text
    assert {host: fleet.listing(host) for host in HOSTS} == before


# --- drift ----------------------------------------------------------------------------------------------------------


def test_drift_is_named_on_its_host_alone_and_mended(converged: Fleet) -> None:
    fleet = converged
    old = {host: fleet.serving(host) for host in HOSTS}
    fleet.root("h1", f"printf '\\n# by hand\\n' >> {UNIT_FILE} && systemctl daemon-reload")
    fleet.root("h2", "apt-get -qq remove -y libnuma-dev >/dev/null")
    fleet.root("h3", f"{UV} pip uninstall --quiet --python {PREFIX}/current/venv/bin/python sortedcontainers")
    fleet.root("h4", f"systemctl stop {UNIT}")
    pids = {host: fleet.main_pid(host) for host in HOSTS}
    damaged = fleet.listing("h3", f"{PREFIX}/releases/{old['h3']}")

    dry = fleet.run("--dry", "--diff")
    changes = {host: [line for line in lines if line[:2].isdigit()] for host, lines in dry.diff.items()}
    assert changes["h1"] == [f"15 service  ~ {UNIT_FILE}: as is → changed"]
    assert "    -# by hand" in dry.diff["h1"]
    assert changes["h2"] == ["01 system_packages  + libnuma-dev: installed"]
    assert any(line.startswith("02 release") and "sortedcontainers" in line for line in changes["h3"]), changes["h3"]
    assert len(changes["h4"]) == 1
    assert f"process of {UNIT}: inactive → running" in changes["h4"][0]

    run = fleet.run("-y", "--json")
    assert run.code == 0, run.err
    mended = {host: {step for where, step in run.changed if where == host} for host in HOSTS}
    assert mended["h1"] == mended["h4"] == {"15 service"}
    assert mended["h2"] == {"01 system_packages"}
    assert (fleet.main_pid("h1"), fleet.main_pid("h2")) == (pids["h1"], pids["h2"])
    assert "# by hand" not in fleet.root("h1", f"cat {UNIT_FILE}")
    assert fleet.serving("h3").startswith(f"{old['h3'].split('-r')[0]}-r")
    assert fleet.serving("h3") != old["h3"]
    assert fleet.listing("h3", f"{PREFIX}/releases/{old['h3']}") == damaged, "a sealed release was modified"
    assert fleet.main_pid("h3") != pids["h3"]
    assert all(fleet.active(host) for host in HOSTS)
    assert len(fleet.wheels()) == 1
    assert fleet.run("--dry", "--json").planned == set()


def test_a_killed_service_process_is_started_again_by_a_run(converged: Fleet) -> None:
    fleet = converged
    # systemd itself would bring it back in seconds: keep it from that.
    fleet.root("h1", f"systemctl kill -s KILL {UNIT}; systemctl stop {UNIT}")
    assert not fleet.active("h1")
    assert fleet.run("-y", "--limit", "h1").code == 0
    assert fleet.active("h1")


# --- one of four ----------------------------------------------------------------------------------------------------


def test_a_step_that_fails_on_one_host_leaves_the_others_to_finish(converged: Fleet) -> None:
    fleet = converged
    broken = 'Acquire::http::Proxy "http://127.0.0.1:9";'
    fleet.root("h4", "apt-get -qq remove -y libnuma-dev >/dev/null; rm -f /var/cache/apt/archives/libnuma-dev*")
    fleet.root("h4", f"echo '{broken}' > /etc/apt/apt.conf.d/99broken")
    old = fleet.serving("h4")
    since = time.time()
    run = fleet.run("-y", "--json", chunk_size=512)
    fleet.root("h4", "rm /etc/apt/apt.conf.d/99broken")
    assert run.code != 0
    assert run.answer["results"]["failed_hosts"] == ["h4"]
    rows = run.table.splitlines()
    assert len(rows) == 1, run.err
    host, step, cause, remedy = rows[0].split(" | ")
    assert (host, step) == ("h4", "01 system_packages")
    assert "can't be reached" in cause
    assert "check the URL" in remedy
    assert fleet.serving("h4") == old
    assert fleet.active("h4")
    for name in ("h1", "h2", "h3"):
        assert fleet.active(name)
        assert "512" in fleet.root(name, f"cat {PREFIX}/current/config/lmcache.yaml")
        # A new release of what the host has had before costs no download, but for what is forced over another's files:
        # uv fetches that anew.
        assert [path for path in fleet.downloads(name, since) if "/triton_ascend-" not in path] == []
    assert len(fleet.wheels()) == 1
    # And back: the old release is still there, nothing is built.
    began = time.monotonic()
    back = fleet.run("-y", "--json")
    assert back.code == 0, back.err
    assert not any("packages" in step for host, step in back.changed if host != "h4"), back.changed
    assert time.monotonic() - began < 60


def test_a_host_that_does_not_meet_the_requirements_fails_alone(converged: Fleet) -> None:
    fleet = converged
    root = fleet.lab.lab.root("h4")
    try:
        ascend.install(root, "910b3-olddriver")
        run = fleet.run("-y", "--json")
    finally:
        ascend.install(root, "910b3x8")
    assert run.code != 0
    assert run.answer["results"]["failed_hosts"] == ["h4"]
    host, step, cause, remedy = run.table.split(" | ")
    assert (host, step) == ("h4", "requirements")
    assert "23.0.6" in cause
    assert remedy not in {"", "-"}
    assert fleet.active("h4")


def test_a_host_without_power_is_named_and_the_others_finish(converged: Fleet) -> None:
    fleet = converged
    fleet.root("h1", f"printf '\\n# by hand\\n' >> {UNIT_FILE}")
    fleet.lab.lab.power_cut(["h3"])
    try:
        run = fleet.run("-y", "--json")
    finally:
        fleet.lab.lab.power_on(["h3"])
    assert run.code != 0
    assert "h3" in run.err
    assert "h3 | " in run.table, run.err
    assert "# by hand" not in fleet.root("h1", f"cat {UNIT_FILE}")
    # The service comes back with its host, without us.
    until = time.monotonic() + 40
    while not fleet.active("h3") and time.monotonic() < until:
        time.sleep(0.5)
    assert fleet.active("h3")


def test_a_wrong_sudo_password_is_tried_once(converged: Fleet) -> None:
    fleet = converged
    since = fleet.root("h3", "date '+%Y-%m-%d %H:%M:%S'; sleep 1")
    data = ["--data", "ssh_user=operator", "--data", "_sudo_password=wrong"]
    run = fleet.run("-y", "--json", "--limit", "h3", *data)
    assert run.code != 0
    host, _, cause, remedy = run.table.split(" | ")
    assert host == "h3"
    assert "sudo" in cause
    assert "_sudo_password" in remedy
    journal = fleet.root("h3", f"journalctl --no-pager -o cat _COMM=sudo --since '{since}'")
    tries = [line for line in journal.splitlines() if "authentication failure" in line]
    assert len(tries) == 1, journal
    data[-1] = f"_sudo_password={fleet.lab.lab.reload().operator_password}"
    right = fleet.run("-y", "--json", "--limit", "h3", *data)
    assert right.code == 0, right.err
    assert right.changed == set()


# --- sources that are down, releases that are half done ---------------------------------------------------------------


def test_an_index_that_is_down_is_one_clear_error_and_the_old_release_serves(converged: Fleet) -> None:
    fleet = converged
    old, pid = fleet.serving("h1"), fleet.main_pid("h1")
    fleet.root("h1", f"rm -rf {PREFIX}/cache/uv")
    services.control(fleet.lab.lab.paths.lab, down=["simple", "ascend/simple", "files"])
    try:
        run = fleet.run("-y", "--json", "--limit", "h1", triton_ascend="3.2.1")
    finally:
        services.control(fleet.lab.lab.paths.lab)
    assert run.code != 0
    rows = run.table.splitlines()
    assert len(rows) == 1
    host, step, cause, remedy = rows[0].split(" | ")
    assert (host, step) == ("h1", "04 packages vllm")
    assert "can't be reached" in cause
    assert "check the URL" in remedy
    assert (fleet.serving("h1"), fleet.main_pid("h1")) == (old, pid)
    assert fleet.active("h1")
    # Going on with the old wish: the half-made release is in nobody's way.
    again = fleet.run("-y", "--json", "--limit", "h1")
    assert again.code == 0
    assert (fleet.serving("h1"), fleet.main_pid("h1")) == (old, pid)


def test_killed_runs_leave_the_old_release_serving_and_the_next_goes_on(converged: Fleet, tmp_path: Path) -> None:
    """kill -9 while packages are installed, during the native build, during the proof, and during the switch."""
    fleet = converged
    old, pid = fleet.serving("h1"), fleet.main_pid("h1")
    earlier = set(fleet.releases("h1"))
    # An empty store, so that there is something to build.
    other = tmp_path / "artifacts"
    with fleet.watched("h1") as failures:
        for number, text in enumerate(("installing vllm-ascend", "building lmcache_ascend")):
            log = tmp_path / f"{number}.log"
            with fleet.running(log, "-y", "--limit", "h1", artifacts=other, chunk_size=480) as run:
                run.until(text)
                time.sleep(0.3)
                run.kill()
            assert (fleet.serving("h1"), fleet.main_pid("h1")) == (old, pid)
        # Meanwhile somebody installs vLLM's own choice of triton over the vendor's, in the release that is half done.
        (half,) = set(fleet.releases("h1")) - earlier
        assert not sealed(fleet, "h1", half)
        python = f"{PREFIX}/releases/{half}/venv/bin/python"
        index = fleet.lab.lab.reload().services["index_url"]
        fleet.root("h1", f"flock {PREFIX}/.step.lock true")
        fleet.root(
            "h1",
            f"{UV} pip install --quiet --no-config --no-deps --reinstall --python {python} --index-url {index} triton",
        )
        dry = fleet.run("--dry", "--diff", "--limit", "h1", chunk_size=480)
        assert any("packages triton-ascend" in line and "triton" in line for line in dry.diff["h1"]), dry.err
        with fleet.running(tmp_path / "proof.log", "-y", "--limit", "h1", artifacts=other, chunk_size=480) as run:
            run.until("verify offline")
            time.sleep(1.5)
            run.kill()
        assert (fleet.serving("h1"), fleet.main_pid("h1")) == (old, pid)
        assert failures() == []
    with fleet.running(tmp_path / "switch.log", "-y", "--limit", "h1", artifacts=other, chunk_size=480) as run:
        run.until("15 service: switching to")
        time.sleep(0.5)
        run.kill()
    end = fleet.run("-y", "--json", "--limit", "h1", env={"LMCACHE_FLEET_ARTIFACTS": str(other)}, chunk_size=480)
    assert end.code == 0, end.err
    assert fleet.serving("h1") == half, "no release was begun anew"
    assert fleet.active("h1")
    evidence = json.loads((other / "evidence/h1" / half / "online.json").read_text())
    assert evidence["ok"]
    assert fleet.run("--dry", "--json", "--limit", "h1", chunk_size=480).planned == set()


def test_ctrl_c_ends_the_run_and_the_next_one_goes_on(converged: Fleet, tmp_path: Path) -> None:
    fleet = converged
    old, pid = fleet.serving("h3"), fleet.main_pid("h3")
    with fleet.running(tmp_path / "run.log", "-y", "--limit", "h3", chunk_size=432) as run:
        run.until("installing vllm-ascend")
        run.interrupt()
        assert run.wait(60) != 0
    assert (fleet.serving("h3"), fleet.main_pid("h3")) == (old, pid)
    assert fleet.run("-y", "--limit", "h3", chunk_size=432).code == 0
    assert fleet.serving("h3") != old
    assert fleet.active("h3")


def sealed(fleet: Fleet, host: str, release: str) -> bool:
    """Whether a release was verified."""
    return fleet.root(host, f"ls {PREFIX}/releases/{release}/sealed", check=False) != ""


def test_of_two_runs_at_once_the_second_is_refused_with_the_first_ones_name(converged: Fleet, tmp_path: Path) -> None:
    fleet = converged
    with fleet.running(tmp_path / "first.log", "-y", "--limit", "h2", chunk_size=320) as first:
        first.until("03 venv")
        second = fleet.run("-y", "--json", "--limit", "h2", chunk_size=320)
        assert second.code != 0
        host, _, cause, remedy = second.table.split(" | ")
        assert host == "h2"
        assert f"pid {first.process.pid}" in cause
        assert "wait for it" in remedy
        assert first.wait() == 0, first.text()
    assert fleet.active("h2")
    assert "320" in fleet.root("h2", f"cat {PREFIX}/current/config/lmcache.yaml")


def test_a_reimaged_host_converges_without_a_new_build(converged: Fleet) -> None:
    fleet = converged
    wheels = fleet.wheels()
    fleet.lab.reimage("h2", profile="910b3x8")
    run = fleet.run("-y", "--json")
    assert run.code == 0, run.err
    assert {host for host, _ in run.changed} == {"h2"}
    assert "building lmcache_ascend" not in run.err
    assert fleet.wheels() == wheels
    assert fleet.active("h2")
    for stage in ("offline", "online"):
        assert fleet.evidence("h2", fleet.serving("h2"), stage)["ok"]
