"""What is installed for Ascend on a host: driver, firmware, toolkits, NNAL, devices and their holders, limits."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any

from pyinfra.api import FactBase

from lmcache_fleet.parsers.ascend_env import (
    InstallInfo,
    VersionFile,
    ascend_version,
    parse_driver_install,
    parse_hccn_conf,
    parse_install_info,
    parse_nnal,
    parse_version_cfg,
    parse_version_file,
)
from lmcache_fleet.parsers.ascend_text import decimal, number
from lmcache_fleet.parsers.sections import SHELL_FUNCTION, Section, judged, read_sections
from lmcache_fleet.plain import Plain

ROOT = "/usr/local/Ascend"
_NO_ANSWER = "no-answer"
_MISSING = "not-installed"

# Where the driver is: /etc/ascend_install.info says so, when it exists and names a path.
_DRIVER_ROOT = f"""\
root=$(sed -n 's/^Driver_Install_Path_Param=//p' /etc/ascend_install.info 2>/dev/null | head -n 1)
[ -n "$root" ] && [ -d "$root" ] || root={ROOT}
"""


def _script(body: str) -> str:
    """A self-contained command around a script: nothing of it is left in the caller's shell, and it succeeds."""
    # What cat says of a file that isn't there must not depend on the login's language.
    return f"(\nLC_ALL=C; export LC_ALL\n{SHELL_FUNCTION}{body}\n:\n)"


def _named(output: list[str]) -> dict[str, Section]:
    return {section.name: section for section in read_sections(output)}


def _file_state(section: Section | None, state: str, message: str) -> tuple[str, str]:
    """State of a file that was read with cat: absent and unreadable are told apart from empty."""
    if section is None:
        return _NO_ANSWER, "the host answered nothing"
    text = section.text
    if section.status not in (0, None):
        if "No such file" in text or "Not a directory" in text:
            return _MISSING, text.strip()
        if "ermission denied" in text:
            return "permission-denied", text.strip()
    return judged(state, message, section)


@dataclass(frozen=True, slots=True)
class DriverStatus(Plain):
    """The driver as installed and as loaded.

    Args:
        state: `ok`, `not-installed`, `not-loaded` (files without a loaded module and without devices),
            `permission-denied`, or why the version file can't be read.
        message: what the state was judged by; empty when ok.
        version: the driver's version as printed.
        info: its version file.
        install: `/etc/ascend_install.info`: `driver_path`, `for_all`, `user`, `group`, …
        root: directory that has `driver/`.
        modules: loaded kernel modules of the driver; empty in a container, which doesn't see them all the same.
        has_devices: whether the driver's management device exists.
    """

    state: str
    message: str
    version: str | None
    info: VersionFile
    install: dict[str, Any]
    root: str
    modules: tuple[str, ...]
    has_devices: bool


class Driver(FactBase[DriverStatus]):
    """The Ascend driver: version file, install record, loaded modules."""

    def command(self) -> str:
        """The shell command that reads it."""
        return _script(
            f"{_DRIVER_ROOT}"
            'section root printf %s "$root"\n'
            'section version cat "$root/driver/version.info"\n'
            "section install cat /etc/ascend_install.info\n"
            # Any of the driver's modules will do: their names differ by generation.
            "section modules sed -n 's/^\\(drv_[a-z0-9_]*\\|ascend_[a-z0-9_]*\\|davinci[a-z0-9_]*\\) .*/\\1/p'"
            " /proc/modules\n"
            "section devices ls -d /dev/davinci_manager\n"
        )

    def process(self, output: list[str]) -> DriverStatus:
        """Read the command's output."""
        sections = _named(output)
        version = sections.get("version")
        info = parse_version_file(version.text if version else "")
        state, message = _file_state(version, info.state, info.message)
        modules = tuple(filter(None, _lines(sections, "modules"))) if _succeeded(sections, "modules") else ()
        has_devices = _succeeded(sections, "devices")
        if state == "ok" and not modules and not has_devices:
            state, message = "not-loaded", "no module of the driver is loaded and /dev/davinci_manager is missing"
        install = parse_driver_install(sections["install"].text if "install" in sections else "")
        told = _file_state(sections.get("install"), install["state"], install["message"])
        install = {**install, "state": told[0], "message": told[1]}
        root = "".join(_lines(sections, "root")) or ROOT
        info = replace(info, state=state if state != "not-loaded" else "ok", message=message)
        return DriverStatus(state, message, info.version, info, install, root, modules, has_devices)

    @staticmethod
    def default() -> DriverStatus:
        """The shell said nothing."""
        return Driver().process([])


