"""Checks of disk, memory and limits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lmcache_fleet.playbook.model import NativeBuildStep
from lmcache_fleet.preflight.observation import Space, Subject
from lmcache_fleet.preflight.registry import Values, check

_GIB = 1024**3
_FEW_INODES = 300_000
_TMP_GB = 1.0
_SHM_GB = 1.0
# One pinned allocation above this is refused by the driver of 910B cards, whatever memory there is.
_PINNED_GB = 250.0
_PINNED_RISKY_GB = 200.0
_P2P_GB = 40.0
_TIGHT = 0.8


def _space(subject: Subject, name: str) -> Space:
    return subject.host.spaces.get(name, Space())


@check("disk-short")
def _disk(subject: Subject) -> Iterator[Values]:
    free, wanted = _space(subject, "prefix").free_gb, subject.playbook.requires.disk_free_gb
    if free is not None and wanted is not None and free < wanted:
        yield {"free": f"{free:g}", "wanted": f"{wanted:g}"}


@check("inodes-few")
def _inodes(subject: Subject) -> Iterator[Values]:
    free = _space(subject, "prefix").free_inodes
    if free is not None and free < _FEW_INODES:
        yield {"free": free}


@check("prefix-read-only")
def _read_only(subject: Subject) -> Iterator[Values]:
    if "ro" in _space(subject, "prefix").options:
        yield {}


@check("prefix-noexec")
def _noexec(subject: Subject) -> Iterator[Values]:
    if "noexec" in _space(subject, "prefix").options:
        yield {}


@check("tmp-short")
def _tmp(subject: Subject) -> Iterator[Values]:
    free = _space(subject, "tmp").free_gb
    if subject.builds and free is not None and free < _TMP_GB:
        yield {"free": f"{free:g}", "wanted": f"{_TMP_GB:g}"}


@check("shm-short")
def _shm(subject: Subject) -> Iterator[Values]:
    free = _space(subject, "shm").free_gb
    if subject.service and subject.ranks > 1 and free is not None and free < _SHM_GB:
        yield {"free": f"{free:g}", "wanted": f"{_SHM_GB:g}"}


@check("memory-short")
def _memory(subject: Subject) -> Iterator[Values]:
    has, wanted = subject.host.memory_gb, subject.playbook.requires.memory_gb
    if has is not None and wanted is not None and has < wanted:
        yield {"found": f"{has:g}", "wanted": f"{wanted:g}"}


def _tier(subject: Subject) -> float:
    """GiB that LMCache takes of the host's memory, all ranks together."""
    server = subject.service.server if subject.service else None
    if server:
        return server.l1_size_gb
    if not subject.settings or not subject.truth("local_cpu"):
        return 0
    return (subject.number("max_local_cpu_size") or 0) * subject.ranks


@check("host-tier-exceeds-memory")
def _exceeds(subject: Subject) -> Iterator[Values]:
    tier, has = _tier(subject), subject.host.memory_gb
    if has is not None and tier > has:
        yield {"tier": f"{tier:g}", "memory": f"{has:g}", "ranks": subject.ranks}


@check("host-tier-tight")
def _tight(subject: Subject) -> Iterator[Values]:
    tier, has, free = _tier(subject), subject.host.memory_gb, subject.host.memory_available_gb
    running = any(unit.running for unit in subject.host.units.values())
    # A running service of ours has its tier already.
    room = has if running else free
    if has is not None and room is not None and room * _TIGHT < tier <= has:
        yield {"tier": f"{tier:g}", "free": f"{room:g}"}


@check("host-tier-above-pinned-limit")
def _pinned(subject: Subject) -> Iterator[Values]:
    size = subject.number("max_local_cpu_size") or 0
    if subject.vendor == "ascend" and size > _PINNED_GB:
        yield {"size": f"{size:g}", "limit": f"{_PINNED_GB:g}"}


@check("host-tier-near-pinned-limit")
def _near_pinned(subject: Subject) -> Iterator[Values]:
    size = subject.number("max_local_cpu_size") or 0
    if subject.vendor == "ascend" and _PINNED_RISKY_GB < size <= _PINNED_GB:
        yield {"size": f"{size:g}", "limit": f"{_PINNED_RISKY_GB:g}"}


@check("p2p-buffer-large")
def _p2p(subject: Subject) -> Iterator[Values]:
    size = subject.number("max_local_cpu_size") or 0
    if subject.vendor == "ascend" and subject.truth("enable_p2p") and size > _P2P_GB:
        yield {"size": f"{size:g}", "limit": f"{_P2P_GB:g}"}


@check("memlock-below-host-tier")
def _memlock(subject: Subject) -> Iterator[Values]:
    limit = _bytes(subject.service.memlock) if subject.service else None
    size = (subject.number("max_local_cpu_size") or 0) * _GIB
    if subject.vendor == "ascend" and limit is not None and limit < size and subject.service:
        yield {"limit": subject.service.memlock, "size": f"{size / _GIB:g}"}


def _bytes(text: str) -> float | None:
    """A limit as systemd writes it, in bytes; None for infinity and for what is no number."""
    found = re.fullmatch(r"(\d+)([KMGTPE]?)", text)
    return int(found[1]) * 1024 ** ("KMGTPE".index(found[2]) + 1 if found[2] else 0) if found else None


@check("memlock-of-login-low")
def _login_memlock(subject: Subject) -> Iterator[Values]:
    limit, size = subject.host.memlock, (subject.number("max_local_cpu_size") or 0) * _GIB
    if subject.vendor == "ascend" and limit is not None and limit < size:
        yield {"limit": f"{limit / 1024**2:.0f}", "size": f"{size / _GIB:g}"}


@check("hugepages-hold-memory")
def _hugepages(subject: Subject) -> Iterator[Values]:
    held, has = subject.host.hugepages_gb, subject.host.memory_gb
    if has and held > has / 4:
        yield {"held": f"{held:g}", "memory": f"{has:g}"}


@check("disk-tier-exceeds-disk")
def _disk_tier(subject: Subject) -> Iterator[Values]:
    size, free = subject.number("max_local_disk_size"), _space(subject, "kv").free_gb
    if subject.settings.get("local_disk") and size is not None and free is not None and size * subject.ranks > free:
        yield {"size": f"{size * subject.ranks:g}", "free": f"{free:g}"}


@check("build-memory-short")
def _build(subject: Subject) -> Iterator[Values]:
    free = subject.host.memory_available_gb
    needs = [step.job_memory_gb for step in subject.builds if isinstance(step, NativeBuildStep)]
    if free is not None and needs and free < max(needs):
        yield {"free": f"{free:g}", "wanted": f"{max(needs):g}"}
