"""`amd-smi`: the default table of ROCm 7, and the JSON, CSV and indented text of its `static`, `metric`, `list`.

Sources: ROCm's page "AMD SMI CLI tool usage" (5.7 to 7.x), issues of ROCm/ROCm with the default table, and public
collectors that read `static --json` as a list (up to 6.x) or as `gpu_data` (from 7.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lmcache_fleet.accelerators import Accelerators, Chip, Process
from lmcache_fleet.parsers.rocm_errors import ERRORS, VENDOR
from lmcache_fleet.parsers.smi_csv import read_csv
from lmcache_fleet.parsers.smi_table import Frame, Row, Table, read_frame
from lmcache_fleet.parsers.text import (
    absent,
    clean_lines,
    clean_number,
    find_json,
    indented,
    known_error,
    mib,
    number,
    unread,
)

_TOOL = re.compile(r"AMD-SMI\s+(\d\S*)|AMDSMI Tool:\s*(\d\S*)|Management Interface \| Version:\s*(\d\S*)")
_DRIVER = re.compile(r"amdgpu version\s*:\s*(\S+)", re.IGNORECASE)
_ROCM = re.compile(r"ROCm version\s*:\s*(\S+)", re.IGNORECASE)
_LIBRARY = re.compile(r"AMDSMI Library version\s*:\s*(\S+)", re.IGNORECASE)
_PLATFORM = re.compile(r"Platform\s*:\s*([^|]*[^|\s])")
_NAMED = re.compile(r"([0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F]|N/A)\s+(\S.*)", re.IGNORECASE)
_USAGE = re.compile(r"(\d{1,12})\s*/\s*(\d{1,12}\s*[KMGT]i?B)", re.IGNORECASE)
_TEMPERATURE = re.compile(r"(\d{1,3})\s*°?C\b")
_PERCENT = re.compile(r"(\d{1,3})\s*%")
_POWER = re.compile(r"(\d{1,5}|N/A)\s*/\s*(\d{1,5})\s*W")
_GPU_LINE = re.compile(r"^(.*\b|\W*)GPU:\s*(\d{1,4})$")
_CSV_FIELDS = frozenset({"gpu", "gpu_bdf", "gpu_uuid", "gpu_id"})


def parse_amd_smi(text: str) -> Accelerators:
    """Read the default table, or what `static`, `metric`, `list` or `process` print as text, JSON or CSV."""
    lines = clean_lines(text, data=True)
    short = [line[:2000] for line in lines]
    tool, driver, rocm = _tool(short), _first(_DRIVER, short), _first(_ROCM, short)
    # The kernel's own amdgpu has no version; the tool prints the start of /proc/version instead.
    driver = None if driver == "Linuxver" else driver
    extra: dict[str, Any] = {} if rocm is None else {"rocm_version": rocm}
    platform = _first(_PLATFORM, short)
    if platform:
        extra["platform"] = platform
    frame = read_frame(short)
    table = next((table for table in frame.tables if table.find(r"\bGPU-Name\b")), None)
    if table:
        return _from_table(short, frame, table, tool, driver, extra)
    entries = _entries(lines)
    if entries is None:
        state, message = unread(lines, ERRORS)
        if state == "unrecognized" and any(line.strip().startswith(("+--", "|--")) for line in short):
            state = "unknown-header" if frame.tables else "truncated"
        return Accelerators(VENDOR, state, message, tool, driver, extra=extra)
    chips = tuple(_chip(entry, place) for place, entry in enumerate(entries))
    driver = driver or next((found for entry in entries if (found := _text(entry, *_DRIVERS))), None)
    state, message = ("ok", "") if chips else ("no-devices", "the list of cards is empty")
    processes = tuple(_processes(entries))
    return Accelerators(VENDOR, state, message, tool, driver, chips, processes, extra)


def parse_amd_smi_version(text: str) -> dict[str, Any]:
    """Read `amd-smi version`: `state`, `message`, and the versions of tool, library, ROCm and driver."""
    lines = clean_lines(text)
    value = find_json(lines)
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, dict):
        names = ("version", "amdsmi_library_version", "rocm_version", "amdgpu_version")
        versions = [_text(value, key) for key in names]
    else:
        versions = [_tool(lines), *(_first(pattern, lines) for pattern in (_LIBRARY, _ROCM, _DRIVER))]
    state, message = ("ok", "") if any(versions) else unread(lines, ERRORS)
    keys = ("tool_version", "library_version", "rocm_version", "driver_version")
    return {"state": state, "message": message, **dict(zip(keys, versions, strict=True))}


# The default table


def _from_table(
    lines: list[str], frame: Frame, table: Table, tool: str | None, driver: str | None, extra: dict[str, Any]
) -> Accelerators:
    chips: list[Chip] = []
    broken: str | None = None
    width = len(table.header[0].cells)
    # Rules between cards begin with a bar; the one with corners at both ends is the table's last.
    ended = any(block.outer for block in table.blocks)
    for group in table.groups():
        if all(row.closed and len(row.cells) == width for row in group) and len(group) == len(table.header):
            chips.append(_row_chip(table, group, len(chips)))
        elif not any(row.inner.strip().startswith("Processes") for row in group):
            broken = broken or group[-1].inner.strip()
    listed = next((table for table in frame.tables if table.find(r"\bPID\b")), None)
    processes, extra["processes_state"] = _row_processes(listed) if listed else ((), "not-printed")
    state, message = "ok", ""
    if frame.elided:
        state, message = "elided", "rows are left out"
    elif broken is not None or not ended:
        state, message = "truncated", broken or "the output ends before the table does"
    elif not chips:
        state, message = known_error(lines, ERRORS) or ("no-devices", "the table has no rows")
    return Accelerators(VENDOR, state, message, tool, driver, tuple(chips), processes, extra)


def _row_chip(table: Table, group: tuple[Row, ...], place: int) -> Chip:
    def cell(title: str) -> str:
        where = table.find(title)
        return group[where[0]].cell(where[1]) if where else ""

    def column(title: str) -> str | None:
        """The word under a title in the cell of words that it shares with others."""
        where = table.find(rf"(?:^| ){title}(?: |$)")
        if where is None:
            return None
        titles = table.header[where[0]].cell(where[1]).split()
        values = group[where[0]].cell(where[1]).split()
        spot = titles.index(title) if title in titles else len(values)
        return values[spot] if len(values) == len(titles) and not absent(values[spot]) else None

    named = _NAMED.fullmatch(cell(r"\bGPU-Name\b"))
    usage = _USAGE.search(cell(r"\bMem-Usage\b"))
    power = _POWER.search(cell(r"\bPower-Usage\b"))
    found = {
        "temperature_c": _TEMPERATURE.search(cell(r"\bTemp\b")),
        "util_percent": _PERCENT.match(cell(r"\bGFX-Uti\b")),
        "memory_util_percent": _PERCENT.match(cell(r"\bMem-Uti\b")),
    }
    extra: dict[str, Any] = {key: int(match[1]) for key, match in found.items() if match}
    if power:
        extra |= {"power_w": number(power[1]), "power_limit_w": number(power[2])}
    partition = column("Partition-Mode")
    hip = number(column("HIP-ID"))
    extra |= {"hip_id": hip, "oam_id": number(column("OAM-ID")), "partition_mode": partition}
    index = number(column("GPU"))
    return Chip(
        npu_id=place if index is None else index,
        chip_id=None,
        name=named[2].strip() if named else "",
        health=None,
        bus_id=named[1] if named and not absent(named[1]) else None,
        memory_kind="VRAM",
        memory_used_mb=mib(f"{usage[1]} MB") if usage else None,
        memory_total_mb=mib(usage[2]) if usage else None,
        # HIP numbers the cards in its own order, and that is the number software selects by.
        logic_id=index if hip is None else hip,
        extra={key: value for key, value in extra.items() if value is not None},
    )


_ROW_PROCESS = re.compile(
    r"(\d{1,4})\s+(\d{1,10}|N/A)\s+(\S.*?)\s+([\d.]+ ?[KMGT]?i?B|N/A)\s+([\d.]+ ?[KMGT]?i?B|N/A)"
    r"\s+([\d.]+ ?[KMGT]?i?B|N/A)\s+(\S.*)"
)


def _row_processes(table: Table) -> tuple[tuple[Process, ...], str]:
    found = []
    for row in table.rows:
        match = _ROW_PROCESS.fullmatch(row.inner.strip()) if row.closed else None
        if match:
            name = "" if absent(match[3]) else match[3]
            found.append(Process(int(match[1]), None, number(match[2]), name, mib(match[5].replace(" ", ""))))
    return tuple(found), "ok" if any(block.rule for block in table.blocks) else "truncated"


# JSON, CSV and indented text


def _entries(lines: list[str]) -> list[dict[str, Any]] | None:
    """One object a card; None when the output is of another form."""
    value = find_json(lines)
    if isinstance(value, dict):
        value = value.get("gpu_data", [value] if "gpu" in value else None)
    if isinstance(value, list):
        cards = [entry for entry in value if isinstance(entry, dict) and "gpu" in entry]
        return cards if cards or not value else None
    table = read_csv(lines, _CSV_FIELDS)
    if table and {"gpu", "gpu_id"} & set(table[0]):
        return [dict(row.values) for row in table[1]]
    return _indented(lines) or None


def _indented(lines: list[str]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    lead = 0
    inside: list[str] = []
    for line in [*lines, "GPU: 0"]:
        start = _GPU_LINE.fullmatch(line)
        if start is None:
            inside.append(line[lead:])
            continue
        if entries:
            entries[-1].update(indented(inside))
        lead, inside = len(start[1]), []
        entries.append({"gpu": int(start[2])})
    return entries[:-1]


_NAMES = ("market_name", "product_name", "name")
_DRIVERS = ("driver.version", "driver.driver_version", "driver_version")


def _chip(entry: dict[str, Any], place: int) -> Chip:
    index = clean_number(entry.get("gpu", entry.get("gpu_id")))
    kept = {
        "gfx": ("target_graphics_version",),
        "device_id": ("asic.device_id",),
        "serial": ("asic_serial", "product_serial"),
        "oam_id": ("oam_id",),
        "uuid": ("uuid", "gpu_uuid"),
        "vbios": ("vbios.version", "ifwi.version"),
        "numa_node": ("numa.node",),
        "node": ("node_id",),
        "compute_partition": ("compute_partition", "accelerator_partition"),
        "memory_partition": ("memory_partition", "partition.memory"),
        "partition_id": ("partition_id",),
        "vram_type": ("vram.type", "vram.vram_type"),
    }
    extra = {name: value for name, paths in kept.items() if (value := _text(entry, *paths))}
    kind = str(extra.get("vram_type", "")).upper()
    return Chip(
        npu_id=place if index is None else index,
        chip_id=None,
        name=_text(entry, "asic.market_name", *_NAMES) or "",
        health=None,
        bus_id=_text(entry, "bus.bdf", "bdf", "gpu_bdf"),
        memory_kind="HBM" if kind.startswith("HBM") else "VRAM",
        memory_used_mb=_size(entry, "used_vram", "vram_used"),
        memory_total_mb=_size(entry, "total_vram", "vram.size", "vram_size", "vram_size_mb", "vram_total"),
        logic_id=clean_number(_text(entry, "hip_id", "enumeration.hip_id")),
        extra=extra,
    )


def _processes(entries: list[dict[str, Any]]) -> Iterator[Process]:
    for place, entry in enumerate(entries):
        index = clean_number(entry.get("gpu"))
        listed = entry.get("process_list", entry.get("process_info"))
        for item in listed if isinstance(listed, list) else []:
            info = item.get("process_info", item) if isinstance(item, dict) else None
            if isinstance(info, dict) and "pid" in info:
                name = _text(info, "name") or ""
                used = mib(_value(info, "memory_usage.vram_mem"), "B")
                yield Process(place if index is None else index, None, clean_number(info["pid"]), name, used)


def _value(entry: dict[str, Any], path: str) -> Any:
    """What is at a dotted path, or under a key at any depth where the path has no dot."""
    first, _, rest = path.partition(".")
    if first in entry:
        inner = entry[first]
        return inner if not rest else _value(inner, rest) if isinstance(inner, dict) else None
    if rest:
        return None
    inner_values = (_value(inner, path) for inner in entry.values() if isinstance(inner, dict))
    return next((value for value in inner_values if value is not None), None)


def _text(entry: dict[str, Any], *paths: str) -> str | None:
    for path in paths:
        value = _value(entry, path)
        if isinstance(value, (str, int, float)) and not absent(str(value)):
            return str(value)
    return None


def _size(entry: dict[str, Any], *paths: str) -> int | None:
    sizes = (mib(value, "MB") for path in paths if (value := _value(entry, path)) is not None)
    return next((size for size in sizes if size is not None), None)


def _tool(lines: list[str]) -> str | None:
    found = next((match for line in lines if (match := _TOOL.search(line))), None)
    return next((group for group in found.groups() if group), None) if found else None


def _first(pattern: re.Pattern[str], lines: list[str]) -> str | None:
    value = next((found[1] for line in lines if (found := pattern.search(line))), None)
    return None if absent(value) else value
