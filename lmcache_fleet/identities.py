"""Which installation of a host the control machine saw last: a host with another machine id was reimaged."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lmcache_fleet.store import store_root


def known_machine_id(host: str, root: Path | None = None) -> str | None:
    """The machine id with which a host was converged last; None when it never was from here.

    Args:
        host: its name in the inventory.
        root: the artifact store, if not the usual one.
    """
    try:
        found = json.loads(_path(host, root).read_text(encoding="utf-8"))
        return str(found["machine_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember_machine_id(host: str, machine_id: str, root: Path | None = None) -> None:
    """Keep the machine id of a converged host.

    Args:
        host: its name in the inventory.
        machine_id: what the host's /etc/machine-id says.
        root: the artifact store, if not the usual one.
    """
    if known_machine_id(host, root) == machine_id:
        return
    path = _path(host, root)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"machine_id": machine_id}), encoding="utf-8")
    part.replace(path)


def _path(host: str, root: Path | None) -> Path:
    return (root or store_root()) / "hosts" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', host)}.json"
