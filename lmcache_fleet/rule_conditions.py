"""What compatibility rules can ask of a playbook's steps and of a host: pure conditions, kept as data in the rules."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import Field

from lmcache_fleet.playbook.model import (
    ContainerImageStep,
    ModelStep,
    NativeBuildStep,
    PackagesStep,
    Playbook,
    Regex,
    ServiceStep,
    StrictModel,
    VenvStep,
    VerifyStep,
    VersionCondition,
    parsed_requirement,
)
from lmcache_fleet.requirements import Observed


class PackagesCondition(StrictModel):
    """A packages step, or a pip call on an image, is of this kind; all that is named must hold for the same one."""

    installs: str
    """Distribution that the step pins or wants present."""
    local: Regex | None = None
    """The pin's local version matches from its start."""
    without_local: Regex | None = None
    """The pin's local version doesn't, or there is none."""
    find_links: Regex | None = None
    """A find-links page matches."""
    without_find_links: Regex | None = None
    extra_index: Regex | None = None
    without_extra_index: Regex | None = None
    pre: bool | None = None
    no_index: bool | None = None
    no_deps: bool | None = None
    build_isolation: bool | None = None
    from_source: bool | None = None
    """The distribution is in no_binary."""
    without_best_match: bool = False
    """uv would stop at the first index that has a name."""
    imports: str | None = None
    without_import: str | None = None

    def fits(self, step: PackagesStep, installer: str) -> bool:
        """Whether a step is of this kind."""
        requirement = _wanted(step, self.installs)
        if requirement is None:
            return False
        local = _local(requirement)
        flags = {
            "pre": step.pre,
            "no_index": step.no_index,
            "no_deps": step.no_deps,
            "build_isolation": step.build_isolation,
            "from_source": self.installs in [canonicalize_name(name) for name in step.no_binary],
        }
        return (
            all(getattr(self, name) in {None, value} for name, value in flags.items())
            and (self.local is None or re.match(self.local, local) is not None)
            and (self.without_local is None or re.match(self.without_local, local) is None)
            and _some(self.find_links, step.find_links)
            and _none(self.without_find_links, step.find_links)
            and _some(self.extra_index, step.extra_index_urls)
            and _none(self.without_extra_index, step.extra_index_urls)
            and not (self.without_best_match and (installer != "uv" or step.index_strategy == "unsafe-best-match"))
            and self.imports in {None, *step.imports}
            and (self.without_import is None or self.without_import not in step.imports)
        )


class NativeCondition(StrictModel):
    """A native_build step of this kind."""

    package: str
    env: dict[str, Regex] = Field(default={})
    """Variables that match as a whole."""
    without_env: dict[str, Regex] = Field(default={})
    """Variables that are not there or don't match: one is enough."""
    version: Regex | None = None
    without_version: Regex | None = None

    def fits(self, step: NativeBuildStep) -> bool:
        """Whether a step is of this kind."""
        version = step.version or ""
        lacking = [name for name, value in self.without_env.items() if not re.fullmatch(value, step.env.get(name, ""))]
        return (
            canonicalize_name(step.package) == canonicalize_name(self.package)
            and all(re.fullmatch(value, step.env.get(name, "")) for name, value in self.env.items())
            and (not self.without_env or bool(lacking))
            and (self.version is None or re.search(self.version, version) is not None)
            and (self.without_version is None or re.search(self.without_version, version) is None)
        )


class HostCondition(StrictModel):
    """A host is of this kind; what it doesn't tell is no reason to fire."""

    compute_capability: VersionCondition | None = None
    """Of any chip."""
    cuda: VersionCondition | None = None
    """The newest CUDA that the driver serves."""
    soc_not: list[str] = Field(default=[])
    """Shell patterns of which some chip matches none."""

    def fits(self, host: Observed) -> bool:
        """Whether a host is of this kind."""
        capabilities = [version for _, _, version in host.compute_capabilities if version is not None]
        socs = host.socs
        return (
            (self.compute_capability is None or any(_within(v, self.compute_capability) for v in capabilities))
            and (self.cuda is None or (host.cuda is not None and _within(host.cuda, self.cuda)))
            and (
                not self.soc_not
                or any(not any(fnmatch.fnmatchcase(soc, pattern) for pattern in self.soc_not) for soc in socs)
            )
        )


