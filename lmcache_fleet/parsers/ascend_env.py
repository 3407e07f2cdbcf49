"""Version and install files of the Ascend driver, firmware, CANN, NNAL and MindIE, and the listings around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from lmcache_fleet.parsers.ascend_soc import check_soc, soc_name
from lmcache_fleet.parsers.ascend_text import clean_lines, unread_state
from lmcache_fleet.parsers.ascend_version import ascend_version
from lmcache_fleet.parsers.npu_smi_info import parse_info
from lmcache_fleet.plain import Plain

__all__ = [
    "PARSERS",
    "InstallInfo",
    "VersionFile",
    "ascend_version",
    "check_soc",
    "parse_collect_env",
    "parse_hccn_conf",
    "parse_install_info",
    "parse_listing",
    "parse_lspci",
    "parse_nnal",
    "parse_version_cfg",
    "parse_version_file",
    "soc_name",
]

_ASSIGNMENT = re.compile(r"(?:^|[\s|>\]])([A-Za-z][A-Za-z0-9_]*)\s*=\s*(\S.*|)$")
_COLON = re.compile(r"\s*([A-Za-z][\w .-]*?)\s*:\s*(.*)")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_COMPONENT = re.compile(r"(\w+?)_(running|upgrade|installed)_version")
_PCI = re.compile(r"(?:^|\s)((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\s+(.*)", re.IGNORECASE)
_PCI_NUMERIC = re.compile(r"\b19e5:([0-9a-f]{4})\b", re.IGNORECASE)
_PCI_DEVICE = re.compile(r"\bDevice ([0-9a-f]{4})\b", re.IGNORECASE)
_LINK = re.compile(r"(l[rwxsStT-]{9})\S*\s.*?(\S+)\s+->\s+(\S+)")
_ENTRY = re.compile(r"([-dbcps])[rwxsStT-]{9}\S*\s.*?(\S+)")
_LIBRARY = re.compile(r"\[(pip\d?|conda)\]\s+([A-Za-z0-9][\w.-]*)(?:==|\s+)(\S+)")
_HCCN = re.compile(r"(\w+?)_(\d+)")

# Huawei's accelerators by PCI device id.
_CHIPS = {
    "d100": "310",
    "d500": "310P",
    "d801": "910A",
    "d802": "910B",
    "d803": "910_93",
    "d806": "950",
}


@dataclass(frozen=True, slots=True)
class VersionFile(Plain):
    """A driver's or firmware's `version.info`.

    Args:
        state: `ok`, the named error of the text, `empty`, or `no-version`.
        message: the line that the state was judged by; empty when ok.
        version: `Version=`, the driver's or the firmware's own number.
        package: `package_version=`, the release that both belong to; None where absent.
        compatible: ranges that the file says it works with: `compatible_version_fw` of a driver,
            `compatible_version_drv` of firmware.
        values: every key of the file.
    """

    state: str
    message: str = ""
    version: str | None = None
    package: str | None = None
    compatible: tuple[tuple[str, str], ...] = ()
    values: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InstallInfo(Plain):
    """A CANN package's `ascend_<package>_install.info`.

    Args:
        state: `ok`, the named error of the text, `empty`, or `no-version`.
        message: the line that the state was judged by; empty when ok.
        cann: the package's version.
        arch: `aarch64` or `x86_64`.
        package: its name, such as `Ascend-cann-toolkit`.
        path: where it was installed.
        values: every key of the file.
    """

    state: str
    message: str = ""
    cann: str | None = None
    arch: str | None = None
    package: str | None = None
    path: str | None = None
    values: dict[str, str] = field(default_factory=dict)


def assignments(lines: Iterable[str]) -> dict[str, str]:
    """`key=value` lines; the first of a key counts, comments don't."""
    values: dict[str, str] = {}
    for line in lines:
        found = None if line.lstrip().startswith("#") else _ASSIGNMENT.search(line)
        if found:
            values.setdefault(found[1], found[2].strip())
    return values


def _judge(lines: list[str], wanted: str | None, what: str) -> tuple[str, str]:
    """`ok` when the wanted value is there; otherwise the text's own error, or that it lacks the value."""
    if wanted:
        return "ok", ""
    state, message = unread_state(lines)
    return (f"no-{what}", message) if state == "unrecognized" else (state, message)


