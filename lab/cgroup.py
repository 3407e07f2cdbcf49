"""A cgroup for each host. Without, the systemds of all hosts would share one tree, and reap each other's services."""

from __future__ import annotations

import os
from pathlib import Path


def groups(name: str, *, make: bool = True) -> list[Path]:
    """A cgroup of its own for a host in the hierarchies that systemd uses: v2, and v1's named one."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options):
            group = Path(left.split()[4]) / "lmcache-fleet-lab" / name
            if make:
                group.mkdir(parents=True, exist_ok=True)
            found.append(group)
    return found


def remove(group: Path) -> None:
    """Remove an empty cgroup and what its host made in it."""
    for path, _, _ in os.walk(group, topdown=False):
        try:
            Path(path).rmdir()
        except OSError:
            # Still emptying, or in use by another: an empty group left behind costs nothing.
            continue
