"""`ss -Hltnp`: who listens on which TCP port."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lmcache_fleet.plain import Plain

_PROCESS = re.compile(r'\("((?:[^"\\]|\\.)*)",pid=(\d+)')


@dataclass(frozen=True, slots=True)
class Listener(Plain):
    """A TCP port that somebody listens on.

    Args:
        address: as printed, such as `127.0.0.1`, `*`, `[::]`.
        port: its number.
        name: the process's name; empty where it isn't told (another user's, when not root).
        pid: likewise.
    """

    address: str
    port: int
    name: str = ""
    pid: int | None = None


def parse_listeners(lines: Iterable[str]) -> tuple[Listener, ...]:
    """The listeners of an output of `ss -Hltnp`; lines of another form are passed over."""
    found = []
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) < 5 or fields[0] != "LISTEN":
            continue
        address, separator, port = fields[3].rpartition(":")
        if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
            continue
        process = _PROCESS.search(fields[5]) if len(fields) == 6 else None
        name, pid = (process[1], int(process[2])) if process else ("", None)
        found.append(Listener(address, int(port), name, pid))
    return tuple(found)
