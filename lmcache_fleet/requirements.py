"""Whether a host can run a playbook at all: its `requires` against what was observed."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from lmcache_fleet.accelerators import Accelerators
from lmcache_fleet.playbook.model import AcceleratorRequirement, Requirements
from lmcache_fleet.runtimes import Runtime, runtime_gaps


@dataclass(frozen=True, slots=True)
class Observed:
    """What of a host its requirements are about; None where the host didn't say.

    Args:
        arch: machine name.
        glibc: version of the C library.
        pythons: versions of the interpreters of the wanted minor version.
        memory_gb: memory, GiB.
        disk_free_gb: free space where the prefix is, GiB.
        accelerators: what the vendor's tool said.
        soc: SoC name as builds need it.
        toolkit: the toolkit's version, as a version that can be compared.
        driver: the driver's version, likewise.
        runtime: the stack that the interpreter below the release brings.
    """

    arch: str | None = None
    glibc: str | None = None
    pythons: tuple[str, ...] = ()
    memory_gb: float | None = None
    disk_free_gb: float | None = None
    accelerators: Accelerators | None = None
    soc: str | None = None
    toolkit: Version | None = None
    driver: Version | None = None
    runtime: Runtime | None = None

    @property
    def cuda(self) -> Version | None:
        """The newest CUDA that the driver serves."""
        return _parsed(str(self.accelerators.extra.get("cuda_version") or "")) if self.accelerators else None

    @property
    def compute_capabilities(self) -> tuple[tuple[int, str, Version | None], ...]:
        """Card, name and compute capability of every chip; None where the tool doesn't tell."""
        chips = self.accelerators.chips if self.accelerators else ()
        return tuple((chip.npu_id, chip.name, _parsed(chip.extra.get("compute_capability"))) for chip in chips)

    @property
    def socs(self) -> tuple[str, ...]:
        """Every architecture among the chips, such as gfx942; the SoC where the tool names one for all."""
        chips = self.accelerators.chips if self.accelerators else ()
        named = dict.fromkeys(str(chip.extra["gfx"]) for chip in chips if chip.extra.get("gfx"))
        return tuple(named) or ((self.soc,) if self.soc else ())


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One requirement that a host doesn't meet.

    Args:
        what: the requirement.
        cause: what was found.
        remedy: what to do.
    """

    what: str
    cause: str
    remedy: str


def shortfalls(requires: Requirements, host: Observed) -> list[Shortfall]:
    """Every requirement that the host doesn't meet; empty when it can run the playbook."""
    found: list[Shortfall] = []
    if requires.architectures and host.arch not in requires.architectures:
        wanted = " or ".join(requires.architectures)
        found.append(Shortfall("architecture", f"the host is {host.arch}, wanted {wanted}", "use another playbook"))
    if requires.accelerator:
        found += _accelerator(requires.accelerator, host)
    found += _version("CANN", requires.cann, host.toolkit, "install that toolkit, or use the playbook of the one there")
    found += _version("driver", requires.driver, host.driver, "upgrade the driver and firmware, then reboot")
    if requires.cuda and not (requires.accelerator and not _trusted(host)):
        found += _version("CUDA of the driver", requires.cuda, host.cuda, "upgrade the driver to one of that CUDA")
    if requires.toolkit and not (requires.accelerator and not _trusted(host)):
        found += _version("toolkit", requires.toolkit, host.toolkit, "install that version, or use another playbook")
    found += _version("glibc", requires.glibc, _parsed(host.glibc), "use a newer release of the distribution")
    if requires.python and host.pythons:
        # A build from a source tree between two releases says `3.13.0+`.
        versions = [_parsed(text.rstrip("+")) for text in host.pythons]
        if not any(version and SpecifierSet(requires.python).contains(version) for version in versions):
            cause = f"found {', '.join(host.pythons)}, wanted {requires.python}"
            found.append(Shortfall("python", cause, "install such an interpreter, or set the playbook's python"))
    if requires.runtime:
        gaps = runtime_gaps(requires.runtime, host.runtime, host.glibc, host.arch)
        found += [Shortfall("runtime", gap, requires.runtime.otherwise) for gap in gaps]
    for what, wanted_gb, has in (
        ("free disk", requires.disk_free_gb, host.disk_free_gb),
        ("memory", requires.memory_gb, host.memory_gb),
    ):
        if wanted_gb is not None and (has is None or has < wanted_gb):
            cause = f"{'unknown' if has is None else f'{has:g}'} GiB, wanted {wanted_gb:g}"
            found.append(Shortfall(what, cause, "free or add some, or lower the requirement in the playbook"))
    return found


