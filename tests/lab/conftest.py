"""Booted hosts for tests. A lab of its own name, so that it never touches one that somebody works with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import base
from lab.hosts import Lab
from lab.state import Host, Paths, locked

REPO = Path(__file__).resolve().parent.parent.parent


@dataclass
class RunningLab:
    """The lab under test, seen from a test."""

    lab: Lab

    def host(self, name: str) -> Host:
        """What the state file says of a host, now."""
        return self.lab.reload().find(name)

    @property
    def names(self) -> list[str]:
        """The names of all hosts."""
        return [host.name for host in self.lab.reload().hosts]

    @property
    def env(self) -> dict[str, str]:
        """The environment in which command lines see this lab."""
        paths = self.lab.paths
        return {**os.environ, "LMCACHE_FLEET_LAB": str(paths.cache), "LMCACHE_FLEET_LAB_NAME": paths.name}

    def ssh(
        self, host: str, command: str, *, user: str = "fleet", check: bool = True, limit: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command on a host; the answer has stdout, stderr, returncode."""
        self.lab.reload()
        return self.lab.ssh(host, command, user=user, check=check, limit=limit)

    def out(self, host: str, command: str, *, user: str = "fleet") -> str:
        """What a command that must succeed prints."""
        return self.ssh(host, command, user=user).stdout.strip()

    def cli(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``python -m lab``."""
        argv = [sys.executable, "-m", "lab", *args]
        return subprocess.run(argv, cwd=REPO, env=self.env, capture_output=True, text=True, check=check, timeout=300)

    def pyinfra(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run pyinfra from the repository with the lab's inventory."""
        argv = [str(Path(sys.executable).parent / "pyinfra"), "inventories/lab.py", *args]
        return subprocess.run(argv, cwd=REPO, env=self.env, capture_output=True, text=True, check=check, timeout=300)

    def reimage(self, *names: str, profile: str | None = None, adopt: bool = True) -> None:
        """Blank hosts; the fleet learns their new keys unless told otherwise."""
        self.lab.reimage(names, profile=profile, adopt=adopt)


def lab_name() -> str:
    """The lab of this process: side by side, every worker has hosts of its own."""
    return os.environ.get("LMCACHE_FLEET_LAB_NAME") or f"test{os.environ.get('PYTEST_XDIST_WORKER', '')}"


def skip_where_no_lab_is() -> None:
    """Leave a test out on a machine that can't boot hosts, and say what it lacks."""
    if os.geteuid() != 0:
        pytest.skip("the lab boots hosts and makes networks: run this tier as root")
    missing, command = base.requirements()
    if missing:
        pytest.skip(f"the lab needs {', '.join(missing)}: {command}")


@contextmanager
def own_lab(name: str, profiles: Mapping[str, str], *, disk_gb: int = 0) -> Iterator[RunningLab]:
    """Blank hosts of a lab of its own, for tests whose hosts would be in the way of others'; gone afterwards."""
    skip_where_no_lab_is()
    paths = Paths.here(f"{lab_name()}-{name}")
    with locked(paths.lab / "tests.lock"):
        alone = Lab(paths)
        alone.down()
        try:
            alone.up(profiles, disk_gb=disk_gb)
            yield RunningLab(alone)
        finally:
            alone.reload()
            alone.down()


@pytest.fixture(scope="session")
def lab() -> Iterator[RunningLab]:
    """Four booted hosts. LMCACHE_FLEET_TEST_PROFILE is their hardware, LMCACHE_FLEET_TEST_KEEP leaves them running."""
    skip_where_no_lab_is()
    paths = Paths.here(lab_name())
    # Two test runs at once would reimage each other's hosts: the second waits.
    with locked(paths.lab / "tests.lock"):
        yield from use(Lab(paths))


def use(running: Lab) -> Iterator[RunningLab]:
    """Bring the hosts up, and down again if they weren't up before."""
    kept = os.environ.get("LMCACHE_FLEET_LAB_NAME") or os.environ.get("LMCACHE_FLEET_TEST_KEEP")
    if not kept:
        # A test run that was killed left hosts, and perhaps a fault in them.
        running.down()
    found = any(host.running for host in running.state.hosts)
    profile = os.environ.get("LMCACHE_FLEET_TEST_PROFILE", "none")
    known = {host.name: host.profile for host in running.state.hosts}
    wanted = {f"h{number}": profile for number in range(1, int(os.environ.get("LMCACHE_FLEET_TEST_HOSTS", "4")) + 1)}
    wrong = [name for name, value in wanted.items() if known.get(name, value) != value]
    if wrong:
        running.reimage(wrong, profile=profile, adopt=True)
    running.up(wanted)
    yield RunningLab(running)
    if not found and not os.environ.get("LMCACHE_FLEET_TEST_KEEP"):
        running.down()