class Firmware(FactBase[VersionFile]):
    """The firmware's version file; `not-installed` where there is none, as in containers."""

    def command(self) -> str:
        """The shell command that reads it."""
        return _script(f'{_DRIVER_ROOT}section version cat "$root/firmware/version.info"\n')

    def process(self, output: list[str]) -> VersionFile:
        """Read the command's output."""
        section = _named(output).get("version")
        info = parse_version_file(section.text if section else "")
        state, message = _file_state(section, info.state, info.message)
        return replace(info, state=state, message=message)

    @staticmethod
    def default() -> VersionFile:
        """The shell said nothing."""
        return VersionFile(_NO_ANSWER)


@dataclass(frozen=True, slots=True)
class OpsPackage:
    """An operator (kernels) package of a toolkit.

    Args:
        package: its name, such as `Ascend-cann-910b-ops`.
        version: its version; None when its file doesn't say.
        soc: the family it is for, as its name has it: `910b`, `A3`, `310p`.
    """

    package: str
    version: str | None
    soc: str | None


@dataclass(frozen=True, slots=True)
class Toolkit:
    """One CANN toolkit.

    Args:
        state: `ok`, `no-version`, `permission-denied`, or why the install file can't be read.
        path: directory that ASCEND_HOME_PATH would name.
        version: as printed.
        arch: of the package: `aarch64` or `x86_64`.
        ops: operator packages by their install files; empty when none is installed.
        kernels: SoC families that operator kernels are there for, such as `ascend910b`.
        platform_inis: names of the platform files without `.ini`: the SoCs that a build can name.
        set_env: the environment script of this toolkit; None when missing.
        names: other paths that lead here (links).
    """

    state: str
    path: str
    version: str | None
    arch: str | None
    ops: tuple[OpsPackage, ...]
    kernels: tuple[str, ...]
    platform_inis: tuple[str, ...]
    set_env: str | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Toolkits(Plain):
    """Every CANN toolkit of a host.

    Args:
        state: `ok` when the default toolkit was read; `not-installed`, `home-missing`, `ambiguous`, or the default
            toolkit's state.
        message: what the state was judged by; empty when ok.
        default: the toolkit in use: the home asked for (or the login's ASCEND_HOME_PATH), else what the links `cann`
            and `latest` lead to, else the only one.
        toolkits: all of them, in the order of their paths.
    """

    state: str
    message: str = ""
    default: Toolkit | None = None
    toolkits: tuple[Toolkit, ...] = ()


