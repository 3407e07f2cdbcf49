"""What `xpu-smi` prints: `discovery` as table or JSON, `stats`, `ps`; of 2.x `--list-gpus` and `--query-gpu`.

Sources: intel/xpumanager's README, "Intel XPU System Management Interface User Guide" (1.x) and the pages of 2.0 on
discovery, stats, ps and the global options.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lmcache_fleet.accelerators import Accelerators, Chip, Process
from lmcache_fleet.parsers import nvidia
from lmcache_fleet.parsers.smi_table import read_frame
from lmcache_fleet.parsers.text import (
    absent,
    clean_lines,
    clean_number,
    error_table,
    find_json,
    mib,
    unread,
)

VENDOR = "xpu"

ERRORS = error_table(
    ("driver-not-loaded", r"level[- ]zero init\w* (?:error|failed)|zeinit\w* (?:failed|error)|ze_result_error"),
    ("service-not-running", r"(?:failed to|cannot|can't) connect to .*(?:xpum|daemon)|xpum (?:service|daemon) is not"),
    ("tool-not-ready", r"xpum (?:is )?not (?:been )?initiali[sz]ed|xpum initiali[sz]ation failed"),
    ("no-devices", r"no devices? (?:was |were )?(?:discovered|found)|device not found"),
)

# Key of the table, in lower case → key of the JSON, which both are read as.
_KEYS = {
    "device type": "device_type",
    "device name": "device_name",
    "device state": "device_state",
    "vendor name": "vendor_name",
    "uuid": "uuid",
    "soc uuid": "uuid",
    "serial number": "serial_number",
    "driver version": "driver_version",
    "kernel version": "kernel_version",
    "gfx firmware version": "gfx_firmware_version",
    "pci bdf address": "pci_bdf_address",
    "pci device id": "pci_device_id",
    "drm device": "drm_device",
    "function type": "device_function_type",
    "memory physical size": "memory_physical_size",
    "number of tiles": "number_of_tiles",
    "number of eus": "number_of_eus",
    "ecc state": "memory_ecc_state",
}
_EXTRA = {
    "uuid": "uuid",
    "pci_device_id": "device_id",
    "drm_device": "drm_device",
    "serial_number": "serial",
    "kernel_version": "kernel",
    "gfx_firmware_version": "firmware",
    "number_of_tiles": "tiles",
    "number_of_eus": "execution_units",
    "memory_ecc_state": "ecc_state",
    "device_function_type": "function",
}
_DEVICE = re.compile(r"\d{1,4}")


def parse_discovery(text: str) -> Accelerators:
    """Read `xpu-smi discovery`, with `-d N` or without, as table or JSON.

    Virtual functions count only where there is no physical one: in a guest.
    """
    lines = clean_lines(text, data=True)
    value = find_json(lines)
    whole = ""
    if isinstance(value, dict) and ("device_list" in value or "device_id" in value):
        listed = value.get("device_list", [value])
        devices = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    elif isinstance(value, list):
        devices = [entry for entry in value if "device_id" in entry]
    else:
        devices, whole = _from_table([line[:2000] for line in lines])
    devices = [entry for entry in devices if str(entry.get("device_type", "GPU")).upper() == "GPU"]
    physical = [entry for entry in devices if str(entry.get("device_function_type", "")).lower() != "virtual"]
    chips = tuple(_chip(entry, place) for place, entry in enumerate(physical or devices))
    drivers = (entry.get("driver_version") for entry in devices)
    driver = next((str(version) for version in drivers if version and not absent(str(version))), None)
    if chips:
        state, message = ("truncated", whole) if whole else ("ok", "")
    elif isinstance(value, dict) and "device_list" in value:
        state, message = "no-devices", "the list of devices is empty"
    else:
        state, message = unread(_texts(lines, value), ERRORS)
        if state == "unrecognized" and message.startswith(("+-", "|")):
            state, message = ("truncated", whole) if whole else ("no-devices", "the table has no rows")
    return Accelerators(VENDOR, state, message, None, driver, chips)


def _texts(lines: list[str], value: object) -> list[str]:
    """The lines in which to look for an error; of `{"error": …, "errno": …}` the text."""
    if isinstance(value, dict):
        said = value.get("error", value.get("message"))
        if isinstance(said, str) and said:
            return [said]
    return lines


def _from_table(lines: list[str]) -> tuple[list[dict[str, Any]], str]:
    """The devices, and where the table is cut off; empty when it is whole."""
    frame = read_frame(lines)
    devices: list[dict[str, Any]] = []
    inside = False
    for block in frame.blocks:
        for row in block.rows:
            first, rest = row.cell(0), row.cell(1)
            if first.lower() == "device id" and rest.lower().startswith("device information"):
                inside = True
                continue
            if not inside:
                continue
            if _DEVICE.fullmatch(first):
                devices.append({"device_id": int(first)})
            key, colon, said = rest.partition(":")
            name = _KEYS.get(" ".join(key.lower().split()))
            # A value may be cut where the row doesn't end with the frame.
            if colon and name and devices and row.closed:
                devices[-1].setdefault(name, said.strip())
    last = frame.blocks[-1] if frame.blocks else None
    return devices, "" if last is None or last.rule else last.rows[-1].inner.strip()


def _chip(entry: dict[str, Any], place: int) -> Chip:
    index = clean_number(entry.get("device_id"))
    size = mib(entry.get("memory_physical_size_byte"), "B") or mib(entry.get("memory_physical_size"))
    extra = {
        name: entry[key] for key, name in _EXTRA.items() if entry.get(key) is not None and not absent(str(entry[key]))
    }
    state, bus = str(entry.get("device_state") or ""), str(entry.get("pci_bdf_address") or "")
    return Chip(
        npu_id=place if index is None else index,
        chip_id=None,
        name=str(entry.get("device_name") or ""),
        health=None if absent(state) else state,
        bus_id=None if absent(bus) else bus,
        memory_kind="VRAM",
        memory_used_mb=None,
        memory_total_mb=size,
        logic_id=index,
        extra=extra,
    )


_STATS = {"gpu memory used (mib)": "used_mb", "gpu utilization (%)": "util_percent", "gpu power (w)": "power_w",
          "gpu core temperature (c)": "temperature_c"}  # fmt: skip
_METRICS = {"XPUM_STATS_MEMORY_USED": "used_mb", "XPUM_STATS_GPU_UTILIZATION": "util_percent",
            "XPUM_STATS_POWER": "power_w", "XPUM_STATS_GPU_CORE_TEMPERATURE": "temperature_c"}  # fmt: skip


def parse_stats(text: str) -> Accelerators:
    """Read `xpu-smi stats`: used memory and load of each device; names and sizes are not in it."""
    lines = clean_lines(text, data=True)
    found: list[tuple[int, dict[str, int]]] = []
    value = find_json(lines)
    if isinstance(value, dict):
        listed = value.get("datas", value.get("device_list", [value]))
        for entry in listed if isinstance(listed, list) else [listed]:
            _read_stats_json(entry, found)
    for block in read_frame([line[:2000] for line in lines]).blocks:
        for row in block.rows:
            key, said = " ".join(row.cell(0).lower().split()), row.cell(1)
            if key == "device id" and _DEVICE.fullmatch(said):
                found.append((int(said), {}))
            elif found and key in _STATS and row.closed:
                # Of a device with tiles the row has `Tile 0: 24, Tile 1: 30`, of one without just the figure.
                figures = [int(figure) for figure in re.findall(r"(?:^|: *)(\d{1,15})(?:\.\d+)?(?=,|;|\s|$)", said)]
                if figures:
                    found[-1][1].setdefault(_STATS[key], sum(figures) if key.endswith("(mib)") else max(figures))
    chips = tuple(
        Chip(index, None, "", None, None, "VRAM", figures.pop("used_mb", None), None, index, dict(figures))
        for index, figures in found
    )
    state, message = ("ok", "") if chips else unread(_texts(lines, value), ERRORS)
    return Accelerators(VENDOR, state, message, chips=chips)


def _read_stats_json(entry: object, found: list[tuple[int, dict[str, int]]]) -> None:
    index = clean_number(entry.get("device_id")) if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or index is None:
        return
    figures: dict[str, int] = {}
    level = entry.get("device_level")
    for item in level if isinstance(level, list) else []:
        name = _METRICS.get(str(item.get("metrics_type"))) if isinstance(item, dict) else None
        figure = item.get("value") if name else None
        if name and isinstance(figure, (int, float)) and 0 <= figure < 1e15:
            figures[name] = int(figure)
    found.append((index, figures))


_PS = re.compile(r"\s*(\d{1,10})\s+(\S.*?)\s+(\d{1,4})\s+(\d{1,15}|N/A|-)?\s*(\d{1,15}|N/A|-)?\s*")


def parse_ps(text: str) -> Accelerators:
    """Read `xpu-smi ps`: processes only, `ok` without any."""
    lines = clean_lines(text, data=True)
    value = find_json(lines)
    found: list[Process] = []
    headed = any(re.search(r"\bPID\s+Command\s+DeviceID\b", line) for line in lines)
    if isinstance(value, dict):
        listed = value.get("device_util_by_proc_list", value.get("process_list", []))
        for item in listed if isinstance(listed, list) else []:
            if isinstance(item, dict):
                index = clean_number(item.get("device_id"))
                name = str(item.get("process_name") or item.get("command") or "")
                used = mib(item.get("mem_size", item.get("mem")), "KB")
                found.append(
                    Process(-1 if index is None else index, None, clean_number(item.get("process_id")), name, used)
                )
    for line in lines if headed else []:
        row = _PS.fullmatch(line[:2000])
        if row:
            found.append(Process(int(row[3]), None, int(row[1]), row[2], mib(row[5], "KB")))
    known = headed or (isinstance(value, dict) and not {"error", "errno"} & value.keys())
    state, message = ("ok", "") if known else unread(_texts(lines, value), ERRORS)
    return Accelerators(VENDOR, state, message, processes=tuple(found))


def parse_list(text: str) -> Accelerators:
    """Read `xpu-smi --list-gpus` of 2.x, which has the form of `nvidia-smi -L`."""
    answer = nvidia.parse_list(text)
    if answer.state not in {"ok", "truncated"}:
        return Accelerators(VENDOR, *unread(clean_lines(text), ERRORS))
    return replace(answer, vendor=VENDOR)


def parse_query_gpu(text: str) -> Accelerators:
    """Read `xpu-smi --query-gpu=… --format=csv` of 2.x."""
    answer = nvidia.parse_query_gpu(text, VENDOR)
    if not answer.chips and answer.state != "unknown-header":
        lines = clean_lines(text)
        state, message = unread(lines, ERRORS)
        return replace(answer, state=answer.state if state == "unrecognized" else state, message=message)
    return answer


_VERSION = re.compile(r"\b(CLI|Service|Library|Level Zero|Build ID)(?: version)?\s*:\s*(\S+)", re.IGNORECASE)


def parse_version(text: str) -> dict[str, Any]:
    """Read `xpu-smi -v`: `state`, `message` and the versions of tool and Level Zero."""
    lines = clean_lines(text)
    found = {match[1].lower(): match[2] for line in lines for match in _VERSION.finditer(line)}
    tool, zero = found.get("cli"), found.get("level zero")
    state, message = ("ok", "") if tool or zero else unread(lines, ERRORS)
    return {"state": state, "message": message, "tool_version": tool, "level_zero_version": zero}


PARSERS: dict[str, Callable[[str], Any]] = {
    "xpu-smi-discovery": lambda text: parse_discovery(text).as_json(),
    "xpu-smi-stats": lambda text: parse_stats(text).as_json(),
    "xpu-smi-ps": lambda text: parse_ps(text).as_json(),
    "xpu-smi-list": lambda text: parse_list(text).as_json(),
    "xpu-smi-query-gpu": lambda text: parse_query_gpu(text).as_json(),
    "xpu-smi-version": parse_version,
}
