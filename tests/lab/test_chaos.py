"""Faults on the way: the old release went on serving, nothing was lost, the next run converged.

`scripts/test --chaos` runs all of it, with thirty kills; without it a sample that differs from run to run, which the
seed shown repeats (LMCACHE_FLEET_CHAOS_SEED).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.fleet import PREFIX, UNIT, Fleet, Started
from tests.lab.test_ascend import fleet

__all__ = ["fleet"]

pytestmark = pytest.mark.timeout(1800)

ALL = os.environ.get("LMCACHE_FLEET_CHAOS") == "1"
SEED = int(os.environ.get("LMCACHE_FLEET_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
KILLS = 30 if ALL else 1
# One host is broken, the other shows that it is not held up.
HOSTS = ("h1", "h2")
LIMIT = ("--limit", "h1", "--limit", "h2")

Fault = Callable[[Fleet, Path, int], None]


@pytest.fixture(scope="module")
def steady(fleet: Fleet) -> Iterator[Fleet]:
    """Two hosts as the playbook wants them."""
    print(f"LMCACHE_FLEET_CHAOS_SEED={SEED}")
    done = fleet.run("-y", *LIMIT)
    assert done.code == 0, done.err
    yield fleet


def other_release(number: int) -> dict[str, object]:
    """Variables that make another release, which no test before had."""
    return {"max_model_len": 3000 + number}


@contextmanager
def nothing_lost(fleet: Fleet, number: int, *, serves: bool = True) -> Iterator[dict[str, object]]:
    """Break a run inside: h1's old release serves without a pause, is not touched, and the next run converges.

    Args:
        fleet: the fleet.
        number: of the release that is being made meanwhile.
        serves: watch that it answers all the time; false where the fault itself takes the service down.
    """
    old, pid = fleet.serving("h1"), fleet.main_pid("h1")
    sealed = f"{PREFIX}/releases/{old} -not -path '*/evidence*'"
    before = fleet.listing("h1", sealed)
    variables = other_release(number)
    if serves:
        with fleet.watched("h1") as failures:
            yield variables
            assert failures() == []
        assert (fleet.serving("h1"), fleet.main_pid("h1")) == (old, pid)
    else:
        yield variables
    assert fleet.listing("h1", sealed) == before, "a sealed release was modified"
    again = fleet.run("-y", *LIMIT, **variables)
    assert again.code == 0, again.err
    assert fleet.serving("h1") == fleet.serving("h2") != old
    assert all(fleet.active(host) for host in HOSTS)
    planned = fleet.run("--dry", "--json", *LIMIT, **variables)
    assert planned.planned == set(), planned.err


def failed_alone(run: Started, host: str) -> str:
    """Wait for a run that must fail for one host only; its output."""
    assert run.wait() != 0, run.text()
    text = run.text()
    rows = [line for line in text.splitlines() if line.startswith("│ h")]
    assert {row.strip("│ ").split()[0] for row in rows} == {host}, text
    return text


# --- kill -9 of the control process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_a_random_moment(steady: Fleet, tmp_path: Path, number: int) -> None:
    fleet = steady
    after = random.Random(f"{SEED}/{number}").uniform(0.5, 45)
    print(f"kill -9 after {after:.2f} s (seed {SEED})")
    old = fleet.serving("h1")
    variables = other_release(number)
    with fleet.running(tmp_path / "run.log", "-y", *LIMIT, **variables) as run:
        end = time.monotonic() + after
        while run.process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        run.kill()
    # Whatever was going on, one of the two serves, or the host's own program is just switching between them.
    end = time.monotonic() + 120
    while not fleet.active("h1"):
        assert time.monotonic() < end, run.text()
        time.sleep(0.5)
    again = fleet.run("-y", *LIMIT, **variables)
    assert again.code == 0, again.err
    assert fleet.serving("h1") == fleet.serving("h2") != old
    assert all(fleet.active(host) for host in HOSTS)
    assert fleet.run("--dry", "--json", *LIMIT, **variables).planned == set()


# --- the others -----------------------------------------------------------------------------------------------------


def disk_full(fleet: Fleet, folder: Path, number: int) -> None:
    """There is no room for the packages."""
    cache = f"{PREFIX}/cache/uv"
    fleet.root("h1", f"mkdir -p {cache} && mount -t tmpfs -o size=2m,mode=0755 none {cache}")
    try:
        with (
            nothing_lost_unless_mounted(fleet, number, cache) as variables,
            fleet.running(folder / "run.log", "-y", *LIMIT, **variables) as run,
        ):
            text = failed_alone(run, "h1")
            assert "no space" in text.lower() or "disk is full" in text.lower(), text
    finally:
        fleet.root("h1", f"umount {cache}", check=False)


@contextmanager
def nothing_lost_unless_mounted(fleet: Fleet, number: int, mount: str) -> Iterator[dict[str, object]]:
    """As `nothing_lost`, and the small disk is taken away before the run that has to converge."""
    with nothing_lost(fleet, number) as variables:
        yield variables
        fleet.root("h1", f"umount {mount}")


def healthy_and_caches_nothing(fleet: Fleet, folder: Path, number: int) -> None:
    """The new service starts and answers, and LMCache is degraded: the gate sees it, and the old release is back."""
    old = fleet.serving("h1")
    drop = "/etc/systemd/system.conf.d/degraded.conf"
    with nothing_lost(fleet, number, serves=False) as variables:
        fleet.root("h1", "mkdir -p /etc/systemd/system.conf.d")
        # Only services see it: the proof off-line passes, as it does when the fault is in the service's surroundings.
        text = "[Manager]\\nDefaultEnvironment=LMCACHE_FLEET_LAB_FAULTS=degraded\\n"
        fleet.root("h1", f"printf '{text}' > {drop} && systemctl daemon-reexec")
        try:
            with fleet.running(folder / "run.log", "-y", *LIMIT, **variables) as run:
                text = failed_alone(run, "h1")
        finally:
            fleet.root("h1", f"rm {drop} && systemctl daemon-reexec")
        assert "degraded" in text
        assert f"back on {old}" in text
        assert fleet.serving("h1") == old
        fleet.root("h1", f"systemctl restart {UNIT}")
        assert fleet.serving("h2") != old


FAULTS: tuple[Fault, ...] = (disk_full, healthy_and_caches_nothing)
SAMPLE = FAULTS if ALL else tuple(random.Random(SEED).sample(FAULTS, 1))


@pytest.mark.parametrize("fault", SAMPLE, ids=lambda fault: fault.__name__)
def test_nothing_is_lost(steady: Fleet, tmp_path: Path, fault: Fault) -> None:
    fault(steady, tmp_path, 100 + FAULTS.index(fault))