def _accelerator(wanted: AcceleratorRequirement, host: Observed) -> list[Shortfall]:
    if wanted.vendor == "cpu":
        return []
    seen = host.accelerators
    # Held or sick cards are not the same as none: only a host without the vendor's tool has no card for sure.
    if wanted.optional and (seen is None or seen.state == "tool-missing"):
        return []
    if seen is None or seen.state != "ok":
        state = "nothing was read" if seen is None else f"{seen.state}: {seen.message}"
        return [Shortfall(f"{wanted.vendor} accelerator", state, _REMEDIES.get(seen.state if seen else "", _LOOK))]
    found = []
    socs = host.socs or ((seen.chips[0].name if seen.chips else "none"),)
    trials = [soc for soc in socs if is_experimental(wanted, soc)]
    if trials and not wanted.allow_experimental:
        found.append(Shortfall("SoC", f"{' and '.join(trials)} is experimental in this playbook", _EXPERIMENTAL))
    strange = [
        soc for soc in socs if soc not in trials and not any(fnmatch.fnmatchcase(soc, item) for item in wanted.soc)
    ]
    if wanted.soc and strange:
        cause = f"the SoC is {' and '.join(strange)}, wanted {' or '.join(wanted.soc)}"
        found.append(Shortfall("SoC", cause, "use the playbook of this SoC, or name it in requires.accelerator.soc"))
    if wanted.health:
        # A chip that doesn't tell its health is not a healthy chip.
        sick = [
            f"chip {chip.npu_id}: {chip.health or 'unknown'}" for chip in seen.chips if chip.health != wanted.health
        ]
        if sick:
            found.append(Shortfall("health", ", ".join(sick), "look at the card's alarms; exclude or replace it"))
    if wanted.compute_capability:
        condition = SpecifierSet(wanted.compute_capability)
        weak = [
            f"card {card} ({name}): {capability or 'unknown'}"
            for card, name, capability in host.compute_capabilities
            if capability is None or not condition.contains(capability)
        ]
        if weak:
            cause = f"{', '.join(weak)}, wanted {wanted.compute_capability}"
            found.append(Shortfall("compute capability", cause, "such a card is too old for LMCache's kernels"))
    if seen.chip_count < (wanted.count or 1):
        cause = f"{seen.chip_count} chips, wanted {wanted.count or 1}"
        found.append(Shortfall("chips", cause, "check the cards, their power and the devices given to a container"))
    return found


def _trusted(host: Observed) -> bool:
    """Whether the accelerator answered; where it didn't, that is said once and not again by every version."""
    return host.accelerators is not None and host.accelerators.state == "ok"


def is_experimental(wanted: AcceleratorRequirement | None, soc: str | None) -> bool:
    """Whether a SoC is one of those that a playbook calls experimental."""
    if wanted is None or soc is None:
        return False
    return any(fnmatch.fnmatchcase(soc, pattern) for pattern in wanted.experimental)


def _version(what: str, condition: str | None, version: Version | None, remedy: str) -> list[Shortfall]:
    if condition is None:
        return []
    if version is None:
        return [Shortfall(what, f"no version found, wanted {condition}", remedy)]
    if SpecifierSet(condition).contains(version, prereleases=True):
        return []
    return [Shortfall(what, f"found {version}, wanted {condition}", remedy)]


def _parsed(text: str | None) -> Version | None:
    try:
        return Version(str(text)) if text else None
    except InvalidVersion:
        return None


_EXPERIMENTAL = "set the variable allow_experimental to true for this host, knowing that nobody vouches for it"
_LOOK = "run the vendor's tool on the host and look at what it says"
_REMEDIES = {
    "device-in-use": "end the process or container that holds the device, or free it there",
    "dcmi-init-failed": "check devices, group HwHiAiUser, other containers, and a reboot after a driver upgrade",
    "tool-missing": "install the driver, or put the vendor's tool on PATH",
    "driver-not-loaded": "load or install the driver; a reboot may be due",
}
