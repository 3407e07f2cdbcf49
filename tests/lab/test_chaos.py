"""Faults on the way: the old release went on serving, nothing was lost, the next run converged.

`scripts/test --chaos` runs all of it, with thirty kills; without it a sample that differs from run to run, which the
seed shown repeats (LMCACHE_FLEET_CHAOS_SEED). An index that is down, a host that has no power and two operators at once
are in test_ascend.py, which always runs.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab import faults, services
from tests.lab.fleet import PREFIX, UNIT, Fleet, Started
from tests.lab.test_ascend import fleet
from tests.lab.test_preflight import messages, preflight

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
    converges(fleet, variables)


def converges(fleet: Fleet, variables: dict[str, object]) -> None:
    """Both hosts serve, and nothing is left to do."""
    assert all(fleet.active(host) for host in HOSTS)
    planned = fleet.run("--dry", "--json", *LIMIT, **variables)
    assert planned.planned == set(), planned.err


def served(fleet: Fleet, host: str) -> None:
    """Wait until the service answers: the host's own program may just be switching, or the host is booting."""
    end = time.monotonic() + 120
    while not fleet.active(host):
        assert time.monotonic() < end, f"nothing serves on {host}"
        time.sleep(0.5)


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
    served(fleet, "h1")
    again = fleet.run("-y", *LIMIT, **variables)
    assert again.code == 0, again.err
    assert fleet.serving("h1") == fleet.serving("h2") != old
    converges(fleet, variables)


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


# Where a run is when something befalls h1, in the words it prints.
INSTALLING = "[h1] 05 packages vllm-ascend: installing"
SWITCHING = "[h1] 15 service: switching to"
# Seconds before it is through: the proof restarts the service after the last of them.
IN_THE_SWITCH = ("[h1] switching ", "warm-up", "] restart the service")


@contextmanager
def cut_short(fleet: Fleet, folder: Path, number: int, at: str) -> Iterator[Started]:
    """A run that has come to a place on h1, and what is done to h1 inside ends it there, for this host only."""
    with (
        nothing_lost(fleet, number, serves=False) as variables,
        fleet.running(folder / "run.log", "-y", *LIMIT, **variables) as run,
    ):
        old = fleet.serving("h1")
        run.until(at)
        yield run
        text = failed_alone(run, "h1")
        assert "the connection" in text, text
        assert "check that the host is up" in text, text
        if at == INSTALLING:
            assert fleet.serving("h1") == old
        served(fleet, "h1")


def ssh_sessions_dropped_while_installing(fleet: Fleet, folder: Path, number: int) -> None:
    """sshd ends the run's sessions."""
    with cut_short(fleet, folder, number, INSTALLING):
        assert faults.drop_ssh(fleet.lab.lab, "h1")


def ssh_sessions_dropped_while_switching(fleet: Fleet, folder: Path, number: int) -> None:
    """sshd ends the run's sessions; the host's own program goes on with the switch."""
    with cut_short(fleet, folder, number, SWITCHING):
        assert faults.drop_ssh(fleet.lab.lab, "h1")


def line_broken_while_installing(fleet: Fleet, folder: Path, number: int) -> None:
    """The line breaks, and the host isn't told: what holds its lock there is not ended by that."""
    with cut_short(fleet, folder, number, INSTALLING) as run, faults.ssh_blocked(fleet.lab.lab, "h1"):
        run.until("the connection")


def line_broken_while_switching(fleet: Fleet, folder: Path, number: int) -> None:
    """The line breaks, and the host isn't told."""
    with cut_short(fleet, folder, number, SWITCHING) as run, faults.ssh_blocked(fleet.lab.lab, "h1"):
        run.until("the connection")


def power_cut_while_installing(fleet: Fleet, folder: Path, number: int) -> None:
    """h1 loses its power and gets it back."""
    with cut_short(fleet, folder, number, INSTALLING):
        power_lost(fleet)


def power_cut_while_switching(fleet: Fleet, folder: Path, number: int) -> None:
    """h1 loses its power somewhere in the switch, and the host's own program with it."""
    with cut_short(fleet, folder, number, SWITCHING) as run:
        moment = random.Random(f"{SEED}/{number}")
        at, after = moment.choice(IN_THE_SWITCH), moment.uniform(0, 2)
        print(f"power cut {after:.2f} s after '{at}' (seed {SEED})")
        run.until(at)
        time.sleep(after)
        power_lost(fleet)


