"""Images that we brought to a host, and which of them no release needs any more. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lmcache_fleet.changes import Change
from lmcache_fleet.containers import WantedImage
from lmcache_fleet.release import HostReleases
from lmcache_fleet.sizes import readable


def needless(host: HostReleases, doomed: Iterable[str], wanted: Iterable[WantedImage]) -> dict[str, dict[str, Any]]:
    """Entries of images that neither a release that stays nor the playbook names.

    Args:
        host: what is on the host.
        doomed: releases that are about to go.
        wanted: the images that the playbook's steps stand for.
    """
    gone = set(doomed)
    needed = {name for image in wanted for name in (image.reference, image.base, image.remote) if name}
    for state in host.releases.values():
        if state.name not in gone:
            for record in state.records.values():
                needed |= set(_named(record))
    return {key: entry for key, entry in host.images.items() if needed.isdisjoint(entry["names"])}


def _named(record: Any) -> list[str]:
    """The images that a release's record names: the one it runs, and what that was made on."""
    if not isinstance(record, dict) or "reference" not in record:
        return []
    return [name for name in (record["reference"], record.get("base")) if name]


def removals(entries: dict[str, dict[str, Any]], seen: dict[str, dict[str, Any]]) -> list[Change]:
    """What happens to images that nothing of ours needs; nothing to those that somebody's container is made of.

    Args:
        entries: as `needless` gave them.
        seen: what the host says of each.
    """
    changes = []
    for key, entry in entries.items():
        what, found = f"image {entry['names'][0]}", seen[key]
        if found["state"] == "ours":
            changes.append(Change(what, f"frees up to {readable(found['size'])}", None))
        elif found["state"] == "theirs":
            changes.append(Change(what, f"also named {', '.join(found['by'])}", "left to whoever named it"))
        elif found["state"] == "gone":
            changes.append(Change(what, "gone already", None))
    return changes


def left(entries: dict[str, dict[str, Any]], seen: dict[str, dict[str, Any]]) -> list[str]:
    """What is said of images that nothing of ours needs, and that stay for now."""
    why = {
        "used": "while it is in use: {}",
        "unknown": "as {engine} doesn't answer",
    }
    return [
        f"image {entry['names'][0]} stays "
        + why[seen[key]["state"]].format(", ".join(seen[key]["by"]), engine=entry["engine"])
        for key, entry in entries.items()
        if seen[key]["state"] in why
    ]