class CannToolkits(FactBase[Toolkits]):
    """Every CANN toolkit: below `ascend-toolkit`, the `cann-VERSION` directories, and those that links lead to.

    + home: ASCEND_HOME_PATH of the service, where it is known; it need not be below the usual root
    """

    @staticmethod
    def default() -> Toolkits:
        """The shell said nothing."""
        return Toolkits(_NO_ANSWER, "the host answered nothing")

    def command(self, home: str | None = None) -> str:
        """The shell command that reads it."""
        given = shlex.quote(home) if home else '"${ASCEND_HOME_PATH:-}"'
        # A name, then its real path: what is below a real path is told once, however many links lead there. Unlike
        # the links, ascend-toolkit/latest of the old layout is a directory of links, and a toolkit of its own.
        return _script(
            f"given={given}; seen=:\n"
            '[ -z "$given" ] || [ -d "$given" ] || printf \'@@section lost %s\\n@@status 0\\n\' "$given"\n'
            f'for d in "$given" {ROOT}/cann {ROOT}/ascend-toolkit/latest {ROOT}/cann-* {ROOT}/ascend-toolkit/*; do\n'
            '  [ -n "$d" ] && [ -d "$d" ] || continue\n'
            '  real=$(cd "$d" 2>/dev/null && pwd -P) || real=$d\n'
            '  set -- "$real"/*-linux/ascend_*_install.info\n'
            '  [ -e "$1" ] || [ -e "$real/version.cfg" ] || [ "$d" = "$given" ] || continue\n'
            '  [ "$d" = "$given" ] && printf \'@@section home %s\\n@@status 0\\n\' "$real"\n'
            '  printf \'@@section name %s\\n%s\\n@@status 0\\n\' "$real" "$d"\n'
            '  case $seen in *":$real:"*) continue;; esac\n'
            "  seen=$seen$real:\n"
            '  for f in "$@"; do [ -e "$f" ] && section "info $f" cat "$f"; done\n'
            '  [ -e "$real/version.cfg" ] && section "cfg $real" cat "$real/version.cfg"\n'
            '  for f in "$real"/opp/built-in/op_impl/ai_core/tbe/kernel/ascend*'
            ' "$real"/opp_kernel/built-in/op_impl/ai_core/tbe/kernel/ascend*; do\n'
            '    [ -d "$f" ] && printf \'@@section kernel %s\\n%s\\n@@status 0\\n\' "$real" "${f##*/}"\n'
            "  done\n"
            '  for f in "$real"/set_env.sh "$real"/../set_env.sh; do\n'
            '    [ -e "$f" ] && { printf \'@@section env %s\\n%s\\n@@status 0\\n\' "$real" "$f"; break; }\n'
            "  done\n"
            "  printf '@@section inis %s\\n' \"$real\"\n"
            '  for f in "$real"/*-linux/data/platform_config/*.ini "$real"/data/platform_config/*.ini; do\n'
            '    [ -e "$f" ] && { f=${f##*/}; printf \'%s\\n\' "${f%.ini}"; }\n'
            "  done\n"
            "  printf '@@status 0\\n'\n"
            "done\n"
            "section done true\n"
        )

    def process(self, output: list[str]) -> Toolkits:
        """Read the command's output."""
        sections = read_sections(output)
        if not any(section.name == "done" for section in sections):
            return Toolkits("truncated", "the answer is cut off") if sections else self.default()
        names: dict[str, list[str]] = {}
        home: str | None = None
        for section in sections:
            kind, _, real = section.name.partition(" ")
            if kind == "home":
                home = real
            if kind == "name":
                names.setdefault(real, []).extend(line for line in section.lines if line)
        toolkits = tuple(_toolkit(real, names[real], sections) for real in sorted(names))
        lost = next(
            (section.name.removeprefix("lost ") for section in sections if section.name.startswith("lost ")), None
        )
        if lost:
            # Another toolkit in its place would be the wrong one.
            return Toolkits("home-missing", f"{lost} is not a directory", None, toolkits)
        if not toolkits:
            return Toolkits(_MISSING, f"no toolkit below {ROOT}")
        by_path = {toolkit.path: toolkit for toolkit in toolkits}
        linked = [
            by_path[real]
            for link in (f"{ROOT}/cann", f"{ROOT}/ascend-toolkit/latest")
            for real in names
            if link in names[real]
        ]
        default = by_path[home] if home in by_path else next(iter(linked), toolkits[0] if len(toolkits) == 1 else None)
        if default is None:
            return Toolkits("ambiguous", "several toolkits, and no link names the one in use", None, toolkits)
        if default.state != "ok":
            return Toolkits(default.state, f"{default.path}: {default.state}", default, toolkits)
        return Toolkits("ok", "", default, toolkits)


