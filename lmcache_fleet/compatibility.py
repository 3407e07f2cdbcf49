"""Known-bad combinations in a playbook, from rules kept as data."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import AfterValidator, Field, TypeAdapter

from lmcache_fleet.once import ById
from lmcache_fleet.playbook.model import (
    LmcacheConfigStep,
    PackagesStep,
    Playbook,
    ServiceStep,
    SourceStep,
    StrictModel,
    VerifyStep,
    VersionCondition,
    parsed_requirement,
)
from lmcache_fleet.problems import nearest
from lmcache_fleet.requirements import Observed
from lmcache_fleet.rule_conditions import HostCondition, PlaybookCondition
from lmcache_fleet.yaml_rules import read_rules


def _canonical(pins: dict[str, str]) -> dict[str, str]:
    return {canonicalize_name(name): condition for name, condition in pins.items()}


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


class Rule(StrictModel):
    """One known-bad combination; it fires when all of the conditions that it names hold.

    One with `host` is judged where a host was observed. A `note` is worth knowing and refuses nothing.
    """

    id: str
    kind: Literal["abi", "connector-loading", "feature"]
    pins: Annotated[dict[str, VersionCondition], AfterValidator(_canonical)] = {}
    same_version: list[str] = Field(default=[], description="distributions, all pinned, and not to one version")
    out_of_order: list[str] = Field(default=[], description="two distributions that no two steps pin in this order")
    binary_of: str | None = Field(default=None, description="a distribution pinned by a step that may take a wheel")
    unowned: str | None = Field(default=None, description="an import package that no packages step claims by `owns`")
    vendor: str | None = Field(default=None, description="accelerator that the playbook requires")
    connector: str | None = Field(default=None, description="shell pattern of the connector's name")
    module_path: bool | str | None = Field(default=None, description="whether there is one, or its shell pattern")
    server: bool | None = Field(default=None, description="whether the service has an LMCache server beside it")
    verify_mode: str | None = Field(default=None, description="mode of a verify step")
    ref: str | None = Field(default=None, description="shell pattern of a source step's ref")
    unless_patch: str | None = Field(default=None, description="file that no patch of a source step changes")
    without_module_path: bool = False
    playbook: PlaybookCondition = PlaybookCondition()
    host: HostCondition | None = None
    note: bool = False
    message: str
    remedy: str
    source: str

    @property
    def finding(self) -> Finding:
        """What is said when it fires."""
        return Finding(self.id, self.message, self.remedy)


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """All rules."""
    data = read_rules("compatibility.yaml")
    return tuple(TypeAdapter(list[Rule]).validate_python(data))


@lru_cache(maxsize=1)
def lmcache_keys() -> dict[str, frozenset[str]]:
    """LMCache version → configuration keys that it knows."""
    data = read_rules("lmcache_keys.yaml")
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
    of_playbook = _of_playbook(ById(playbook))
    fired = [rule for rule in of_playbook.rules if rule.host is None or (host and rule.host.fits(host))]
    return [rule.finding for rule in fired] + of_playbook.settings


def notes(playbook: Playbook) -> list[Finding]:
    """What is worth knowing of a playbook's combination and refuses nothing."""
    return [rule.finding for rule in rules() if rule.note and rule.host is None and _fires(rule, playbook)]


@dataclass(frozen=True, slots=True)
class _OfPlaybook:
    rules: list[Rule]
    settings: list[Finding]


@lru_cache(maxsize=64)
def _of_playbook(shared: ById[Playbook]) -> _OfPlaybook:
    """What fires for a playbook as far as it alone decides; worked out once, however many hosts follow it."""
    playbook = shared.value
    fired = [rule for rule in rules() if not rule.note and _fires(rule, playbook)]
    return _OfPlaybook(fired, _other_settings(playbook) + _unknown_keys(playbook))


def _fires(rule: Rule, playbook: Playbook) -> bool:
    conditions = [*_about_packages(rule, playbook), *_about_service(rule, playbook), *_about_sources(rule, playbook)]
    if rule.vendor:
        accelerator = playbook.requires.accelerator
        conditions.append(accelerator is not None and accelerator.vendor == rule.vendor)
    if rule.playbook.names_anything:
        conditions.append(rule.playbook.holds(playbook))
    return bool(conditions) and all(conditions)


def _about_packages(rule: Rule, playbook: Playbook) -> Iterator[bool]:
    versions = pinned_versions(playbook)
    steps = playbook.of_kind(PackagesStep)
    for name, condition in rule.pins.items():
        yield name in versions and SpecifierSet(condition).contains(versions[name], prereleases=True)
    if rule.same_version:
        seen = [versions[name] for name in rule.same_version if name in versions]
        yield len(seen) == len(rule.same_version) and len({version.public for version in seen}) > 1
    if rule.out_of_order:
        first, second = ([at for at, step in enumerate(steps) if name in _names(step)] for name in rule.out_of_order)
        yield bool(first and second) and min(second) <= max(first)
    if rule.binary_of:
        yield any(rule.binary_of in _names(step) and not _is_source(step, rule.binary_of) for step in steps)
    if rule.unowned:
        yield not any(rule.unowned in step.owns for step in steps)


def _names(step: PackagesStep) -> set[str]:
    return {canonicalize_name(parsed_requirement(pin).name) for pin in step.pins}


def _is_source(step: PackagesStep, name: str) -> bool:
    return bool({name, ":all:"} & {canonicalize_name(item) if item != ":all:" else item for item in step.no_binary})


def _about_service(rule: Rule, playbook: Playbook) -> Iterator[bool]:
    services = playbook.of_kind(ServiceStep)
    connectors = [service.connector for service in services if service.connector]
    if rule.connector:
        yield any(fnmatch.fnmatchcase(connector.name, rule.connector) for connector in connectors)
    if isinstance(rule.module_path, str):
        yield any(fnmatch.fnmatchcase(connector.module_path or "", rule.module_path) for connector in connectors)
    elif rule.module_path is not None:
        yield any((connector.module_path is not None) is rule.module_path for connector in connectors)
    if rule.without_module_path:
        yield any(connector.module_path is None for connector in connectors)
    if rule.server is not None:
        yield any(service.uses_server is rule.server for service in services)
    if rule.verify_mode:
        yield any(step.mode == rule.verify_mode for step in playbook.of_kind(VerifyStep))


def _about_sources(rule: Rule, playbook: Playbook) -> Iterator[bool]:
    sources = playbook.of_kind(SourceStep)
    if rule.ref:
        yield any(fnmatch.fnmatchcase(source.ref, rule.ref) for source in sources)
    if rule.unless_patch:
        patched = [patch.path for source in sources for patch in source.patches if patch.when]
        yield rule.unless_patch not in patched


def _other_settings(playbook: Playbook) -> list[Finding]:
    pinned = pinned_versions(playbook).get("lmcache")
    return [
        Finding(
            "settings-of-another-lmcache",
            f"the lmcache_config step is for LMCache {step.lmcache}, and {pinned} is pinned",
            "give both the same version: settings are checked against it",
        )
        for step in playbook.of_kind(LmcacheConfigStep)
        if pinned is not None and step.lmcache != pinned.base_version
    ]


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