def parse_version_file(text: str) -> VersionFile:
    """Read `driver/version.info` or `firmware/version.info`."""
    lines = clean_lines(text)
    values = assignments(lines)
    version = values.get("Version") or None
    ranges = values.get("compatible_version_fw", values.get("compatible_version_drv", ""))
    pairs = [item.split(",", 1) for item in _BRACKET.findall(ranges)]
    compatible = tuple((pair[0].strip(), pair[-1].strip()) for pair in pairs)
    state, message = _judge(lines, version, "version")
    return VersionFile(state, message, version, values.get("package_version") or None, compatible, values)


def parse_install_info(text: str) -> InstallInfo:
    """Read a CANN package's `ascend_<package>_install.info`."""
    lines = clean_lines(text)
    values = assignments(lines)
    version = values.get("version") or None
    state, message = _judge(lines, version, "version")
    arch, package, path = (values.get(key) or None for key in ("arch", "package_name", "path"))
    return InstallInfo(state, message, version, arch, package, path, values)


def parse_driver_install(text: str) -> dict[str, Any]:
    """Read `/etc/ascend_install.info`: where the driver is, for whom, and by which user."""
    lines = clean_lines(text)
    values = assignments(lines)
    path = values.get("Driver_Install_Path_Param") or None
    state, message = _judge(lines, path, "driver-path")
    return {
        "state": state,
        "message": message,
        "driver_path": path,
        "for_all": values.get("Driver_Install_For_All") or None,
        "user": values.get("UserName") or None,
        "group": values.get("UserGroup") or None,
        "mode": values.get("Driver_Install_Mode") or None,
        "firmware_path": values.get("Firmware_Install_Path_Param") or None,
        "toolkit_path": values.get("Toolkit_InstallPath") or None,
        "values": values,
    }


def parse_version_cfg(text: str) -> dict[str, Any]:
    """Read `latest/version.cfg`.

    Returns:
        `cann` is the running version of the toolkit (else of the runtime, else of any component), the last one where
        an upgrade left several; `kernels` tells whether the operator kernels are installed; `mixed` names components
        that run another version than `cann`.
    """
    lines = clean_lines(text)
    groups: dict[str, dict[str, str]] = {"running": {}, "upgrade": {}, "installed": {}}
    for key, value in assignments(lines).items():
        component = _COMPONENT.fullmatch(key)
        brackets = _BRACKET.findall(value)
        if component and brackets:
            groups[component[2]][component[1]] = brackets[-1].rsplit(":", 1)[-1].strip()
    current = groups["running"] or groups["upgrade"] or groups["installed"]
    cann = current.get("toolkit") or current.get("runtime") or next(iter(current.values()), None)
    state, message = _judge(lines, cann, "version")
    return {
        "state": state,
        "message": message,
        "cann": cann,
        "kernels": "opp_kernel" in current,
        "mixed": sorted(name for name, version in current.items() if version != cann),
        "components": current,
    }


def parse_nnal(text: str) -> dict[str, Any]:
    """Read NNAL's `atb/<version>/version.info`: `atb`, its build and its branch."""
    lines = clean_lines(text)
    values = _colons(lines)
    build = values.get("ascend-cann-atb version")
    version = values.get("ascend-cann-atb") or (re.sub(r"\.B\d+$", "", build) if build else None)
    state, message = _judge(lines, version, "version")
    return {"state": state, "message": message, "atb": version, "build": build, "branch": values.get("branch")}


def parse_mindie(text: str) -> dict[str, Any]:
    """Read MindIE's `version.info`: `mindie`, the parts' versions and the platform."""
    lines = clean_lines(text)
    values = _colons(lines)
    whole = values.get("ascend-mindie", "")
    version = whole.split()[-1] if whole else None
    state, message = _judge(lines, version, "version")
    parts = {key: value for key, value in values.items() if key.startswith("mindie-")}
    return {"state": state, "message": message, "mindie": version, "parts": parts, "platform": values.get("platform")}


def _colons(lines: list[str]) -> dict[str, str]:
    """`key : value` lines with the keys in lower case; the first of a key counts."""
    values: dict[str, str] = {}
    for line in lines:
        found = _COLON.fullmatch(line)
        if found and found[2]:
            values.setdefault(found[1].lower(), found[2])
    return values


def parse_hccn_conf(text: str) -> dict[str, Any]:
    """Read `/etc/hccn.conf`: the network settings of each device, by its number."""
    lines = clean_lines(text)
    devices: dict[str, dict[str, str]] = {}
    for key, value in assignments(lines).items():
        found = _HCCN.fullmatch(key)
        if found:
            devices.setdefault(found[2], {})[found[1]] = value
    state, message = _judge(lines, "yes" if devices else None, "devices")
    return {"state": state, "message": message, "devices": devices}