def _toolkit(real: str, names: list[str], sections: list[Section]) -> Toolkit:
    """One toolkit of the sections that are about it."""
    infos: list[InstallInfo] = []
    state = "no-version"
    kernels: list[str] = []
    inis: list[str] = []
    set_env: str | None = None
    configured: dict[str, Any] = {}
    for section in sections:
        kind, _, rest = section.name.partition(" ")
        if kind == "info" and rest.startswith(f"{real}/"):
            info = parse_install_info(section.text)
            file_state, _ = _file_state(section, info.state, info.message)
            if file_state == "ok":
                infos.append(info)
            elif rest.endswith("ascend_toolkit_install.info"):
                state = file_state
        elif rest == real and kind == "cfg":
            configured = parse_version_cfg(section.text)
        elif rest == real and kind == "kernel":
            kernels += section.lines
        elif rest == real and kind == "inis":
            inis += section.lines
        elif rest == real and kind == "env":
            set_env = "".join(section.lines)
    # The toolkit's own file counts; an image may have the inference engine's (nnae) in its place.
    main = sorted(infos, key=lambda info: "toolkit" not in (info.package or ""))
    ops = [info for info in infos if any(word in (info.package or "") for word in ("ops", "kernels"))]
    version = main[0].cann if main and main[0] not in ops else configured.get("cann")
    return Toolkit(
        state="ok" if version else state,
        path=real,
        version=version,
        arch=main[0].arch if main else None,
        ops=tuple(OpsPackage(info.package or "", info.cann, _family(info.package or "")) for info in ops),
        kernels=tuple(sorted(set(filter(None, kernels)))),
        platform_inis=tuple(sorted(set(filter(None, inis)))),
        set_env=set_env,
        names=tuple(name for name in dict.fromkeys(names) if name != real),
    )


def _family(package: str) -> str | None:
    """The SoC family in the name of an operator package: `910b` of `Ascend-cann-910b-ops` and `…-kernels-910b`."""
    words = [word for word in package.split("-") if word.lower() not in {"ascend", "cann", "ops", "kernels"}]
    return "-".join(words) or None


@dataclass(frozen=True, slots=True)
class NnalStatus(Plain):
    """NNAL's ATB library.

    Args:
        state: `ok`, `not-installed`, or why its version can't be read.
        message: what the state was judged by; empty when ok.
        version: of ATB, as printed.
        path: directory of the version that `latest` leads to.
        set_env: environment scripts that exist, the standard one first.
        abis: C++ ABIs that are there: `0`, `1`.
    """

    state: str
    message: str = ""
    version: str | None = None
    path: str | None = None
    set_env: tuple[str, ...] = ()
    abis: tuple[str, ...] = ()


class Nnal(FactBase[NnalStatus]):
    """NNAL's ATB: version, environment scripts and ABIs."""

    @staticmethod
    def default() -> NnalStatus:
        """The shell said nothing."""
        return NnalStatus(_NO_ANSWER, "the host answered nothing")

    def command(self, root: str = f"{ROOT}/nnal/atb") -> str:
        """The shell command that reads it."""
        return _script(
            f"root={shlex.quote(root)}\n"
            'path=$(cd "$root/latest" 2>/dev/null && pwd -P) || path=\n'
            # Without the link, the newest version that is there.
            '[ -n "$path" ] || path=$(ls -d "$root"/[0-9]*/ 2>/dev/null | sort -V | tail -n 1)\n'
            "path=${path%/}\n"
            'section path printf %s "$path"\n'
            'section version cat "${path:-$root/latest}/version.info"\n'
            "printf '@@section env\\n'\n"
            'for f in "$root/set_env.sh" "$root/latest/atb/set_env.sh"; do [ -e "$f" ] && printf \'%s\\n\' "$f"; done\n'
            "printf '@@status 0\\n@@section abis\\n'\n"
            'for f in "$path"/atb/cxx_abi_*; do [ -e "$f/lib/libatb.so" ] && printf \'%s\\n\' "${f##*_}"; done\n'
            "printf '@@status 0\\n'\n"
        )

    def process(self, output: list[str]) -> NnalStatus:
        """Read the command's output."""
        sections = _named(output)
        section = sections.get("version")
        info = parse_nnal(section.text if section else "")
        state, message = _file_state(section, info["state"], info["message"])
        version = info["atb"]
        path = "".join(_lines(sections, "path")) or None
        if not version and path and ascend_version(path.rsplit("/", 1)[-1]):
            # The directory is named by the version; a file that can't be read doesn't hide it.
            version = path.rsplit("/", 1)[-1]
            state, message = ("ok", "") if state in {_MISSING, "no-version"} else (state, message)
        abis = tuple(sorted(line for line in _lines(sections, "abis") if line))
        return NnalStatus(state, message, version, path, tuple(filter(None, _lines(sections, "env"))), abis)


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node.

    Args:
        path: `/dev/davinci0`, `/dev/davinci_manager`, …
        mode: permission bits as octal digits, such as `660`.
        owner: user name.
        group: group name.
        is_device: false when something else has the name (a bad mount leaves a directory or a file).
    """

    path: str
    mode: str
    owner: str
    group: str
    is_device: bool


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a device open.

    Args:
        device: its path.
        pid: process id on the host.
        name: command name.
        uid: user id.
        container: id of its container; None outside of one.
    """

    device: str
    pid: int
    name: str
    uid: int | None
    container: str | None


