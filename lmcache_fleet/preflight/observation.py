"""What checks look at: a host as it was read, and what the control machine found out for all hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from packaging.version import Version

from lmcache_fleet.accelerators import Accelerators
from lmcache_fleet.parsers.ascend_version import ascend_version
from lmcache_fleet.parsers.listeners import Listener
from lmcache_fleet.plain import Plain
from lmcache_fleet.playbook.model import (
    Connector,
    LmcacheConfigStep,
    NativeBuildStep,
    Playbook,
    ServiceStep,
    VenvStep,
)


@dataclass(frozen=True, slots=True)
class PythonSeen:
    """An interpreter of the wanted minor version: where, which, and whether it has headers and the venv module."""

    path: str
    version: str
    headers: bool = True
    venv: bool = True


@dataclass(frozen=True, slots=True)
class ToolkitSeen:
    """A CANN toolkit.

    Args:
        path: its directory.
        version: as printed.
        arch: of the package.
        ops: SoC families that an operator package is installed for.
        inis: SoC names that it has a platform file for.
        names: links that lead to it.
    """

    path: str
    version: str | None
    arch: str | None = None
    ops: tuple[str, ...] = ()
    inis: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def comparable(self) -> Version | None:
        """Its version, as one that compares."""
        return ascend_version(self.version)


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A device node: path, permission bits in octal, group, and whether it is a device at all."""

    path: str
    mode: str
    group: str
    is_device: bool = True


@dataclass(frozen=True, slots=True)
class HolderSeen:
    """A process that has a device open."""

    device: str
    pid: int
    name: str
    container: str | None = None


@dataclass(frozen=True, slots=True)
class AscendSeen:
    """What is installed for Ascend; states and versions as the facts tell them.

    Args:
        driver_state: `ok`, `not-installed`, `not-loaded`, or why its version file can't be read.
        driver: its version as printed.
        firmware: the firmware's version as printed.
        firmware_range: what the driver says it works with, such as `[7.0.0,7.9.9]`.
        install_user: account that the driver was installed for.
        toolkits: all CANN toolkits.
        toolkits_state: `ok`, `not-installed`, `ambiguous`, `home-missing`, ….
        toolkit: path of the one in use.
        nnal_state: `ok`, `not-installed`, ….
        nnal: ATB's version as printed.
        abis: C++ ABIs that ATB has: `0`, `1`.
        devices_state: `ok`, `no-devices`, `missing-devices`, ….
        devices_message: which are missing.
        nodes: device nodes.
        group_exists: whether there is a group HwHiAiUser.
        user_exists: whether there is a user HwHiAiUser.
        holders: processes that have a device open.
        hccn: whether /etc/hccn.conf has settings.
    """

    driver_state: str = "ok"
    driver: str | None = None
    firmware: str | None = None
    firmware_range: str | None = None
    install_user: str | None = None
    toolkits: tuple[ToolkitSeen, ...] = ()
    toolkits_state: str = "ok"
    toolkit: str | None = None
    nnal_state: str = "ok"
    nnal: str | None = None
    abis: tuple[str, ...] = ()
    devices_state: str = "ok"
    devices_message: str = ""
    nodes: tuple[NodeSeen, ...] = ()
    group_exists: bool = True
    user_exists: bool = True
    holders: tuple[HolderSeen, ...] = ()
    hccn: bool = True

    @property
    def default(self) -> ToolkitSeen | None:
        """The toolkit in use."""
        return next((item for item in self.toolkits if item.path == self.toolkit), None)


@dataclass(frozen=True, slots=True)
class Space:
    """A file system: free bytes in GiB, free inodes (None where it has no such limit), mount options."""

    free_gb: float | None = None
    free_inodes: int | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitSeen:
    """A unit of ours on the host.

    Args:
        text: its file; None when there is none.
        running: whether its main process is up.
        drop_ins: files that change it.
        hash_seed: PYTHONHASHSEED of the running process; None when it has none.
    """

    text: str | None = None
    running: bool = False
    drop_ins: tuple[str, ...] = ()
    hash_seed: str | None = None


