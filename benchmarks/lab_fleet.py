"""Measurements on booted lab hosts: each peer brings blank hosts to the same end state, then does what operators do."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Cost, median_of, run
from benchmarks.peers import NAMES, Peer, environment_variables, peers
from lab import network
from lab.hosts import Lab
from lab.state import Paths

NAME = "bench"
PROFILE = "910b3x8"
_VERBOSE = "/etc/ssh/sshd_config.d/bench.conf"

Say = Callable[[str], None]


class Bench:
    """Lab hosts, and the peers that work on them.

    Args:
        environment: virtual environment with ansible-core, mitogen and pyinfra.
        work: directory for inventories, artifact stores and answers.
        say: told what is going on.
    """

    def __init__(self, environment: Path, work: Path, say: Say) -> None:
        os.environ["LMCACHE_FLEET_LAB_NAME"] = NAME
        self.environment, self.work, self.say = environment, work, say
        self.lab = Lab(Paths.here(NAME), say=lambda _: None)
        self.store = work / "artifacts"

    def fresh(self, count: int) -> None:
        """Blank hosts, and sshd writes down every command that it starts."""
        self.lab.reload()
        self.lab.down()
        self.lab.up({f"h{number}": PROFILE for number in range(1, count + 1)})
        for host in self.lab.reload().hosts:
            setting = f"echo LogLevel VERBOSE > {_VERBOSE} && systemctl reload ssh"
            self.lab.ssh(host.name, f"sudo sh -c '{setting}'")

    def inventory(self, count: int) -> list[tuple[str, Mapping[str, Any]]]:
        """The first hosts of the lab, as its inventory gives them."""
        found: list[tuple[str, Mapping[str, Any]]] = runpy.run_path(str(ROOT / "inventories" / "lab.py"))["lab"]
        return found[:count]

    def peer(self, name: str, count: int) -> Peer:
        """One peer, for the first hosts."""
        return next(item for item in peers(self.inventory(count), self.environment, self.work) if item.name == name)

    def call(self, argv: Sequence[str], peer: Peer) -> Cost:
        """One run of a peer."""
        return run(argv, env={**environment_variables(peer), "LMCACHE_FLEET_ARTIFACTS": str(self.store)})

    def fill_store(self) -> None:
        """Have a host of the lab converged and all that it takes in the artifact store, if none was yet."""
        if self.store.exists():
            return
        self.say("lmcache-fleet: one blank host, for the artifact store")
        self.fresh(1)
        ours = self.peer(NAMES[0], 1)
        _one(self.call(ours.run, ours))

    def floor(self, count: int) -> Cost:
        """`ssh HOST true` to all hosts at once, by OpenSSH, each with a connection of its own."""
        began = time.monotonic()
        started = [
            subprocess.Popen([*self.lab.ssh_argv(name), "true"], stdin=subprocess.DEVNULL)
            for name, _ in self.inventory(count)
        ]
        status = max(process.wait() for process in started)
        return Cost(time.monotonic() - began, 0, 0, status, "")

    def traffic(self, count: int) -> tuple[int, int]:
        """Commands that the hosts' sshd has started so far, and bytes that went over their wires, both ways."""
        commands = total = 0
        for name, _ in self.inventory(count):
            # By name and not by unit: a session's process is moved out of sshd's unit.
            listing = "journalctl -t sshd -o cat --no-pager | grep -c 'Starting session: ' || true"
            commands += int(self.lab.ssh(name, f'sudo sh -c "{listing}"').stdout)
            total += network.traffic(self.lab.state, self.lab.state.find(name))
        return commands, total

    def counted(self, count: int, once: Callable[[], Cost]) -> dict[str, float]:
        """Commands and bytes of one run, a host; what the counting itself takes is taken off."""
        first = self.traffic(count)
        second = self.traffic(count)
        cost = once()
        third = self.traffic(count)
        if cost.status:
            raise RuntimeError(cost.output[-4000:])
        own = [after - before for before, after in zip(first, second, strict=True)]
        seen = [after - before for before, after in zip(second, third, strict=True)]
        commands, total = ((all_ - mine) / count for all_, mine in zip(seen, own, strict=True))
        return {"commands_per_host": round(commands, 1), "kib_per_host": round(total / 1024, 1)}