def parse_lspci(text: str) -> dict[str, Any]:
    """Read `lspci` (also with `-n`, `-nn`, `-D`): Huawei's accelerators on the bus.

    A dead card is missing here and nowhere else, so `npus` is what the tool's own count is held against.
    """
    lines = clean_lines(text)
    devices = []
    listed = False
    for line in lines:
        found = _PCI.search(line)
        if not found:
            continue
        listed = True
        what = found[2].lower()
        # Class 12 is "processing accelerators"; the vendor's network and management chips have others.
        accelerator = "processing accelerator" in what or re.match(r"(?:class )?(?:0x)?12[0-9a-f]{2}:", what)
        if not accelerator or not ("huawei" in what or "19e5:" in what):
            continue
        number = _PCI_NUMERIC.search(found[2]) or _PCI_DEVICE.search(found[2])
        device = number[1].lower() if number else None
        devices.append({"bus_id": found[1], "device_id": device, "chip": _CHIPS.get(device or "")})
    state, message = _judge(lines, "yes" if devices else None, "devices")
    if listed and not devices:
        state, message = "no-devices", "no Huawei accelerator is on the bus"
    return {"state": state, "message": message, "npus": len(devices), "devices": devices}


def parse_listing(text: str) -> dict[str, Any]:
    """Read `ls -l` of a toolkit's directory: links and their targets, and the versions that the links lead to."""
    lines = clean_lines(text)
    links: dict[str, str] = {}
    entries: list[str] = []
    for line in lines:
        link = _LINK.search(line)
        entry = None if link else _ENTRY.search(line)
        if link:
            links[link[2]] = link[3]
        elif entry and (name := line.split()[-1]) not in {".", ".."}:
            entries.append(name)
    parts = {part for target in links.values() for part in target.split("/") if "." in part.strip(".")}
    versions = sorted(part for part in parts if ascend_version(part.removeprefix("cann-")))
    state, message = _judge(lines, "yes" if links or entries else None, "entries")
    return {"state": state, "message": message, "links": links, "entries": entries, "versions": versions}


def parse_collect_env(text: str) -> dict[str, Any]:
    """Read vLLM's or vLLM-Ascend's `collect_env` report.

    Returns:
        `libraries` by name (pip's version counts over conda's), `torch`, `torch_npu`, `vllm`, `vllm_ascend`, the
        `cann` that the report read from its default path (not always the one in use), and `npu_smi` with the chips
        when the report has the tool's table.
    """
    lines = clean_lines(text)
    by_source: dict[str, dict[str, str]] = {"pip": {}, "conda": {}}
    for line in lines:
        found = _LIBRARY.search(line)
        if found:
            by_source["conda" if found[1] == "conda" else "pip"].setdefault(found[2], found[3])
    libraries = {**by_source["conda"], **by_source["pip"]}
    plain = {re.sub(r"[-_.]+", "_", name.lower()): version for name, version in libraries.items()}
    said = _colons(lines)
    install = parse_install_info(text)
    table = parse_info(text)
    known = {
        "torch": plain.get("torch") or _first(said.get("pytorch version")),
        "torch_npu": plain.get("torch_npu"),
        "vllm": plain.get("vllm") or _first(said.get("vllm version")),
        "vllm_ascend": plain.get("vllm_ascend") or _first(said.get("vllm ascend version")),
        "cann": install.cann if install.package and "toolkit" in install.package else None,
    }
    state, message = _judge(lines, "yes" if libraries or any(known.values()) else None, "libraries")
    report = {"state": state, "message": message, **known, "libraries": libraries}
    return {**report, "npu_smi": table.as_json()} if table.chips else report


def _first(text: str | None) -> str | None:
    words = text.split() if text else []
    return words[0] if words else None


def _driver_json(text: str) -> dict[str, Any]:
    info = parse_version_file(text)
    return {**asdict(info), "driver": info.version}


def _firmware_json(text: str) -> dict[str, Any]:
    info = parse_version_file(text)
    return {**asdict(info), "firmware": info.version}


PARSERS: dict[str, Callable[[str], Any]] = {
    "ascend-driver-info": _driver_json,
    "ascend-firmware-info": _firmware_json,
    "ascend-install-info": parse_driver_install,
    "ascend-toolkit-info": lambda text: asdict(parse_install_info(text)),
    "ascend-version-cfg": parse_version_cfg,
    "ascend-nnal-info": parse_nnal,
    "ascend-mindie-info": parse_mindie,
    "hccn-conf": parse_hccn_conf,
    "lspci-ascend": parse_lspci,
    "collect-env": parse_collect_env,
    "ls-toolkit": parse_listing,
}
