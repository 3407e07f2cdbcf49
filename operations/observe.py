"""Read a host for its preflight: every fact that checks look at, in one survey, as the engine's observation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from pyinfra.api import FactBase

from facts.ascend import AscendDevices, CannToolkits, Driver, Firmware, HccnConf, LoginShellCost, Memlock, Nnal
from facts.listeners import Listeners
from facts.readiness import Readiness
from facts.system_packages import AptPackages, DnfPackages
from facts.toolkit_env import ToolkitEnv
from facts.units import Unit, Units
from facts.urls import UrlAccess
from facts.vendors import observe_accelerator
from lmcache_fleet.judge import model_name
from lmcache_fleet.layout import STATE_DIRECTORY
from lmcache_fleet.playbook.load import ARCHITECTURES
from lmcache_fleet.playbook.model import (
    LmcacheConfigStep,
    ModelStep,
    Playbook,
    ServiceStep,
    SystemPackagesStep,
    ToolkitEnvStep,
)
from lmcache_fleet.preflight.observation import (
    AscendSeen,
    HolderSeen,
    HostObservation,
    NodeSeen,
    PythonSeen,
    Space,
    ToolkitSeen,
    UnitSeen,
)
from lmcache_fleet.preflight.packages import hub_urls, index_urls
from lmcache_fleet.units import SERVICE_UNITS, unit_names
from operations.host_fault import HostFault
from operations.plan import HostPlan, toolkit_of
from operations.session import Part, Session

T = TypeVar("T")


class Reading:
    """Reads facts, and writes down which could not be read instead of stopping at the first.

    Args:
        session: the host's session.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.unread: dict[str, str] = {}

    def fact(self, cls: type[FactBase[T]], **kwargs: Any) -> T | None:
        """A fact; None when it could not be read."""
        return self.attempt(cls.__name__, lambda: self.session.read(cls, **kwargs))

    def attempt(self, what: str, read: Callable[[], T]) -> T | None:
        """What a function reads; None, and a note, when it can't."""
        try:
            return read()
        except HostFault as fault:
            self.unread.setdefault(what, fault.cause)
            return None


def observation_parts(playbook: Playbook, prefix: str) -> list[Part]:
    """The facts of a preflight, beyond those that a plan reads anyway."""
    parts: list[Part] = [
        (Readiness, _readiness(playbook, prefix)),
        (Listeners, {}),
        (LoginShellCost, {}),
    ]
    if _wants_ascend(playbook):
        parts += [(fact, {}) for fact in (Firmware, Nnal, AscendDevices, HccnConf, Memlock)]
    return parts


def _wants_ascend(playbook: Playbook) -> bool:
    wanted = playbook.requires.accelerator
    return wanted is not None and wanted.vendor == "ascend"


def _readiness(playbook: Playbook, prefix: str) -> dict[str, Any]:
    models: list[ModelStep] = playbook.of_kind(ModelStep)
    configs: list[LmcacheConfigStep] = playbook.of_kind(LmcacheConfigStep)
    places = [str(step.settings["local_disk"]) for step in configs if step.settings.get("local_disk")]
    kv = places[0].removeprefix("file://") if places else STATE_DIRECTORY
    return {
        "prefix": prefix,
        "kv": kv if kv.startswith("/") else STATE_DIRECTORY,
        "directories": tuple(sorted({step.directory for step in models if step.directory})),
    }


def observe(session: Session, plan: HostPlan) -> HostObservation:
    """Read the host in one remote command; a part that can't be read is named in `unread`.

    Args:
        session: the host's session.
        plan: the host's plan.
    """
    playbooks = [plan.resolved(arch) for arch in ARCHITECTURES]
    # What comes from a bundle is asked of nobody.
    urls = (
        ()
        if plan.bundle
        else tuple(sorted({url for playbook in playbooks for url in (*index_urls(playbook), *hub_urls(playbook))}))
    )
    for playbook in playbooks:
        session.expect(observation_parts(playbook, session.layout.prefix))
    session.expect([(UrlAccess, {"urls": urls})])
    reading = Reading(session)
    begin = time.time()
    system = reading.attempt("the host", lambda: plan.system)
    end = time.time()
    playbook_read = reading.attempt("the playbook", lambda: plan.playbook) if system else None
    if system is None or playbook_read is None:
        # Nothing else answers either; asking for each part would wait for the same failure again and again.
        return HostObservation(unread=tuple(reading.unread.items()))
    playbook = playbook_read
    ready = reading.fact(Readiness, **_readiness(playbook, session.layout.prefix))
    login = reading.fact(LoginShellCost)
    memlock = reading.fact(Memlock) if _wants_ascend(playbook) else None
    packages = _packages(reading, playbook)
    env = next(iter(playbook.of_kind(ToolkitEnvStep)), None)
    captured = reading.fact(ToolkitEnv, **toolkit_of(env)) if env is not None else None
    view = reading.attempt("the accelerator", lambda: observe_accelerator(plan.vendor, session.read))
    releases = reading.attempt("the releases", lambda: plan.releases)
    target = _target(plan) if releases else None
    pythons = reading.attempt("the interpreters", plan.interpreters)
    units = _units(reading, playbook)
    now = float(system.now) if system.now is not None else None
    return HostObservation(
        unread=tuple(reading.unread.items()),
        arch=system.arch,
        os_id=system.os_id,
        os_version=system.os_version,
        glibc=system.glibc,
        memory_gb=system.memory_gb,
        memory_available_gb=system.memory_available_gb,
        init=system.init,
        uid=system.uid,
        package_manager=system.package_manager,
        skew_s=None if now is None else _outside(now, begin, end),
        reboot_required=bool(ready and ready.reboot_required),
        missing_commands=ready.missing if ready else (),
        packages=packages[0],
        package_lock=packages[1],
        run_lock=ready.run_lock if ready else None,
        shell=ready.shell if ready else None,
        headers=ready.headers if ready else None,
        commands=ready.commands if ready else None,
        spaces={
            name: Space(item.free_gb, item.free_inodes, item.options)
            for name, item in (ready.spaces if ready else {}).items()
        },
        hugepages_gb=ready.hugepages_gb if ready else 0,
        memlock=memlock.hard if memlock else None,
        login_state=login.state if login else "ok",
        login_s=login.seconds if login else None,
        login_noise=login.noise if login else (),
        host_env=ready.stray if ready else {},
        listeners=reading.fact(Listeners) or (),
        own_pids=frozenset(ready.own_pids if ready else ()),
        pythons=None
        if pythons is None
        else tuple(PythonSeen(item.path, item.version, item.headers, item.venv) for item in pythons),
        toolkit_env=captured.variables if captured else None,
        env_missing=captured.missing if captured else (),
        env_failed=captured.failed if captured else (),
        urls=reading.fact(UrlAccess, urls=urls) or {},
        directories=ready.directories if ready else {},
        units={name: _unit(unit) for name, unit in units.items()},
        models=_models(playbook, releases.models if releases else {}),
        installed=bool(target and target.complete),
        interrupted=bool(releases and releases.activation is not None),
        rolled_back=str(releases.rolled_back.get("from", "?")) if releases and releases.rolled_back else None,
        accelerators=view.accelerators if view else None,
        soc=view.soc if view else None,
        driver=view.driver if view else None,
        toolkit=view.toolkit if view else None,
        ascend=_ascend(reading) if _wants_ascend(playbook) else None,
    )


