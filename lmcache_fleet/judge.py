"""What each step still lacks in a release: one pure function a step kind, used to plan, to apply and to find drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

from lmcache_fleet.changes import Change, text_change
from lmcache_fleet.containers import (
    ContainerCommand,
    ContainerHost,
    WantedImage,
    image_record,
    run_arguments,
    unmet,
    vendor_environment,
    volumes,
)
from lmcache_fleet.digest import digest
from lmcache_fleet.installer import marker_environment, package_changes
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.model import (
    ContainerImageStep,
    LmcacheConfigStep,
    ModelStep,
    NativeBuildStep,
    PackagesStep,
    Playbook,
    ServiceStep,
    StepBase,
    ToolkitEnvStep,
    VenvStep,
    VerifyStep,
)
from lmcache_fleet.release import HostKey, HostReleases, ReleaseState
from lmcache_fleet.units import ServiceFiles, service_files


@dataclass(frozen=True, slots=True)
class Wanted:
    """All that decides what a release must look like on one host.

    Args:
        playbook: rendered for the host.
        layout: paths on the host.
        key: what of the host decides which binaries it can run.
        toolkit_env: text of the environment file captured from the vendor's scripts; None without such a step.
        sources: source step's name → identity of its patched tree: commit, submodules, patches.
        driver: version of the accelerator's driver, to which evidence is bound.
        images: container_image step's name → the image that it stands for.
        container_host: what of the host decides how containers run there.
        vendor: the accelerator's.
    """

    playbook: Playbook
    layout: Layout
    key: HostKey
    toolkit_env: str | None
    sources: dict[str, dict[str, Any]]
    driver: str | None
    images: dict[str, WantedImage] = field(default_factory=dict)
    container_host: ContainerHost = field(default_factory=ContainerHost)
    vendor: str = "cpu"

    def model_directory(self, name: str | None) -> str:
        """Directory of the weights of a model step; empty for a service that has none."""
        if name is None:
            return ""
        step = next(step for step in self.playbook.of_kind(ModelStep) if step.name == name)
        return step.directory or self.layout.model(model_name(step))

    def config_path(self, release: str) -> str | None:
        """LMCache's configuration file in a release; None without such a step."""
        has_one = self.playbook.of_kind(LmcacheConfigStep)
        return self.layout.release(release).file(CONFIG) if has_one else None

    def service_files(self, service: ServiceStep, release: str) -> ServiceFiles:
        """Start scripts and environment of a release."""
        return service_files(
            service,
            self.model_directory(service.model),
            self.layout.release(release),
            release,
            self.config_path(release),
            container_of(service, self, release),
        )


def container_of(service: ServiceStep, wanted: Wanted, release: str) -> ContainerCommand | None:
    """How a service's processes run in containers; None when they run in the release's venv.

    Args:
        service: the step.
        wanted: what the release must look like.
        release: its name.

    Raises:
        ContainerFault: the host lacks the engine, a device or the driver's files.
    """
    if service.container is None:
        return None
    image = next(s for s in wanted.playbook.of_kind(ContainerImageStep) if s.name == service.container.image)
    mounts = volumes(wanted.layout.release(release), wanted.model_directory(service.model))
    arguments = run_arguments(service, image.engine, wanted.vendor, wanted.container_host, mounts)
    return ContainerCommand(
        image.engine,
        tuple(arguments),
        wanted.images[image.name].reference,
        image.python,
        service.user,
        vendor_environment(wanted.vendor),
    )


CONFIG = "config/lmcache.yaml"
TOOLKIT_ENV = "env/toolkit.env"


def model_name(step: ModelStep) -> str:
    """Directory of a model: its name and the digest of where it comes from."""
    return f"{step.name}-{digest(step.model_dump(mode='json', include={'tiny', 'hub', 'revision'}))}"


def config_text(step: LmcacheConfigStep) -> str:
    """LMCache's configuration file."""
    return yaml.safe_dump(step.settings, sort_keys=True, default_flow_style=False)


def build_key(step: NativeBuildStep, wanted: Wanted, state: ReleaseState) -> dict[str, Any]:
    """What a native build depends on: two hosts of one key can share the wheel.

    Args:
        step: the step.
        wanted: the host's side.
        state: the release, in which what the extension is built against is installed.
    """
    # What is built is not what it is built against: a build of LMCache itself would change its own key.
    beside = [name for name in ("torch", "torch-npu", "lmcache") if name != canonicalize_name(step.package)]
    against = {name: next(iter(state.distributions.get(name, [])), None) for name in beside}
    if wanted.key.runtime:
        against["runtime"] = wanted.key.runtime
    return {
        **wanted.sources[step.source],
        "soc": step.soc or wanted.key.soc,
        "arch": wanted.key.arch,
        "toolkit": wanted.key.toolkit,
        "glibc": wanted.key.glibc,
        "python": ".".join((state.python or "").split(".")[:2]),
        "cxx_abi": _cxx_abi(state, against["torch"]),
        "against": against,
        "env": dict(step.env),
        "version": step.version,
    }


