"""What one host should become: the playbook rendered for it, the release to work on, what it lacks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from facts.containers import Containers
from facts.interpreters import Interpreters, PipWheelFolders
from facts.releases import Releases
from facts.runtimes import Runtimes
from facts.system import HostSystem, System
from facts.system_packages import AptPackages, DnfPackages
from facts.toolkit_env import ToolkitEnv
from facts.units import Account, SecretFile, Units
from facts.vendors import observe_accelerator, vendor_parts
from lmcache_fleet import kv_store
from lmcache_fleet.bundle.manifest import Bundle
from lmcache_fleet.changes import Change
from lmcache_fleet.containers import ContainerFault, ContainerHost, WantedImage, wanted_image
from lmcache_fleet.digest import canonical_json
from lmcache_fleet.envfile import render_env
from lmcache_fleet.judge import Wanted, changes_of, container_of, damage, evidence_change, owned_packages
from lmcache_fleet.layout import Layout
from lmcache_fleet.once import ById, Once
from lmcache_fleet.playbook.load import ARCHITECTURES, resolve
from lmcache_fleet.playbook.model import (
    ContainerImageStep,
    KvStoreStep,
    PackagesStep,
    Playbook,
    ServiceStep,
    SourceStep,
    StepBase,
    SystemPackagesStep,
    ToolkitEnvStep,
    VenvStep,
    VerifyStep,
)
from lmcache_fleet.playbook.source import Document
from lmcache_fleet.playbook.template import names_used
from lmcache_fleet.registry import RegistryError, image_name, pinned_digest
from lmcache_fleet.release import (
    HostKey,
    HostReleases,
    ReleaseState,
    Target,
    choose_target,
    release_spec,
    release_steps,
)
from lmcache_fleet.requirement_files import RequirementsFileError, expanded
from lmcache_fleet.requirements import Observed
from lmcache_fleet.runtimes import Runtime, minor_of
from lmcache_fleet.sources import SourceError, SourceTree, make_tree
from lmcache_fleet.units import SERVICE_UNITS
from operations.host_fault import HostFault
from operations.session import Part, Session


class HostPlan:
    """The wanted state of one host and the distance to it; worked out again whenever the host was read again.

    Args:
        session: the host's session.
        document: the playbook as it stands in its file.
        given: the host's overrides of the playbook's variables.
    """

    def __init__(self, session: Session, document: Document, given: dict[str, Any]) -> None:
        self.session = session
        self.document = document
        self.given = given
        self.bundle: Bundle | None = None
        self._playbook: Playbook | None = None
        self._owned: dict[str, Any] | None = None
        self._made: tuple[int, Wanted, Target] | None = None
        self._changes: tuple[int, dict[int, list[Change]]] = (-1, {})
        for arch in ARCHITECTURES:
            # The architecture is not known before the first read, which must already ask for everything: what the
            # playbook asks on either is asked.
            session.expect(playbook_parts(self.resolved(arch), session.layout.prefix))

    def resolved(self, arch: str) -> Playbook:
        """The playbook, rendered for an architecture."""
        key = canonical_json(self.given)
        shared = ById(self.document)
        # Hosts of one architecture and the same variables have one playbook, as long as it doesn't name the host.
        host = self.session.host.name if _names_host(shared) else ""
        return _resolve(shared, key, arch, self.session.layout.prefix, host)

    @property
    def playbook(self) -> Playbook:
        """The playbook, rendered for the host's architecture."""
        if self._playbook is None:
            arch = self.system.arch
            if arch is None:
                raise HostFault("the host doesn't tell its architecture")
            playbook = self.resolved(arch)
            if any(step.requirements for step in playbook.of_kind(PackagesStep)):
                playbook = _expanded(playbook, arch)
            self._playbook = playbook
        return self._playbook

    @property
    def system(self) -> HostSystem:
        """The host itself."""
        return self.session.read(System, prefix=self.session.layout.prefix)

    @property
    def vendor(self) -> str:
        """The accelerator's vendor; `cpu` where the playbook wants none."""
        return _vendor(self.playbook)

    @property
    def releases(self) -> HostReleases:
        """What stands under the prefix."""
        if self._owned is None:
            self._owned = owned_packages(self.playbook)
        return self.session.read(Releases, prefix=self.session.layout.prefix, request=self._owned)

    def observed(self) -> Observed:
        """What of the host the playbook's requirements are about."""
        system = self.system
        accelerator = observe_accelerator(self.vendor, self.session.read)
        return Observed(
            arch=system.arch,
            glibc=system.glibc,
            pythons=tuple(item.version for item in self.interpreters()),
            memory_gb=system.memory_gb,
            disk_free_gb=system.disk_free_gb,
            accelerators=accelerator.accelerators,
            soc=accelerator.soc,
            toolkit=accelerator.toolkit,
            driver=accelerator.driver,
            runtime=self._runtime(),
        )

    def _runtime(self) -> Runtime | None:
        """The stack of the interpreter that the release is built on; None where the playbook builds on none."""
        wanted = _runtimes_of(self.playbook)
        if wanted is None or self.venv is None:
            return None
        fitting = [item for item in self.session.read(Runtimes, **wanted) if minor_of(item.version) == self.venv.python]
        return fitting[0] if fitting else None

    def interpreters(self) -> list[Any]:
        """Interpreters of the minor version that the playbook's venv step wants."""
        venv = self.venv
        return self.session.read(Interpreters, **_interpreters_of(venv)) if venv else []

    @property
    def venv(self) -> VenvStep | None:
        """The playbook's venv step."""
        steps = self.playbook.of_kind(VenvStep)
        return steps[0] if steps else None

    def needed_venv(self) -> VenvStep:
        """The same, for steps that can't do without.

        Raises:
            HostFault: there is none.
        """
        if self.venv is None:
            raise HostFault("the playbook has no venv step", "put a venv step before the packages steps")
        return self.venv

    @property
    def wanted(self) -> Wanted:
        """What the release must look like."""
        return self._make()[1]

    @property
    def target(self) -> Target:
        """The release that this run works on."""
        return self._make()[2]

    @property
    def before(self) -> ReleaseState | None:
        """The serving release, when another one is to be built."""
        serving = self.releases.serving
        return serving if serving and serving.name != self.target.name else None

    def changes(self, step: StepBase) -> list[Change]:
        """What a step lacks in the release that this run works on."""
        target = self.target
        if self._changes[0] != self.session.generation:
            self._changes = (self.session.generation, {})
        known = self._changes[1]
        if id(step) not in known:
            known[id(step)] = changes_of(step, self.wanted, self.releases, target.state, self.before)
        return known[id(step)]

    def trees(self) -> dict[str, SourceTree]:
        """Source step's name → its tree on the control machine.

        Raises:
            HostFault: a tree can't be made.
        """
        return {step.name: source_tree(step) for step in self.playbook.of_kind(SourceStep)}

    @property
    def image_host(self) -> ContainerHost:
        """What of the host decides how containers run there."""
        parts = _containers_of(self.playbook)
        return self.session.read(Containers, **parts) if parts else ContainerHost()

    @property
    def engine(self) -> str | None:
        """What runs the service's containers; None when it runs in the release's venv."""
        contained = any(step.container for step in self.playbook.of_kind(ServiceStep))
        return self.playbook.of_kind(ContainerImageStep)[0].engine if contained else None

    def images(self) -> dict[str, WantedImage]:
        """container_image step's name → the image that it stands for.

        Raises:
            HostFault: a tag's digest can't be had.
        """
        trees = self.trees()
        found = {}
        for step in self.playbook.of_kind(ContainerImageStep):
            source = trees[step.build.source].identity if step.build else None
            found[step.name] = wanted_image(step, _digest_of(step), source, self.system.arch or "")
        return found

    def _make(self) -> tuple[int, Wanted, Target]:
        releases = self.releases
        if self._made is not None and self._made[0] == self.session.generation:
            return self._made
        observed = self.observed()
        system = self.system
        key = HostKey(
            arch=system.arch or "",
            os_id=system.os_id,
            os_version=system.os_version,
            glibc=system.glibc,
            soc=observed.soc,
            toolkit=str(observed.toolkit) if observed.toolkit else None,
            runtime=observed.runtime.torch if observed.runtime else None,
        )
        wanted = Wanted(
            playbook=self.playbook,
            layout=self.session.layout,
            key=key,
            toolkit_env=self._toolkit_env(),
            sources={name: tree.identity for name, tree in self.trees().items()},
            driver=str(observed.driver) if observed.driver else None,
            images=self.images(),
            container_host=self.image_host,
            vendor=self.vendor,
        )
        try:
            # A device that the host lacks is said before anything is touched.
            for service in self.playbook.of_kind(ServiceStep):
                container_of(service, wanted, "")
        except ContainerFault as fault:
            raise HostFault(fault.cause, fault.remedy) from fault
        offline = [step for step in self.playbook.of_kind(VerifyStep) if step.stage == "offline"]

        def wrong(state: ReleaseState) -> list[str]:
            unproved = [] if state.evidence else offline
            lost = [str(change) for step in unproved for change in evidence_change(step, wanted, state)]
            return damage(wanted, releases, state) + lost

        target = choose_target(releases, release_spec(self.playbook, key), wrong)
        self._made = (self.session.generation, wanted, target)
        return self._made

    def _toolkit_env(self) -> str | None:
        steps = self.playbook.of_kind(ToolkitEnvStep)
        if not steps:
            return None
        step = steps[0]
        captured = self.session.read(ToolkitEnv, **toolkit_of(step))
        if captured.failed:
            raise HostFault(
                f"the toolkit's environment can't be loaded: {', '.join(captured.failed)}",
                "source the script by hand in bash and look at what it says",
            )
        optional = {", ".join(script.first_of) for script in step.scripts if not script.required}
        missing = [name for name in captured.missing if name not in optional]
        if missing:
            raise HostFault(
                f"no such environment script: {'; '.join(missing)}",
                "install the toolkit, or correct `scripts` in the toolkit_env step",
            )
        return render_env({**captured.variables, **step.env})


