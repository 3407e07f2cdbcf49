"""Running programs, and knowing a process again: a pid alone may since belong to somebody else."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class LabError(Exception):
    """Something a person has to know or do; shown as one message, without a traceback."""


def run(
    argv: Sequence[str | Path], *, stdin: str | None = None, check: bool = True, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; a failure carries the program's own last words."""
    args = [str(arg) for arg in argv]
    result = subprocess.run(args, input=stdin, capture_output=True, text=True, check=False, env=env)
    if check and result.returncode != 0:
        words = (result.stderr or result.stdout).strip().splitlines()[-8:]
        raise LabError(f"`{' '.join(args)}` ended with status {result.returncode}:\n  " + "\n  ".join(words))
    return result


def started_at(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when there is none (a zombie counts as none)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_same(pid: int, started: int) -> bool:
    """Whether this pid is still the process that was started at that moment."""
    return pid > 1 and started > 0 and started_at(pid) == started


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


def kill_and_wait(pid: int, started: int, how: signal.Signals, limit: float) -> bool:
    """Signal that very process and wait until it is gone; False when it outlives the limit."""
    until = time.monotonic() + limit
    if is_same(pid, started):
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            return True
    while is_same(pid, started):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