def _outside(now: float, begin: float, end: float) -> float:
    """Seconds by which a clock read between two moments is off; its whole seconds are cut off."""
    return min(now + 1 - begin, 0.0) or max(now - end, 0.0)


def _packages(reading: Reading, playbook: Playbook) -> tuple[tuple[str, ...] | None, str | None]:
    installed: set[str] = set()
    holder: str | None = None
    steps: list[SystemPackagesStep] = playbook.of_kind(SystemPackagesStep)
    for step in steps:
        for cls, names in ((AptPackages, step.apt), (DnfPackages, step.dnf)):
            found = reading.fact(cls, names=names) if names else None
            if names and found is None:
                return None, None
            if found:
                installed |= set(found.versions)
                holder = holder or found.lock_holder
    return tuple(sorted(installed)), holder


def _units(reading: Reading, playbook: Playbook) -> dict[str, Unit]:
    services: list[ServiceStep] = playbook.of_kind(ServiceStep)
    seen = reading.fact(Units, names=SERVICE_UNITS) or {} if services else {}
    return {name: unit for name, unit in seen.items() if name in unit_names(services[0])}


def _unit(unit: Unit) -> UnitSeen:
    drop_ins = tuple(unit.properties.get("DropInPaths", "").split())
    return UnitSeen(unit.text, unit.running, drop_ins, unit.environment.get("PYTHONHASHSEED"))


def _models(playbook: Playbook, states: dict[str, dict[str, str]]) -> tuple[str, ...]:
    steps: list[ModelStep] = playbook.of_kind(ModelStep)
    whole = {name for name, state in states.items() if state.get("state") == "complete"}
    return tuple(step.name for step in steps if not step.directory and model_name(step) in whole)


def _target(plan: HostPlan) -> Any:
    try:
        return plan.target
    except HostFault:
        # What stands in the way (a source, an environment) has a check of its own.
        return None


def _ascend(reading: Reading) -> AscendSeen:
    driver, firmware, kits = reading.fact(Driver), reading.fact(Firmware), reading.fact(CannToolkits)
    nnal, devices, hccn = reading.fact(Nnal), reading.fact(AscendDevices), reading.fact(HccnConf)
    compatible = dict(driver.info.compatible) if driver else {}
    return AscendSeen(
        driver_state=driver.state if driver else "ok",
        driver=driver.version if driver else None,
        firmware=firmware.version if firmware else None,
        firmware_range=compatible.get("compatible_version_fw"),
        install_user=str(driver.install.get("user") or "") or None if driver else None,
        toolkits=tuple(
            ToolkitSeen(
                kit.path,
                kit.version,
                kit.arch,
                (
                    *(item.soc or item.package for item in kit.ops),
                    *(name.removeprefix("ascend") for name in kit.kernels),
                ),
                kit.platform_inis,
                kit.names,
            )
            for kit in (kits.toolkits if kits else ())
        ),
        toolkits_state=kits.state if kits else "ok",
        toolkit=kits.default.path if kits and kits.default else None,
        nnal_state=nnal.state if nnal else "ok",
        nnal=nnal.version if nnal else None,
        abis=nnal.abis if nnal else (),
        devices_state=devices.state if devices else "ok",
        devices_message=devices.message if devices else "",
        nodes=tuple(
            NodeSeen(item.path, item.mode, item.group, item.is_device) for item in (devices.nodes if devices else ())
        ),
        group_exists=devices.group_members is not None if devices else True,
        user_exists=devices.user_exists if devices else True,
        holders=tuple(
            HolderSeen(item.device, item.pid, item.name, item.container)
            for item in (devices.holders if devices else ())
        ),
        hccn=hccn.state == "ok" if hccn else True,
    )
