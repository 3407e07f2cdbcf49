"""Run a command and say what it cost: wall and CPU seconds, peak memory, exit status."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_OPERATION = re.compile(r"Starting operation: (.+?)\s*$")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of a command cost.

    Args:
        wall_s: from start to end, in seconds.
        cpu_s: of the process and of those of its children that it waited for.
        peak_mib: largest resident set of one process among them.
        status: exit status.
        output: standard output and error.
        steps: pyinfra's operations in their order, each with the seconds until the next one began.
    """

    wall_s: float
    cpu_s: float
    peak_mib: float
    status: int
    output: str
    steps: tuple[tuple[str, float], ...] = ()


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> Cost:
    """Run a command to its end.

    Args:
        argv: the command.
        env: variables beside those of this process.
        cwd: where it runs.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines, begun = [], []
    for line in process.stdout:
        lines.append(line)
        found = _OPERATION.search(line)
        if found:
            begun.append((found[1], time.monotonic()))
    _, status, usage = os.wait4(process.pid, 0)
    # Popen would wait for a process that is gone already.
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - began
    ends = [at for _, at in begun[1:]] + [began + wall]
    # Commands that aren't pyinfra's have no steps.
    steps = tuple((name, end - at) for (name, at), end in zip(begun, ends, strict=False))
    cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    return Cost(wall, cpu, peak, process.returncode, "".join(lines), steps)


def median_of(times: int, once: Callable[[], Cost]) -> dict[str, Any]:
    """The medians of several runs, and every run's wall time.

    Args:
        times: how many runs.
        once: makes one run.

    Raises:
        RuntimeError: a run failed; a failed run's time means nothing.
    """
    costs = []
    for _ in range(times):
        cost = once()
        if cost.status != 0:
            raise RuntimeError(f"exit status {cost.status}\n{cost.output[-4000:]}")
        costs.append(cost)
    medians = {
        name: round(statistics.median(asdict(cost)[name] for cost in costs), 3)
        for name in ("wall_s", "cpu_s", "peak_mib")
    }
    return {**medians, "runs_wall_s": [round(cost.wall_s, 3) for cost in costs]}