@dataclass(frozen=True, slots=True)
class Devices(Plain):
    """The driver's devices, who may use them and who does.

    Args:
        state: `ok`, `no-devices` (no `/dev/davinci<N>`), `missing-devices` (one that every process needs is not
            there, or is no device), or `no-answer`.
        message: what the state was judged by; empty when ok.
        nodes: device nodes.
        group_members: members of HwHiAiUser's group, None when there is no such group.
        user_exists: whether there is a user HwHiAiUser.
        user_groups: groups of the user that read this.
        holders: processes that have a device open.
        holders_complete: whether every process could be looked at; false for another user than root.
    """

    state: str
    message: str = ""
    nodes: tuple[DeviceNode, ...] = ()
    group_members: tuple[str, ...] | None = None
    user_exists: bool = False
    user_groups: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    holders_complete: bool = False


# One ls over all processes, not a readlink for each open file: a host has tens of thousands. /proc/self is there so
# that ls always has more than one directory to name.
_HOLDERS = r"""
printf '@@section holders\n'
ls -l /proc/self/fd /proc/[0-9]*/fd 2>/dev/null | awk '
  /^\/proc\/[^ ]*\/fd:$/ { split($0, part, "/"); pid = part[3]; next }
  pid ~ /^[0-9]+$/ && match($0, / -> \/dev\/davinci[0-9a-z_]*/) {
    print pid "\t" substr($0, RSTART + 4, RLENGTH - 4)
  }' | sort -u | while IFS='	' read -r pid device; do
  name=$(cat "/proc/$pid/comm" 2>/dev/null)
  user=$(awk '$1 == "Uid:" { print $2 }' "/proc/$pid/status" 2>/dev/null)
  group=$(tr '\n' ' ' < "/proc/$pid/cgroup" 2>/dev/null)
  printf '%s\t%s\t%s\t%s\t%s\n' "$device" "$pid" "$user" "$group" "$name"
done
printf '@@status 0\n'
"""


