"""Whether installed distributions fit together, and which of their conflicts a playbook expects; pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from lmcache_fleet.digest import digest
from lmcache_fleet.playbook.model import PackagesStep, Playbook, VenvStep

#: Program that prints what `conflicts` reads; run by the interpreter of the environment.
PROGRAM = "installed_metadata.py"


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution that is there.

    Args:
        version: its version.
        requires: its `Requires-Dist` lines.
    """

    version: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """A requirement that isn't met.

    Args:
        package: who asks.
        requirement: for what.
        found: the version that is there; None when there is none.
    """

    package: str
    requirement: str
    found: str | None

    def __str__(self) -> str:
        return f"{self.package} wants {self.requirement}, {self.found or 'nothing'} is installed"


def read_installed(data: Mapping[str, Mapping[str, object]]) -> dict[str, Installed]:
    """Canonical name → distribution, from the program's answer.

    Args:
        data: name → {version, requires}.
    """
    found: dict[str, Installed] = {}
    for name, item in data.items():
        requires = item.get("requires")
        lines = tuple(str(line) for line in requires) if isinstance(requires, list) else ()
        found[canonicalize_name(name)] = Installed(str(item.get("version")), lines)
    return found


def conflicts(installed: Mapping[str, Installed], environment: Mapping[str, str]) -> list[Conflict]:
    """Every requirement that isn't met, as `pip check` finds them.

    Args:
        installed: what is there.
        environment: what markers are judged by; see `installer.marker_environment`.
    """
    found = []
    for name, item in sorted(installed.items()):
        for line in item.requires:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                found.append(Conflict(name, line, None))
                continue
            if requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""}):
                continue
            there = installed.get(canonicalize_name(requirement.name))
            if there is None or not _fits(requirement, there.version):
                shown = f"{requirement.name}{requirement.specifier}"
                found.append(Conflict(name, shown, there.version if there else None))
    return found


def _fits(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def unexpected(found: Iterable[Conflict], expected: Sequence[str]) -> list[Conflict]:
    """The conflicts that no pattern expects.

    Args:
        found: as `conflicts` gave them.
        expected: `who: whom` patterns of canonical names, such as `vllm: torch*`.
    """
    return [conflict for conflict in found if not any(_expects(pattern, conflict) for pattern in expected)]


def _expects(pattern: str, conflict: Conflict) -> bool:
    who, _, whom = (part.strip() for part in pattern.partition(":"))
    wanted: str
    try:
        wanted = canonicalize_name(Requirement(conflict.requirement).name)
    except InvalidRequirement:
        wanted = conflict.requirement
    return fnmatch.fnmatchcase(conflict.package, who) and fnmatch.fnmatchcase(wanted, whom)


def expected_conflicts(playbook: Playbook) -> list[str] | None:
    """The conflicts that a playbook expects; None when it doesn't judge them.

    A requirement that a step overrides is in conflict by the playbook's own wish.

    Args:
        playbook: rendered for the host.
    """
    listed = next((venv.expected_conflicts for venv in playbook.of_kind(VenvStep)), None)
    if listed is None:
        return None
    overridden = [Requirement(line).name for step in playbook.of_kind(PackagesStep) for line in step.overrides]
    return [*listed, *(f"*: {canonicalize_name(name)}" for name in overridden)]


def checked_digest(distributions: Mapping[str, Sequence[str]], expected: Sequence[str]) -> str:
    """What a check's record is bound to: with other versions or other expectations it has to be made again.

    Args:
        distributions: canonical name → versions, as the release probe reads them.
        expected: the expected conflicts.
    """
    return digest([{name: list(versions) for name, versions in distributions.items()}, list(expected)])
