"""Fleets that don't exist: what the control machine spends a host, up to a thousand hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import median_of, run


def many_hosts(
    answer: Path,
    variables: dict[str, Any],
    counts: Sequence[int],
    delays: Sequence[float],
    times: int,
    say: Callable[[str], None],
    store: Path,
) -> list[dict[str, Any]]:
    """Converged runs and plans of many hosts that all answer what one real host answered.

    Args:
        answer: file with that answer.
        variables: the playbook's variables of that host.
        counts: how many hosts.
        delays: seconds that each command takes.
        times: runs a median is made of.
        say: told what is going on.
        store: artifact store with the sources that the plan names.
    """
    found = []
    folder = Path(sys.executable).parent
    inventory, deploy = "benchmarks/many_hosts.py", "deploys/ascend.py"
    commands = {
        "pyinfra -y": [str(folder / "pyinfra"), inventory, deploy, "-y"],
        "lmcache-fleet plan": [str(folder / "lmcache-fleet"), "plan", inventory, deploy, "--json"],
    }
    for count in counts:
        for delay in delays:
            env = {
                "LMCACHE_FLEET_BENCH_ANSWER": str(answer),
                "LMCACHE_FLEET_BENCH_VARS": json.dumps(variables),
                "LMCACHE_FLEET_BENCH_HOSTS": str(count),
                "LMCACHE_FLEET_BENCH_DELAY": str(delay),
                "LMCACHE_FLEET_ARTIFACTS": str(store),
            }
            for name, argv in commands.items():
                cost = median_of(times, lambda: run(argv, env=env))  # noqa: B023 - called at once
                row = {"command": name, "hosts": count, "delay_s": delay, **cost}
                say(f"{name}: {count} hosts, {delay} s a command: {cost['wall_s']} s, CPU {cost['cpu_s']} s")
                found.append(row)
    return found