def power_lost(fleet: Fleet) -> None:
    """Take h1's power away and give it back."""
    fleet.lab.lab.power_cut(["h1"])
    fleet.lab.lab.power_on(["h1"])


def corrupt_wheel(fleet: Fleet, folder: Path, number: int) -> None:
    """The index serves a wheel that isn't what it was; h2 has the true one in its cache."""
    with nothing_lost(fleet, number) as variables:
        fleet.root("h1", f"rm -rf {PREFIX}/cache/uv")
        services.control(fleet.lab.lab.paths.lab, corrupt=["vllm_ascend-"])
        try:
            with fleet.running(folder / "run.log", "-y", *LIMIT, **variables) as run:
                text = failed_alone(run, "h1")
        finally:
            services.control(fleet.lab.lab.paths.lab)
        assert "a downloaded file is damaged" in text, text


def build_killed_for_memory(fleet: Fleet, folder: Path, number: int) -> None:
    """What the kernel does when memory is out: it kills the compiler."""
    compiler = "[c]c1plus.*/builds/lmcache_ascend"
    with (
        nothing_lost(fleet, number) as variables,
        fleet.running(folder / "run.log", "-y", "--limit", "h1", artifacts=folder / "empty", **variables) as run,
    ):
        run.until("[h1] 11 native_build lmcache_ascend: building")
        # Every one for a while: the first may have been on its way out with all its work done.
        fleet.root("h1", f"timeout 20 sh -c 'while :; do pkill -KILL -f {compiler}; sleep 0.02; done'", check=False)
        text = failed_alone(run, "h1")
        assert "killed for want of memory" in text, text
        assert "job_memory_gb" in text, text


def silent_for_half_a_minute(fleet: Fleet, folder: Path, number: int) -> None:
    """h1 answers late, and for 30 s not at all: its part takes longer, and that is all."""
    lab = fleet.lab.lab
    old, variables = fleet.serving("h1"), other_release(number)
    faults.set_latency(lab, "h1", 200)
    try:
        with (
            fleet.watched("h1") as failures,
            fleet.running(folder / "run.log", "-y", *LIMIT, **variables) as run,
        ):
            run.until(INSTALLING)
            with faults.ssh_blocked(lab, "h1", silent=True):
                time.sleep(30)
            run.until("[h1] 14 dependencies: looking")
            assert (failures(), fleet.serving("h1")) == ([], old)
            assert run.wait() == 0, run.text()
    finally:
        faults.set_latency(lab, "h1", 0)
    assert fleet.serving("h1") == fleet.serving("h2") != old
    converges(fleet, variables)


def clocks_apart(fleet: Fleet, folder: Path, number: int) -> None:
    """The control machine's clock is ten minutes ahead of the hosts': preflight names it, a run does what it does."""
    (folder / "sitecustomize.py").write_text("import time\nnow = time.time\ntime.time = lambda: now() + 600\n")
    env = {"PYTHONPATH": str(folder)}
    _, hosts = preflight(fleet, env=env)
    for host in HOSTS:
        assert re.search(r"off by -(599|600) s", messages(hosts[host])["clock-skew"])
    old, variables = fleet.serving("h1"), other_release(number)
    run = fleet.run("-y", *LIMIT, env=env, **variables)
    assert run.code == 0, run.err
    assert fleet.serving("h1") == fleet.serving("h2") != old
    converges(fleet, variables)


FAULTS: tuple[Fault, ...] = (
    disk_full,
    healthy_and_caches_nothing,
    ssh_sessions_dropped_while_installing,
    ssh_sessions_dropped_while_switching,
    line_broken_while_installing,
    line_broken_while_switching,
    power_cut_while_installing,
    power_cut_while_switching,
    corrupt_wheel,
    build_killed_for_memory,
    silent_for_half_a_minute,
    clocks_apart,
)
SAMPLE = FAULTS if ALL else tuple(random.Random(SEED).sample(FAULTS, 1))


@pytest.mark.parametrize("fault", SAMPLE, ids=lambda fault: fault.__name__)
def test_nothing_is_lost(steady: Fleet, tmp_path: Path, fault: Fault) -> None:
    fault(steady, tmp_path, 100 + FAULTS.index(fault))