class PlaybookCondition(StrictModel):
    """What a playbook must be like; all that is named must hold."""

    vendor: list[str] = Field(default=[])
    """Of `requires.accelerator`."""
    packages: PackagesCondition | None = None
    native: NativeCondition | None = None
    together: list[str] = Field(default=[])
    """Distributions that are all installed into the one environment."""
    absent: list[str] = Field(default=[])
    """Distributions, none of which any step installs."""
    args: Regex | None = None
    """An argument of the service."""
    engine: Literal["vllm", "sglang"] | None = None
    """What serves the model."""
    server: bool | None = None
    """The service has an LMCache server beside it, or connects to one."""
    model: Regex | None = None
    """The hub name of a model."""
    no_runtime: bool = False
    """Nothing is required of the stack below the release, or of the image that wheels are put on."""
    no_verify: bool = False
    """A service starts that no verify step proves off-line first."""
    device_not: Regex | None = None
    """An off-line verify step expects another device."""
    python_not: VersionCondition | None = None
    """The venv's Python is outside."""

    def holds(self, playbook: Playbook) -> bool:
        """Whether the playbook is like that."""
        images = playbook.of_kind(ContainerImageStep)
        venvs = playbook.of_kind(VenvStep)
        services = playbook.of_kind(ServiceStep)
        verifies = [step for step in playbook.of_kind(VerifyStep) if step.stage == "offline"]
        installer = venvs[0].installer if venvs else "uv"
        calls = [(step, installer) for step in playbook.of_kind(PackagesStep)]
        calls += [(call, "pip") for image in images for call in image.install]
        installed = {canonicalize_name(parsed_requirement(text).name) for step, _ in calls for text in step.wanted}
        installed |= {canonicalize_name(step.package) for step in playbook.of_kind(NativeBuildStep)}
        accelerator = playbook.requires.accelerator
        devices = [str(device) for step in verifies if (device := (step.options.get("expect") or {}).get("device"))]
        return (
            (not self.vendor or (accelerator is not None and accelerator.vendor in self.vendor))
            and (self.packages is None or any(self.packages.fits(*call) for call in calls))
            and (self.native is None or any(self.native.fits(step) for step in playbook.of_kind(NativeBuildStep)))
            and installed.issuperset(self.together)
            and installed.isdisjoint(self.absent)
            and _some(self.args, [arg for step in services for arg in step.args])
            and (self.engine is None or any(step.has_engine and step.engine == self.engine for step in services))
            and self.server in {None, any(step.uses_server for step in services)}
            and _some(self.model, [step.hub for step in playbook.of_kind(ModelStep) if step.hub])
            and not (self.no_runtime and _stack_is_asked_for(playbook, images))
            and not (self.no_verify and (not services or verifies))
            and (self.device_not is None or any(not re.match(self.device_not, device) for device in devices))
            and (
                self.python_not is None
                or any(not _within(Version(f"{step.python}.0"), self.python_not) for step in venvs)
            )
        )

    @property
    def names_anything(self) -> bool:
        """Whether it asks anything at all."""
        return bool(self.model_fields_set)


def _stack_is_asked_for(playbook: Playbook, images: Iterable[ContainerImageStep]) -> bool:
    """Whether anything says which torch and runtime the wheels must find: on the host, or in each image they go on."""
    made = [image for image in images if image.install]
    if not made:
        return playbook.requires.runtime is not None
    return all(image.expect or image.attributes or image.imports for image in made)


def _wanted(step: PackagesStep, name: str) -> Requirement | None:
    for text in step.wanted:
        requirement = parsed_requirement(text)
        if canonicalize_name(requirement.name) == name:
            return requirement
    return None


def _local(requirement: Requirement) -> str:
    for spec in requirement.specifier:
        if spec.operator in {"==", "==="} and "+" in spec.version:
            return spec.version.partition("+")[2]
    return ""


def _some(pattern: str | None, texts: Iterable[str]) -> bool:
    return pattern is None or any(re.search(pattern, text) for text in texts)


def _none(pattern: str | None, texts: Iterable[str]) -> bool:
    return pattern is None or not any(re.search(pattern, text) for text in texts)


def _within(version: Version, condition: str) -> bool:
    return SpecifierSet(condition).contains(version, prereleases=True)