class AscendDevices(FactBase[Devices]):
    """Device nodes, HwHiAiUser's group, and which processes have a device open (found in /proc, without fuser)."""

    @staticmethod
    def default() -> Devices:
        """The shell said nothing."""
        return Devices(_NO_ANSWER, "the host answered nothing")

    def command(self) -> str:
        """The shell command that reads it."""
        return _script(
            "printf '@@section nodes\\n'\n"
            "for f in /dev/davinci* /dev/devmm_svm /dev/hisi_hdc; do\n"
            '  [ -e "$f" ] && stat -c \'%n\t%a\t%U\t%G\t%F\' "$f"\n'
            "done\n"
            "printf '@@status 0\\n'\n"
            "section group sh -c 'getent group HwHiAiUser || grep ^HwHiAiUser: /etc/group'\n"
            "section user id -u HwHiAiUser\n"
            "section uid id -u\n"
            "section groups id -Gn\n"
            f"{_HOLDERS}"
        )

    def process(self, output: list[str]) -> Devices:
        """Read the command's output."""
        sections = _named(output)
        if "nodes" not in sections:
            return self.default()
        nodes = tuple(
            DeviceNode(path, mode, owner, group, kind.startswith("character"))
            for path, mode, owner, group, kind in _rows(sections, "nodes", 5)
        )
        group = "".join(_lines(sections, "group")[:1]) if _succeeded(sections, "group") else ""
        members = tuple(filter(None, group.split(":")[3].split(","))) if group.count(":") >= 3 else None
        holders = []
        for device, pid, uid, cgroup, name in _rows(sections, "holders", 5):
            holder = number(pid)
            if holder is not None:
                holders.append(Holder(device, holder, name, number(uid), _container(cgroup)))
        state, message = _device_state(nodes)
        if sections.get("holders") is None or sections["holders"].status is None:
            state, message = "truncated", "the answer is cut off"
        return Devices(
            state=state,
            message=message,
            nodes=nodes,
            group_members=members,
            user_exists=_succeeded(sections, "user"),
            user_groups=tuple(" ".join(_lines(sections, "groups")).split()),
            holders=tuple(sorted(holders, key=lambda item: (item.device, item.pid))),
            holders_complete="".join(_lines(sections, "uid")).strip() == "0",
        )