def _cxx_abi(state: ReleaseState, torch: str | None) -> str | None:
    """The C++ ABI that an extension must have: torch's own, "1" for the one of C++11.

    Torch says it in its CMake package; since 2.7 all its wheels have the new one, and newer ones no longer say it.
    """
    if state.torch_cxx_abi is not None or torch is None:
        return state.torch_cxx_abi
    return "1" if Version(torch) >= Version("2.7") else None


def key_differences(old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> list[str]:
    """Names of what differs between two build keys, with inner names as `against.torch`."""
    names: list[str] = []
    for name in dict.fromkeys([*new, *old]):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            names += key_differences(before, after, f"{above}{name}.")
        elif before != after:
            names.append(f"{above}{name}")
    return names


def damage(wanted: Wanted, host: HostReleases, state: ReleaseState) -> list[str]:
    """What is wrong with a release, as short texts; empty when every step's result is there."""
    return [
        str(change) for step in wanted.playbook.steps if step.when for change in changes_of(step, wanted, host, state)
    ]


def changes_of(
    step: StepBase, wanted: Wanted, host: HostReleases, state: ReleaseState, before: ReleaseState | None = None
) -> list[Change]:
    """What a step lacks in a release.

    Args:
        step: the step.
        wanted: what the release must look like.
        host: what is on the host.
        state: the release that is judged.
        before: the serving release, whose values are shown as the old ones.
    """
    judge = _JUDGES.get(type(step))
    return judge(step, wanted, host, state, before) if judge else []


def _toolkit_env(
    step: ToolkitEnvStep, wanted: Wanted, host: HostReleases, state: ReleaseState, before: ReleaseState | None
) -> list[Change]:
    return _texts({TOOLKIT_ENV: wanted.toolkit_env or ""}, state, before)


def _venv(
    step: VenvStep, wanted: Wanted, host: HostReleases, state: ReleaseState, before: ReleaseState | None
) -> list[Change]:
    if "installing" in state.records:
        stopped_in = (state.records["installing"] or {}).get("step", "an installation")
        return [Change("venv", f"interrupted in {stopped_in}", "made anew")]
    if state.python and state.python.startswith(f"{step.python}."):
        return []
    if before and not state.python and (before.python or "").startswith(f"{step.python}."):
        return [Change("venv", before.python, before.python, kept=True)]
    return [Change("venv", state.python or (before.python if before else None), f"python {step.python}")]


def _packages(
    step: PackagesStep, wanted: Wanted, host: HostReleases, state: ReleaseState, before: ReleaseState | None
) -> list[Change]:
    venvs = wanted.playbook.of_kind(VenvStep)
    python = state.python or (venvs[0].python if venvs else "3.12")
    return package_changes(step, state, before, marker_environment(wanted.key.arch, python))


def _native_build(
    step: NativeBuildStep, wanted: Wanted, host: HostReleases, state: ReleaseState, before: ReleaseState | None
) -> list[Change]:
    record = state.records.get(f"native-{step.package}") or {}
    name = canonicalize_name(step.package)
    versions = state.distributions.get(name, [])
    if not versions:
        return [Change(name, None, "built for this host's key, or taken from the artifact store")]
    key = build_key(step, wanted, state)
    if record.get("key") != key:
        differs = ", ".join(key_differences(record.get("key") or {}, key))
        return [Change(name, versions[0], "built for this host's key", why=f"other {differs}")]
    seen = state.natives.get(step.module, {})
    changes = [Change(f"{step.module}/{pattern}", None, "a library") for pattern in seen.get("missing", [])]
    if step.build_info and not changes:
        info = seen.get("build_info") or ""
        if key["soc"] and key["soc"] not in info:
            changes.append(Change(f"{step.module}/{step.build_info}", "another SoC", key["soc"]))
    return changes


def image_shortfalls(step: ContainerImageStep, seen: dict[str, Any]) -> list[str]:
    """What an image that was probed lacks of a step, as short texts.

    Args:
        step: the step.
        seen: the probe's answer.
    """
    inside = ReleaseState("image", distributions=seen["distributions"], python=seen["python"])
    lacking = [str(change) for call in step.install for change in package_changes(call, inside)]
    return unmet(step, seen) + lacking


def _container_image(
    step: ContainerImageStep, wanted: Wanted, host: HostReleases, state: ReleaseState, before: ReleaseState | None
) -> list[Change]:
    want = wanted.images[step.name]
    record = state.records.get(image_record(step.name)) or {}
    earlier = (before.records.get(image_record(step.name)) or {}) if before else record
    what = f"image {step.name}"
    found = want.found(wanted.container_host)
    if found is None:
        how = f"made from {want.base or 'its source tree'}" if want.spec else "pulled by digest"
        return [Change(what, earlier.get("reference"), want.reference, why=how)]
    if record.get("reference") == want.reference and record.get("id") == found.id:
        # An image that was refused stays refused: its record is there all the same.
        return [Change(what, "not what it must hold", lack) for lack in image_shortfalls(step, record["seen"])]
    if not record and earlier.get("id") == found.id:
        return [Change(what, want.reference, want.reference, kept=True)]
    if record and record.get("reference") != want.reference:
        return [Change(what, record.get("reference"), want.reference, why="the tag moved")]
    return [Change(what, record.get("id"), found.id, why="what it holds is read inside it")]


def _model(
    step: ModelStep, wanted: Wanted, host: HostReleases, state: ReleaseState, before: ReleaseState | None
) -> list[Change]:
    if step.directory:
        return []
    found = host.models.get(model_name(step))
    if found and found["state"] == "complete":
        return []
    origin = f"{step.hub}@{step.revision}" if step.hub else "a tiny random model made here"
    return [Change(f"model {step.name}", f"{found['state']}: {found['detail']}" if found else None, origin)]


def _lmcache_config(
    step: LmcacheConfigStep, wanted: Wanted, host: HostReleases, state: ReleaseState, before: ReleaseState | None
) -> list[Change]:
    return _texts({CONFIG: config_text(step)}, state, before)


def _service(
    step: ServiceStep, wanted: Wanted, host: HostReleases, state: ReleaseState, before: ReleaseState | None
) -> list[Change]:
    old = wanted.service_files(step, before.name).texts if before else {}
    texts = wanted.service_files(step, state.name).texts
    changes = _texts(texts, state, before)
    # A new release's scripts differ from the old ones by the release's own name; show only what else differs.
    return [
        change
        if not before or state.texts or before.texts.get(change.what, {}).get("text") != old.get(change.what)
        else Change(change.what, None, "new file", kept=True)
        for change in changes
    ]


def _texts(texts: dict[str, str], state: ReleaseState, before: ReleaseState | None) -> list[Change]:
    changes = []
    for path, text in texts.items():
        old = state.texts.get(path, {}).get("text")
        if old == text:
            continue
        earlier = before.texts.get(path, {}).get("text") if before and old is None else old
        if earlier == text:
            changes.append(Change(path, None, "new file", kept=True))
            continue
        change = text_change(path, earlier, text)
        if change:
            changes.append(change)
    return changes


def evidence_change(step: VerifyStep, wanted: Wanted, state: ReleaseState) -> list[Change]:
    """Whether the evidence of a verify step is there, for this release, driver and model."""
    evidence = state.evidence.get(step.stage)
    label = f"{step.stage} evidence"
    if not evidence:
        return [Change(label, None, "a proven cache hit")]
    if not evidence.get("ok"):
        return [Change(label, "failed", "a proven cache hit")]
    subject = evidence.get("subject") or {}
    now = evidence_subject(step, wanted, state.name)
    differs = [name for name in now if subject.get(name) != now[name]]
    if differs:
        shown = ", ".join(f"{name} {subject.get(name)}" for name in differs)
        return [Change(label, f"for {shown}", ", ".join(f"{name} {now[name]}" for name in differs))]
    if step.stage == "offline" and not state.sealed:
        # Cut off between the proof and the seal: only a proof that sealed the release counts.
        return [Change(label, None, "a proven cache hit")]
    return []


def evidence_subject(step: VerifyStep, wanted: Wanted, release: str) -> dict[str, Any]:
    """What evidence is bound to: when any of it changes, the proof has to be made again."""
    models = {model.name: model_name(model) for model in wanted.playbook.of_kind(ModelStep)}
    return {"release": release, "driver": wanted.driver, "models": models, "options": digest(step.options)}


def owned_packages(playbook: Playbook) -> dict[str, Any]:
    """What the release probe has to look at for a playbook's steps: owners, wheel tags, native modules."""
    packages = playbook.of_kind(PackagesStep)
    return {
        "owns": {package: step.owner for step in packages for package in step.owns},
        "wheel_tags": sorted({step.owner for step in packages if step.wheel_tag}),
        "natives": {
            step.module: {"build_info": step.build_info, "libraries": list(step.libraries)}
            for step in playbook.of_kind(NativeBuildStep)
        },
    }


_JUDGES: dict[type[StepBase], Callable[..., list[Change]]] = {
    ToolkitEnvStep: _toolkit_env,
    VenvStep: _venv,
    PackagesStep: _packages,
    NativeBuildStep: _native_build,
    ContainerImageStep: _container_image,
    ModelStep: _model,
    LmcacheConfigStep: _lmcache_config,
    ServiceStep: _service,
}
