"""What a preflight found on a fleet, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmcache_fleet.failures import Failure
from lmcache_fleet.preflight import PREFLIGHT
from lmcache_fleet.preflight.catalogue import SEVERITIES, Finding
from lmcache_fleet.recording import Recorder


@dataclass(frozen=True, slots=True)
class Judged:
    """What a rollout's preflight found.

    Args:
        findings: host → the checks that fired there, of every host that was judged.
        failures: host → why it may not take part.
    """

    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Hosts that share a finding."""

    finding: Finding
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A preflight's result.

    Args:
        findings: host → what was found there; only hosts that were judged.
        failures: hosts that could not be judged.
    """

    findings: dict[str, list[Finding]]
    failures: tuple[Failure, ...]

    @classmethod
    def of(cls, names: Sequence[str], run: Recorder) -> Report:
        """The report of a run.

        Args:
            names: hosts that took part.
            run: what was written down.
        """
        judged = {name: run.findings[name] for name in names if name in run.findings}
        failures = [run.failures[name] for name in names if name in run.failures and name not in judged]
        silent = [name for name in names if name not in judged and name not in run.failures]
        lost = [
            Failure(name, PREFLIGHT, "it was not judged", "run again, and report it if it stays so") for name in silent
        ]
        return cls(judged, (*failures, *lost))

    @property
    def refused(self) -> list[str]:
        """Hosts where something surely stands in the way."""
        return [name for name, found in self.findings.items() if any(item.severity == "error" for item in found)]

    @property
    def ready(self) -> list[str]:
        """The other hosts that were judged."""
        return [name for name in self.findings if name not in self.refused]

    def groups(self) -> list[Group]:
        """Findings with the hosts that share them, errors first."""
        hosts: dict[Finding, list[str]] = {}
        for name, found in self.findings.items():
            for item in found:
                hosts.setdefault(item, []).append(name)
        made = [Group(item, tuple(names)) for item, names in hosts.items()]
        return sorted(made, key=lambda group: SEVERITIES.index(group.finding.severity))

    def status(self, strict: bool = False) -> int:
        """The exit status: 1 for errors and for hosts that weren't judged, 2 for warnings when asked for."""
        if self.refused or self.failures:
            return 1
        warned = any(item.severity == "warning" for found in self.findings.values() for item in found)
        return 2 if strict and warned else 0

    def as_json(self, language: str = "en") -> dict[str, Any]:
        """The same as plain data."""
        hosts: dict[str, Any] = {
            name: {"ready": name not in self.refused, "findings": [item.as_json(language) for item in found]}
            for name, found in self.findings.items()
        }
        for failure in self.failures:
            hosts[failure.host] = {
                "ready": False,
                "findings": [],
                "failed": {"step": failure.step, "cause": failure.cause, "remedy": failure.remedy},
            }
        return {"ok": self.status() == 0, "hosts": hosts}