def _device_state(nodes: tuple[DeviceNode, ...]) -> tuple[str, str]:
    there = {node.path for node in nodes if node.is_device}
    if not any(path.removeprefix("/dev/davinci").isdigit() for path in there):
        return "no-devices", "there is no /dev/davinci<N>"
    lacking = [path for path in ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc") if path not in there]
    return ("missing-devices", ", ".join(lacking)) if lacking else ("ok", "")


def _container(cgroup: str) -> str | None:
    """The id of a container in a control group's path: 64 hexadecimal digits, whoever made it."""
    for part in cgroup.replace("-", "/").replace(".", "/").replace(":", "/").split("/"):
        word = part.strip()
        if len(word) == 64 and all(char in "0123456789abcdef" for char in word):
            return word
    return None


@dataclass(frozen=True, slots=True)
class HccnSettings(Plain):
    """`/etc/hccn.conf`.

    Args:
        state: `ok`, `not-installed` (no such file), `permission-denied`, `empty`, or `no-devices`.
        message: what the state was judged by; empty when ok.
        devices: device number → setting → value, such as `address` and `netmask`.
    """

    state: str
    message: str
    devices: dict[str, dict[str, str]]


class HccnConf(FactBase[HccnSettings]):
    """Network settings of the cards."""

    def command(self, path: str = "/etc/hccn.conf") -> str:
        """The shell command that reads it."""
        return _script(f"section conf cat {shlex.quote(path)}\n")

    def process(self, output: list[str]) -> HccnSettings:
        """Read the command's output."""
        section = _named(output).get("conf")
        conf = parse_hccn_conf(section.text if section else "")
        state, message = _file_state(section, conf["state"], conf["message"])
        return HccnSettings(state, message, conf["devices"])

    @staticmethod
    def default() -> HccnSettings:
        """The shell said nothing."""
        return HccnSettings(_NO_ANSWER, "the host answered nothing", {})


@dataclass(frozen=True, slots=True)
class MemlockLimits(Plain):
    """How much memory a process may lock, which host buffers of the KV cache need.

    Args:
        state: `ok`, or `no-answer`.
        soft: bytes that a process of this login may lock; None when unlimited.
        hard: bytes that it may raise that to; None when unlimited.
        service_default: what systemd gives to services, as printed (`infinity`, bytes); None without systemd.
        configured: lines about memlock in /etc/security.
    """

    state: str
    soft: int | None = None
    hard: int | None = None
    service_default: str | None = None
    configured: tuple[str, ...] = ()


class Memlock(FactBase[MemlockLimits]):
    """Limit of locked memory, of this login and of services."""

    @staticmethod
    def default() -> MemlockLimits:
        """The shell said nothing."""
        return MemlockLimits(_NO_ANSWER)

    def command(self) -> str:
        """The shell command that reads it."""
        return _script(
            "section limits sed -n 's/^Max locked memory  *//p' /proc/self/limits\n"
            "section service timeout 20 systemctl show --property=DefaultLimitMEMLOCK --value\n"
            "section configured sh -c 'cat /etc/security/limits.conf /etc/security/limits.d/*.conf 2>/dev/null"
            ' | grep -v "^ *#" | grep memlock\'\n'
        )

    def process(self, output: list[str]) -> MemlockLimits:
        """Read the command's output."""
        sections = _named(output)
        words = " ".join(_lines(sections, "limits")).split()
        if len(words) < 2 or any(word != "unlimited" and number(word) is None for word in words[:2]):
            return self.default()
        service = "".join(_lines(sections, "service")).strip() if _succeeded(sections, "service") else ""
        configured = tuple(" ".join(line.split()) for line in _lines(sections, "configured") if line.strip())
        return MemlockLimits("ok", number(words[0]), number(words[1]), service or None, configured)


@dataclass(frozen=True, slots=True)
class LoginShell(Plain):
    """What a login costs, and what it says.

    Args:
        state: `ok`, `failed` (the profile ends the shell with an error), `timed-out`, or `no-answer`.
        seconds: time until a login shell is ready; the clock ticks in hundredths.
        noise: what it prints unasked, at most 20 lines; it ends up in the answers of whatever is run through it.
    """

    state: str
    seconds: float | None = None
    noise: tuple[str, ...] = ()


class LoginShellCost(FactBase[LoginShell]):
    """Time and noise of a login shell.

    Profiles that source the toolkit's scripts make every login pay for them (the one of ATB starts a python with
    torch), and so every command that is run through a login.
    """

    @staticmethod
    def default() -> LoginShell:
        """The shell said nothing."""
        return LoginShell(_NO_ANSWER)

    def command(self) -> str:
        """The shell command that reads it."""
        # /proc/uptime, as not every date has fractions of a second.
        return _script(
            "login=$(getent passwd \"$(id -u)\" 2>/dev/null | sed 's/.*://')\n"
            '[ -n "$login" ] && [ -x "$login" ] || login=/bin/sh\n'
            "read -r before rest < /proc/uptime\n"
            'section login env -i HOME="${HOME:-/}" USER="$(id -un)" TERM=dumb PATH=/usr/local/bin:/usr/bin:/bin'
            ' timeout 20 "$login" -l -c :\n'
            "read -r after rest < /proc/uptime\n"
            'section seconds awk -v a="$before" -v b="$after" \'BEGIN { printf "%.2f", b - a }\'\n'
        )

    def process(self, output: list[str]) -> LoginShell:
        """Read the command's output."""
        sections = _named(output)
        login = sections.get("login")
        seconds = decimal("".join(_lines(sections, "seconds")).strip())
        if login is None or login.status is None:
            return self.default()
        state = {0: "ok", 124: "timed-out"}.get(login.status, "failed")
        return LoginShell(state, seconds, tuple(line for line in login.lines if line.strip())[:20])


def _lines(sections: dict[str, Section], name: str) -> tuple[str, ...]:
    return sections[name].lines if name in sections else ()


def _succeeded(sections: dict[str, Section], name: str) -> bool:
    return name in sections and sections[name].status == 0


def _rows(sections: dict[str, Section], name: str, fields: int) -> list[list[str]]:
    """Lines of tab-separated fields; the last field may have tabs of its own."""
    rows = [line.split("\t", fields - 1) for line in _lines(sections, name)]
    return [row for row in rows if len(row) == fields]
