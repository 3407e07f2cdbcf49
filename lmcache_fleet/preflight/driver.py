"""Checks of the Ascend driver and firmware."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from lmcache_fleet.parsers.ascend_version import ascend_version
from lmcache_fleet.preflight.observation import Subject
from lmcache_fleet.preflight.registry import Values, check
from lmcache_fleet.preflight.versions import fits

_REGISTERS_HOST_MEMORY = Version("24.1.dev0")
_CANN_9 = Version("9.0.dev0")
_FOR_CANN_9 = Version("25.0.dev0")
_NEEDS_NO_PRIVILEGE = Version("25.0.dev0")


@check("driver-missing")
def _missing(subject: Subject) -> Iterator[Values]:
    if subject.cards and subject.cards.driver_state == "not-installed":
        yield {}


@check("driver-not-loaded")
def _not_loaded(subject: Subject) -> Iterator[Values]:
    if subject.cards and subject.cards.driver_state == "not-loaded":
        yield {"found": subject.cards.driver or "-"}


@check("driver-unreadable")
def _unreadable(subject: Subject) -> Iterator[Values]:
    if subject.cards and subject.cards.driver_state not in {"ok", "not-installed", "not-loaded"}:
        yield {"state": subject.cards.driver_state}


@check("driver-version")
def _version(subject: Subject) -> Iterator[Values]:
    wanted = subject.playbook.requires.driver
    if not fits(subject.host.driver, wanted):
        yield {"found": subject.host.driver, "wanted": wanted}


@check("driver-cannot-register-memory")
def _memory(subject: Subject) -> Iterator[Values]:
    version = subject.host.driver
    if subject.cards and version is not None and version < _REGISTERS_HOST_MEMORY:
        yield {"found": version}


@check("driver-older-than-cann")
def _older_than_cann(subject: Subject) -> Iterator[Values]:
    version, cann = subject.host.driver, subject.host.toolkit
    # The recommendation of CANN 9; older drivers are seen to time out in kernels and in collective set-up.
    if subject.cards and version is not None and cann is not None and cann >= _CANN_9 and version < _FOR_CANN_9:
        yield {"driver": version, "cann": cann}


@check("driver-needs-capabilities")
def _capabilities(subject: Subject) -> Iterator[Values]:
    version = subject.host.driver
    if subject.cards and version is not None and _REGISTERS_HOST_MEMORY <= version < _NEEDS_NO_PRIVILEGE:
        yield {"found": version}


@check("firmware-out-of-range")
def _firmware(subject: Subject) -> Iterator[Values]:
    ascend = subject.cards
    version = ascend_version(ascend.firmware) if ascend else None
    limits = [
        ascend_version(text) for text in re.findall(r"[\d.]+\w*", (ascend.firmware_range if ascend else "") or "")
    ]
    if ascend and version is not None and len(limits) == 2 and limits[0] and limits[1]:
        # The upper end is meant to its last digit: `7.9.9` takes `7.9.9.3` in.
        upper = limits[1].release
        if version < limits[0] or version.release[: len(upper)] > upper:
            yield {"firmware": ascend.firmware, "range": ascend.firmware_range}


@check("driver-user-missing")
def _user(subject: Subject) -> Iterator[Values]:
    ascend = subject.cards
    if ascend and ascend.install_user == "HwHiAiUser" and not ascend.user_exists and ascend.driver_state == "ok":
        yield {"user": ascend.install_user}
