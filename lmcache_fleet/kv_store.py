"""The KV store's unit and access list, and what a host lacks of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmcache_fleet.changes import Change, text_change
from lmcache_fleet.digest import text_digest
from lmcache_fleet.playbook.model import KvStoreStep
from lmcache_fleet.units import render_unit, unit_digest

UNIT = "lmcache-fleet-kv-store.service"
ACL = "/etc/lmcache-fleet/kv-store.acl"


def packaged_unit(step: KvStoreStep, manager: str | None) -> str:
    """The distribution's own unit of the server, in whose place ours runs.

    Args:
        step: the step.
        manager: the host's package manager.
    """
    return f"{step.server}.service" if manager == "dnf" else f"{step.server}-server.service"


def watched_units(step: KvStoreStep) -> tuple[str, ...]:
    """All units that are looked at, on whatever distribution."""
    return (UNIT, packaged_unit(step, "apt-get"), packaged_unit(step, "dnf"))


def acl_text(password: str | None) -> str:
    """The access list: one user, who may read and write keys but not administer the server.

    Args:
        password: only its hash is written; None lets anyone in, for a server on loopback.
    """
    who = "nopass" if password is None else f"#{text_digest(password)}"
    return f"user default on {who} ~* &* +@all -@admin -@dangerous +info\n"


def unit_text(step: KvStoreStep, access: str) -> str:
    """The unit.

    Args:
        step: the step.
        access: digest of the access list, so that another one restarts the server.
    """
    memory = int(step.max_memory_gb * 1024**3)
    return render_unit("units/kv_store.service.j2", {"step": step, "acl": ACL, "memory": memory, "access": access})


def changes(
    step: KvStoreStep, wanted: str, units: Mapping[str, Any], acl: tuple[str | None, str], packaged: str
) -> list[Change]:
    """What differs between the host's server and the wanted one.

    Args:
        step: the step.
        wanted: text of the unit.
        units: as they are on the host, by name.
        acl: digest of the access list on the host, and the wanted one.
        packaged: the distribution's own unit.
    """
    found: list[Change] = []
    if acl[0] != acl[1]:
        before = None if acl[0] is None else "another access list"
        found.append(Change(ACL, before, f"password of {step.password}", restarts=True))
    unit = units.get(UNIT)
    changed = text_change(f"/etc/systemd/system/{UNIT}", unit.text if unit else None, wanted)
    if changed:
        found.append(changed)
    other = units.get(packaged)
    if other is not None and other.properties.get("UnitFileState") == "enabled":
        found.append(Change(packaged, "enabled", "stopped and disabled", why=f"{UNIT} runs in its place"))
    if unit is None or not unit.running:
        state = unit.properties.get("ActiveState", "absent") if unit else "absent"
        found.append(Change(f"process of {UNIT}", state, "running", restarts=True))
    elif unit.environment.get("LMCACHE_FLEET_UNIT") != unit_digest(wanted):
        found.append(Change(f"process of {UNIT}", "started from another unit", "restarted", restarts=True))
    if unit is not None and unit.text is not None and unit.properties.get("UnitFileState") != "enabled":
        found.append(Change(UNIT, unit.properties.get("UnitFileState"), "enabled"))
    return found