def playbook_parts(playbook: Playbook, prefix: str) -> list[Part]:
    """Every fact that a playbook's steps read."""
    parts: list[Part] = [
        (System, {"prefix": prefix}),
        (Releases, {"prefix": prefix, "request": owned_packages(playbook)}),
        *vendor_parts(_vendor(playbook)),
    ]
    if (runtimes := _runtimes_of(playbook)) is not None:
        parts.append((Runtimes, runtimes))
    containers = _containers_of(playbook)
    parts += [(Containers, containers)] if containers else []
    if release_steps(playbook) and not playbook.of_kind(ServiceStep):
        # A service of another playbook decides whether `current` may move.
        parts.append((Units, {"names": SERVICE_UNITS}))
    for step in playbook.steps:
        if not step.when:
            continue
        if isinstance(step, SystemPackagesStep):
            parts += [(AptPackages, {"names": step.apt})] if step.apt else []
            parts += [(DnfPackages, {"names": step.dnf})] if step.dnf else []
        elif isinstance(step, ToolkitEnvStep):
            parts.append((ToolkitEnv, toolkit_of(step)))
        elif isinstance(step, VenvStep):
            parts.append((Interpreters, _interpreters_of(step)))
        elif isinstance(step, ServiceStep):
            parts.append((Units, {"names": SERVICE_UNITS}))
            if step.secrets:
                parts.append((SecretFile, {"path": Layout(prefix).secrets("service")}))
            parts.append((Account, {"user": step.user, "groups": tuple(step.groups)}))
        elif isinstance(step, KvStoreStep):
            parts += [(Units, {"names": kv_store.watched_units(step)}), (SecretFile, {"path": kv_store.ACL})]
        elif isinstance(step, PackagesStep) and step.machine_wheels:
            parts.append((PipWheelFolders, {}))
    return parts


