"""HAProxy's runtime interface: what its answers say of a backend's servers, and the commands that change one."""

from __future__ import annotations

import csv
from dataclasses import dataclass

# Bits of srv_admin_state and srv_check_state (HAProxy's management guide, "show servers state").
_MAINTENANCE = 0x01 | 0x02 | 0x04 | 0x20 | 0x40
_FORCED_DRAIN = 0x08
_DRAIN = 0x08 | 0x10
_CHECK_CONFIGURED = 0x02
_STARTING, _RUNNING = 1, 2


@dataclass(frozen=True, slots=True)
class Server:
    """One server of a backend.

    Args:
        name: in the backend.
        up: HAProxy sends it requests, or would if it were not drained.
        drained: it gets no new requests by a command of the runtime interface.
        draining: it gets no new requests, whoever wanted that.
        maintenance: it is out of service by the configuration, a name that doesn't resolve, or an operator.
        checked: it has a health check.
        sessions: requests that it works on.
        queued: requests that wait for it.
        check: what the last health check saw.
    """

    name: str
    up: bool
    drained: bool
    draining: bool
    maintenance: bool
    checked: bool
    sessions: int
    queued: int
    check: str

    @property
    def serving(self) -> bool:
        """It gets new requests."""
        return self.up and not self.draining and not self.maintenance


class UnreadableAnswer(ValueError):
    """HAProxy answered something else than asked for, such as an error."""


def questions(backend: str) -> list[str]:
    """The commands whose answers `parse` reads."""
    # Statistics of all servers: by a name one gets those of a frontend that is called the same.
    return [f"show servers state {backend}", "show stat -1 4 -1"]


def parse(backend: str, state: str, stat: str) -> dict[str, Server]:
    """Servers of a backend by name.

    Args:
        backend: its name.
        state: answer to `show servers state` of it.
        stat: answer to `show stat`.

    Raises:
        UnreadableAnswer: one of them is something else.
    """
    lines = state.splitlines()
    header = next((line for line in lines if line.startswith("# ")), None)
    if header is None:
        raise UnreadableAnswer(f"`show servers state` answered: {state.strip() or 'nothing'}")
    if not stat.startswith("# "):
        raise UnreadableAnswer(f"`show stat` answered: {stat.strip() or 'nothing'}")
    columns = header[2:].split()
    rows = csv.DictReader(line for line in stat[2:].splitlines() if line.strip())
    counts = {row["svname"]: row for row in rows if row["pxname"] == backend}
    servers = {}
    for line in lines[lines.index(header) + 1 :]:
        if not line.strip():
            continue
        row = dict(zip(columns, line.split(" "), strict=False))
        try:
            name, admin = row["srv_name"], int(row["srv_admin_state"])
            count = counts[name]
            servers[name] = Server(
                name=name,
                up=int(row["srv_op_state"]) in {_STARTING, _RUNNING},
                drained=bool(admin & _FORCED_DRAIN),
                draining=bool(admin & _DRAIN),
                maintenance=bool(admin & _MAINTENANCE),
                checked=bool(int(row["srv_check_state"]) & _CHECK_CONFIGURED),
                sessions=int(count.get("scur") or 0),
                queued=int(count.get("qcur") or 0),
                check=" ".join(filter(None, (count.get("check_status"), count.get("last_chk")))),
            )
        except (KeyError, ValueError) as error:
            raise UnreadableAnswer(f"`show servers state` has a line that can't be read: {line}") from error
    return servers


def set_state(backend: str, server: str, state: str) -> str:
    """The command that gives a server an administrative state, `drain` or `ready`."""
    return f"set server {backend}/{server} state {state}"