@dataclass(frozen=True)
class HostObservation(Plain):
    """A host as it was read; None where it didn't say, and `unread` names what couldn't be read at all.

    Args:
        unread: (what, cause) of everything that could not be read.
        skew_s: seconds by which its clock is ahead of the control machine's.
        missing_commands: commands that our steps need and that aren't there.
        packages: installed ones of those that the playbook names.
        package_lock: who holds the package manager's lock.
        run_lock: who holds our own run lock.
        shell: what /bin/sh is.
        headers: header files of interest that are there.
        commands: commands of interest that are there, with their version.
        spaces: `prefix`, `tmp`, `shm`, `kv` → the file system.
        hugepages_gb: memory set aside for huge pages.
        memlock: bytes that a login may lock; None when unlimited.
        login_state: `ok`, `failed`, `timed-out`, or `no-answer`.
        login_s: seconds that a login shell costs.
        login_noise: what it prints unasked.
        host_env: variables of interest in /etc/environment, profiles and systemd's manager.
        listeners: TCP ports in use.
        own_pids: processes of our services.
        toolkit_env: the environment after the vendor's scripts; None without such a step.
        env_missing: scripts of which none exists.
        env_failed: scripts that fail.
        urls: URL → what went wrong when the host asked for it; None when it answered.
        directories: directories that the playbook expects → whether they are there.
        units: of the playbook's service.
        models: models below the prefix that are whole.
        installed: whether the release that the playbook wants is there and proved.
        interrupted: whether a switch of releases didn't end.
        rolled_back: release that somebody took the host back from.
    """

    unread: tuple[tuple[str, str], ...] = ()
    arch: str | None = None
    os_id: str | None = None
    os_version: str | None = None
    glibc: str | None = None
    memory_gb: float | None = None
    memory_available_gb: float | None = None
    init: str | None = None
    uid: int | None = None
    package_manager: str | None = None
    skew_s: float | None = None
    reboot_required: bool = False
    missing_commands: tuple[str, ...] = ()
    packages: tuple[str, ...] | None = None
    package_lock: str | None = None
    run_lock: str | None = None
    shell: str | None = None
    headers: tuple[str, ...] | None = None
    commands: dict[str, str] | None = None
    spaces: dict[str, Space] = field(default_factory=dict)
    hugepages_gb: float = 0
    memlock: int | None = None
    login_state: str = "ok"
    login_s: float | None = None
    login_noise: tuple[str, ...] = ()
    host_env: dict[str, str] = field(default_factory=dict)
    listeners: tuple[Listener, ...] = ()
    own_pids: frozenset[int] = frozenset()
    pythons: tuple[PythonSeen, ...] | None = None
    toolkit_env: dict[str, str] | None = None
    env_missing: tuple[str, ...] = ()
    env_failed: tuple[str, ...] = ()
    urls: dict[str, str | None] = field(default_factory=dict)
    directories: dict[str, bool] = field(default_factory=dict)
    units: dict[str, UnitSeen] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    installed: bool = False
    interrupted: bool = False
    rolled_back: str | None = None
    accelerators: Accelerators | None = None
    soc: str | None = None
    driver: Version | None = None
    toolkit: Version | None = None
    ascend: AscendSeen | None = None


@dataclass(frozen=True, slots=True)
class ControlObservation:
    """What the control machine found out; each entry says what, the cause, and the remedy where it is known.

    Args:
        unreachable: indexes that it can't reach.
        unresolved: packages steps whose pins can't be had.
        sources: source steps whose tree can't be made.
    """

    unreachable: tuple[tuple[str, str], ...] = ()
    unresolved: tuple[tuple[str, str, str], ...] = ()
    sources: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Subject:
    """What one check judges: a playbook on a host.

    Args:
        playbook: rendered for the host.
        host: the host.
        control: the control machine.
    """

    playbook: Playbook
    host: HostObservation
    control: ControlObservation = ControlObservation()

    @property
    def vendor(self) -> str:
        """The accelerator's vendor; `cpu` where the playbook wants none."""
        wanted = self.playbook.requires.accelerator
        return wanted.vendor if wanted else "cpu"

    @property
    def ascend(self) -> AscendSeen | None:
        """What is installed for Ascend; None when the playbook isn't about it."""
        return self.host.ascend if self.vendor == "ascend" else None

    @property
    def is_builder(self) -> bool:
        """Whether the host has no cards and the playbook doesn't want any there, as of one that only builds."""
        wanted, seen = self.playbook.requires.accelerator, self.host.accelerators
        # Held or sick cards are not the same as none: only a host without the vendor's tool has no card for sure.
        return bool(wanted and wanted.optional) and (seen is None or seen.state == "tool-missing")

    @property
    def cards(self) -> AscendSeen | None:
        """The same for checks of driver and devices; None on a builder too."""
        return None if self.is_builder else self.ascend

    @cached_property
    def service(self) -> ServiceStep | None:
        """The playbook's service step."""
        return next(iter(self.playbook.of_kind(ServiceStep)), None)

    @property
    def connector(self) -> Connector | None:
        """vLLM's connector; None where no vLLM runs."""
        return self.service.connector if self.service else None

    @cached_property
    def venv(self) -> VenvStep | None:
        """The playbook's venv step."""
        return next(iter(self.playbook.of_kind(VenvStep)), None)

    @cached_property
    def builds(self) -> list[NativeBuildStep]:
        """The playbook's native builds that this host may have to make."""
        return [] if self.host.installed else self.playbook.of_kind(NativeBuildStep)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """LMCache's settings: its file's, overlaid by LMCACHE_ variables of the service."""
        found: dict[str, Any] = {}
        for step in self.playbook.of_kind(LmcacheConfigStep):
            found.update(step.settings)
        for name, value in (self.service.env if self.service else {}).items():
            if name.startswith("LMCACHE_"):
                found[name.removeprefix("LMCACHE_").lower()] = value
        return found

    def number(self, setting: str) -> float | None:
        """A setting as a number; None when it isn't set or is none."""
        try:
            return float(self.settings[setting])
        except (KeyError, TypeError, ValueError):
            return None

    def truth(self, setting: str) -> bool:
        """Whether a setting is switched on."""
        return str(self.settings.get(setting, "")).strip().lower() in {"true", "1", "yes", "on"}

    def argument(self, *names: str) -> str | None:
        """Value of an argument of vLLM's, as `--name value` or `--name=value`."""
        arguments = self.service.args if self.service else []
        for position, word in enumerate(arguments):
            name, separator, value = word.partition("=")
            if name in names:
                if separator:
                    return value
                return arguments[position + 1] if position + 1 < len(arguments) else None
        return None

    def whole(self, default: int, *names: str) -> int:
        """Such a value as a whole number."""
        text = self.argument(*names)
        return int(text) if text is not None and text.isascii() and text.isdigit() else default

    @property
    def ranks(self) -> int:
        """Processes of the engine on this host, each with its own host memory tier."""
        parallel = self.whole(1, "--tensor-parallel-size", "-tp") * self.whole(1, "--pipeline-parallel-size", "-pp")
        replicas = self.whole(1, "--data-parallel-size", "-dp")
        return parallel * self.whole(replicas, "--data-parallel-size-local", "-dpl")