def _containers_of(playbook: Playbook) -> dict[str, Any] | None:
    images = playbook.of_kind(ContainerImageStep)
    if not images:
        return None
    named = [path for step in playbook.of_kind(ServiceStep) if step.container for path in step.container.devices]
    return {"engine": images[0].engine, "devices": tuple(named)}


_digests: Once[tuple[str, bool], str] = Once()


def _digest_of(step: ContainerImageStep) -> str | None:
    """The digest of a step's image, asked for once a process whatever the number of hosts."""
    if step.image is None:
        return None
    image = step.image

    def ask() -> str:
        return pinned_digest(image_name(image), follow=step.follow_tag, tls_verify=step.tls_verify)

    try:
        return _digests.get((image, step.follow_tag), ask)
    except RegistryError as error:
        raise HostFault(error.cause, error.remedy) from error


def _vendor(playbook: Playbook) -> str:
    return playbook.requires.accelerator.vendor if playbook.requires.accelerator else "cpu"


def toolkit_of(step: ToolkitEnvStep) -> dict[str, Any]:
    """Arguments with which a step's environment is read."""
    scripts = tuple((tuple(script.first_of), tuple(script.args)) for script in step.scripts)
    return {"scripts": scripts, "path": tuple(step.path)}


def _runtimes_of(playbook: Playbook) -> dict[str, Any] | None:
    """What to ask of the interpreters' stacks; None when the release stands on none of them."""
    venvs = playbook.of_kind(VenvStep)
    runtime = playbook.requires.runtime
    if not venvs or not (runtime or venvs[0].system_site_packages):
        return None
    return {**_interpreters_of(venvs[0]), "distributions": tuple(sorted(runtime.distributions)) if runtime else ()}


def _interpreters_of(step: VenvStep) -> dict[str, Any]:
    return {"minor": step.python, "also": (step.interpreter,) if step.interpreter else ()}


def _expanded(playbook: Playbook, arch: str) -> Playbook:
    archives = {step.name: source_tree(step).archive for step in playbook.of_kind(SourceStep)}
    try:
        return expanded(playbook, archives, arch)
    except RequirementsFileError as error:
        raise HostFault(str(error), "correct `requirements` in the packages step, or pin another ref") from error


@lru_cache(maxsize=16)
def _names_host(shared: ById[Document]) -> bool:
    return "host" in names_used(shared.value.data)


@lru_cache(maxsize=4096)
def _resolve(shared: ById[Document], given: str, arch: str, prefix: str, host: str) -> Playbook:
    import json

    return resolve(shared.value, json.loads(given), arch=arch, prefix=prefix, host=host)


_trees: Once[str, SourceTree] = Once()


def source_tree(step: SourceStep) -> SourceTree:
    """A source step's tree, made once a process whatever the number of hosts.

    Raises:
        HostFault: it can't be made; said for each host, tried once.
    """
    try:
        return _trees.get(canonical_json(step.model_dump(mode="json")), lambda: make_tree(step))
    except SourceError as error:
        raise HostFault(error.cause, error.remedy) from error