def end_states(bench: Bench, count: int, times: int, *, quick: bool = False) -> dict[str, Any]:
    """What each peer takes on `count` hosts: first converge, converged run, dry run, one changed line, traffic.

    Args:
        bench: hosts and peers.
        count: how many hosts.
        times: runs a median is made of.
        quick: without mitogen and without changes. We come last: what follows needs our hosts.
    """
    results: dict[str, Any] = {}
    for name in ("ansible", "stock pyinfra", "lmcache-fleet") if quick else NAMES:
        bench.say(f"{name}: {count} blank hosts")
        bench.fresh(count)
        peer = bench.peer(name, count)
        found: dict[str, Any] = {"first_converge": _one(bench.call(peer.run, peer))}
        bench.say(f"{name}: converged in {found['first_converge']['wall_s']:.0f} s; again, {times} times")
        found["converged"] = median_of(times, lambda: bench.call(peer.run, peer))  # noqa: B023 - called at once
        found["dry_run"] = median_of(times, lambda: bench.call(peer.dry, peer))  # noqa: B023 - called at once
        found["traffic"] = bench.counted(count, lambda: bench.call(peer.run, peer))  # noqa: B023 - called at once
        if not quick:
            found["one_line_changed"] = _one(bench.call(peer.change, peer))
            before, after = peer.pinned
            _one(bench.call(before, peer))
            found["one_pin_changed"] = _one(bench.call(after, peer))
        results[name] = found
        bench.say(f"{name}: {json.dumps({key: item.get('wall_s') for key, item in found.items()})}")
    return results


def warm_store(bench: Bench, count: int) -> dict[str, Any]:
    """Blank hosts again, with the artifact store of the first time; then one of them reimaged."""
    bench.fill_store()
    bench.fresh(count)
    ours = bench.peer(NAMES[0], count)
    bench.say("lmcache-fleet: blank hosts, warm store")
    cost = bench.call(ours.run, ours)
    found = {"first_converge_warm_store": _one(cost)}
    found["first_converge_warm_store"]["steps"] = [[name, round(seconds, 1)] for name, seconds in cost.steps]
    bench.lab.reimage(["h1"], adopt=True)
    bench.say("lmcache-fleet: one host reimaged")
    found["reimage_to_verified"] = _one(bench.call(ours.run, ours))
    return found


def host_counts(bench: Bench, counts: Sequence[int], times: int) -> dict[str, Any]:
    """Converged runs of ours beside the floor, on more and more hosts."""
    found: dict[str, Any] = {}
    bench.fresh(max(counts))
    for count in counts:
        ours = bench.peer(NAMES[0], count)
        first = bench.call(ours.run, ours)
        if first.status:
            raise RuntimeError(first.output[-4000:])
        ran = median_of(times, lambda: bench.call(ours.run, ours))  # noqa: B023 - called at once
        floor = median_of(times, lambda: bench.floor(count))  # noqa: B023 - called at once
        found[str(count)] = {"converged": ran, "ssh_true": floor}
        bench.say(f"{count} hosts: {ran['wall_s']} s, ssh true {floor['wall_s']} s")
    return found


def start_of_pyinfra(times: int) -> dict[str, Any]:
    """What pyinfra takes to start and say its version."""
    pyinfra = str(Path(sys.executable).parent / "pyinfra")
    return median_of(times, lambda: run([pyinfra, "--version"]))


def recorded_answer(bench: Bench) -> tuple[Path, dict[str, Any]]:
    """A converged host's answer to the survey, and the variables that it was converged with."""
    bench.fill_store()
    answer = bench.work / "answer.txt"
    answer.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "benchmarks.record", str(answer)]
    done = run(
        [*argv, "inventories/lab.py", "deploys/ascend.py", "-y", "--limit", "h1"],
        env={"LMCACHE_FLEET_ARTIFACTS": str(bench.store)},
    )
    if done.status:
        raise RuntimeError(done.output[-4000:])
    return answer, dict(bench.inventory(1)[0][1]["vars"])


def _one(cost: Cost) -> dict[str, Any]:
    return median_of(1, lambda: cost)
