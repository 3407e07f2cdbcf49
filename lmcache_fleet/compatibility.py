"""Known-bad combinations in a playbook, from rules kept as data."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import yaml
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import AfterValidator, TypeAdapter

from lmcache_fleet.playbook.model import (
    LmcacheConfigStep,
    PackagesStep,
    Playbook,
    ServiceStep,
    SourceStep,
    StrictModel,
    VersionCondition,
    parsed_requirement,
)
from lmcache_fleet.problems import nearest
from lmcache_fleet.requirements import Observed
from lmcache_fleet.rule_conditions import HostCondition, PlaybookCondition

_RULES = Path(__file__).parent / "rules"


def _canonical(pins: dict[str, str]) -> dict[str, str]:
    return {canonicalize_name(name): condition for name, condition in pins.items()}


class Rule(StrictModel):
    """One known-bad combination; it fires when all of the conditions that it names hold.

    One with `host` is judged where a host was observed. A `note` is worth knowing and refuses nothing.
    """

    id: str
    kind: Literal["abi", "connector-loading", "feature"]
    pins: Annotated[dict[str, VersionCondition], AfterValidator(_canonical)] = {}
    same_version: list[str] = []
    connector: str | None = None
    ref: str | None = None
    unless_patch: str | None = None
    module_path: bool | None = None
    without_server: bool = False
    without_module_path: bool = False
    playbook: PlaybookCondition = PlaybookCondition()
    host: HostCondition | None = None
    note: bool = False
    message: str
    remedy: str
    source: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that fired.

    Args:
        rule: its id.
        message: what is wrong.
        remedy: what to do.
    """

    rule: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}; {self.remedy}"


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """All rules."""
    data = yaml.safe_load((_RULES / "compatibility.yaml").read_text(encoding="utf-8"))
    return tuple(TypeAdapter(list[Rule]).validate_python(data))


@lru_cache(maxsize=1)
def lmcache_keys() -> dict[str, frozenset[str]]:
    """LMCache version → configuration keys that it knows."""
    data = yaml.safe_load((_RULES / "lmcache_keys.yaml").read_text(encoding="utf-8"))
    return {version: frozenset(keys) for version, keys in data.items()}


def pinned_versions(playbook: Playbook) -> dict[str, Version]:
    """Canonical distribution name → version that the playbook pins."""
    found: dict[str, Version] = {}
    for step in playbook.of_kind(PackagesStep):
        for pin in step.pins:
            requirement = parsed_requirement(pin)
            exact = [spec.version for spec in requirement.specifier if spec.operator in {"==", "==="}]
            if exact:
                found[canonicalize_name(requirement.name)] = Version(exact[0])
    return found


def findings(playbook: Playbook, host: Observed | None = None) -> list[Finding]:
    """Every rule that fires for a playbook, and every configuration key that its LMCache doesn't know.

    Args:
        playbook: rendered.
        host: a host that was observed; without one, rules that speak of hosts stay silent.
    """
    return _fired(playbook, host, note=False) + _unknown_keys(playbook)


def notes(playbook: Playbook) -> list[Finding]:
    """What is worth knowing of a playbook's combination and refuses nothing."""
    return _fired(playbook, None, note=True)


def _fired(playbook: Playbook, host: Observed | None, note: bool) -> list[Finding]:
    return [
        Finding(rule.id, rule.message, rule.remedy)
        for rule in rules()
        if rule.note == note and _fires(rule, playbook) and (rule.host is None or (host and rule.host.fits(host)))
    ]


def _fires(rule: Rule, playbook: Playbook) -> bool:
    versions = pinned_versions(playbook)
    services = playbook.of_kind(ServiceStep)
    sources = playbook.of_kind(SourceStep)
    conditions: list[bool] = []
    for name, condition in rule.pins.items():
        conditions.append(name in versions and SpecifierSet(condition).contains(versions[name], prereleases=True))
    if rule.same_version:
        seen = [versions[name] for name in rule.same_version if name in versions]
        conditions.append(len(seen) == len(rule.same_version) and len({version.public for version in seen}) > 1)
    if rule.connector:
        conditions.append(any(service.connector.name == rule.connector for service in services))
    if rule.ref:
        conditions.append(any(fnmatch.fnmatchcase(source.ref, rule.ref) for source in sources))
    if rule.unless_patch:
        patched = [patch.path for source in sources for patch in source.patches if patch.when]
        conditions.append(rule.unless_patch not in patched)
    if rule.module_path:
        conditions.append(any(service.connector.module_path for service in services))
    if rule.without_server:
        conditions.append(any(service.server is None for service in services))
    if rule.without_module_path:
        conditions.append(any(service.connector.module_path is None for service in services))
    if rule.playbook.names_anything:
        conditions.append(rule.playbook.holds(playbook))
    return bool(conditions) and all(conditions)


def _unknown_keys(playbook: Playbook) -> list[Finding]:
    found = []
    for step in playbook.of_kind(LmcacheConfigStep):
        known = lmcache_keys().get(step.lmcache)
        if known is None:
            continue
        for key in step.settings:
            if key not in known and key not in step.extra_keys:
                message = f"LMCache {step.lmcache} has no setting '{key}'{nearest(key, known)}"
                found.append(Finding("unknown-lmcache-key", message, "correct it: LMCache would ignore it silently"))
    return found
