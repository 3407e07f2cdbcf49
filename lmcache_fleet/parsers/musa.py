"""What `mthreads-gmi` prints: the table of 1.x and 2.x, `-q` as text or JSON, `-L`.

Its rows have inner bars only, and its rules corners only under a header and between cards. Sources: outputs in public
guides for the S80, S4000 and S5000, and ramalama's reader of `-q -j`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lmcache_fleet.accelerators import Accelerators, Chip, Process
from lmcache_fleet.parsers import nvidia
from lmcache_fleet.parsers.text import (
    absent,
    clean_lines,
    clean_number,
    error_table,
    find_json,
    indented,
    mib,
    number,
    unprefixed,
    unread,
)

VENDOR = "musa"

ERRORS = error_table(
    ("driver-library-mismatch", r"driver.*(?:library|mtml).*(?:mismatch|incompatible)|version mismatch"),
    (
        "driver-not-loaded",
        r"mtgpu.*(?:not loaded|no such)|communicate with the .*driver|(?:failed|unable) to init\w* (?:driver|mtml)"
        r"|mtml\w* init\w* failed|mtmlLibraryInit\w*.*(?:fail|error)",
    ),
)

_BANNER = re.compile(r"mthreads-gmi\s*:\s*(\d\S*)(?:.*?Driver Version\s*:\s*(\S+))?", re.IGNORECASE)
_RULE = re.compile(r"\+?-{20,}\+?$")
_CARD = re.compile(r"(\d{1,4})\s+(\S.*)")
_BUS = re.compile(r"\b[0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F]\b", re.IGNORECASE)
_MEMORY = re.compile(r"(\d{1,12}\s*[KMGT]i?B)\s*\(\s*(\d{1,12}\s*[KMGT]i?B)\s*\)", re.IGNORECASE)
_PERCENT = re.compile(r"(\d{1,3})\s*%")
_TEMPERATURE = re.compile(r"\b(\d{1,3})C\b")
_PERF = re.compile(r"\bP\d{1,2}\b")
_PROCESS = re.compile(r"(\d{1,4})\s+(\d{1,10}|N/A|-)\s+(?:(.*?)\s+)??(\d{1,12}\s*[KMGT]i?B|N/A|-)", re.IGNORECASE)
_NONE_RUNNING = re.compile(r"no running process", re.IGNORECASE)


@dataclass
class _Body:
    """The two tables of the output.

    Args:
        header: cells of the header's lines.
        groups: rows of each card, as cells.
        ended: whether the rule below the last card was seen.
        processes: lines of the second table; None when it didn't begin.
        processes_ended: whether the rule below them was seen.
    """

    header: list[list[str]]
    groups: list[list[list[str]]]
    ended: bool = False
    processes: list[str] | None = None
    processes_ended: bool = False


def parse_table(text: str) -> Accelerators:
    """Read the table that `mthreads-gmi` prints without arguments."""
    lines = unprefixed(clean_lines(text), _RULE)
    banner = next((found for line in lines if (found := _BANNER.search(line))), None)
    tool, driver = (banner[1], banner[2]) if banner else (None, None)
    driver = None if absent(driver) else driver
    body = _body(lines)
    if not body.header:
        state, message = unread(lines, ERRORS)
        if state == "unrecognized" and driver:
            state, message = "truncated", "the output ends before the first card"
        return Accelerators(VENDOR, state, message, tool, driver)
    chips: list[Chip] = []
    broken: str | None = None
    for group in body.groups:
        if len(group) < len(body.header) or len(group[0]) < len(body.header[0]):
            broken = " ".join(" ".join(group[-1]).split())
        chips.append(_card(body.header, group))
    processes, processes_state = _processes(body)
    if broken is not None or not (body.ended or body.processes is not None):
        state, message = "truncated", broken or "the output ends between two cards"
    elif not chips:
        state, message = unread(lines, ERRORS)
        state, message = ("no-devices", "the table has no rows") if state == "unrecognized" else (state, message)
    elif any(not chip.name for chip in chips):
        state, message = "unknown-header", " ".join(" ".join(body.header[0]).split())
    else:
        state, message = "ok", ""
    extra = {"processes_state": processes_state}
    return Accelerators(VENDOR, state, message, tool, driver, tuple(chips), tuple(processes), extra)


def _body(lines: list[str]) -> _Body:
    body = _Body([], [])
    where = "banner"
    for line in lines:
        rule = _RULE.fullmatch(line.strip())
        if body.processes is not None:
            if rule:
                body.processes_ended = body.processes_ended or (rule[0][0] == "-" and bool(body.processes))
            elif line.strip():
                body.processes.append(line.strip())
        elif re.match(r"\s*Processes\s*:", line):
            body.processes = []
        elif where == "banner" and re.match(r"\s*(?:ID|Index|GPU)\s+Name\b.*\|", line):
            where = "header"
            body.header.append(line.split("|"))
        elif where == "header":
            if rule:
                where = "cards"
            elif "|" in line:
                body.header.append(line.split("|"))
        elif where == "cards":
            if rule:
                body.ended = body.ended or rule[0][0] == "-"
            elif "|" in line and not body.ended:
                if _CARD.match(line.split("|")[0].strip()):
                    body.groups.append([])
                if body.groups:
                    body.groups[-1].append(line.split("|"))
    return body


def _card(header: list[list[str]], group: list[list[str]]) -> Chip:
    def cell(title: str) -> str:
        for line, titles in enumerate(header):
            for index, found in enumerate(titles):
                if title in found.lower() and line < len(group):
                    # The third line has fewer bars than the others, and its header sometimes one more: from the right.
                    row = group[line]
                    spot = index if len(row) == len(titles) else len(row) - (len(titles) - index)
                    return row[spot].strip() if 0 <= spot < len(row) else ""
        return ""

    head = _CARD.match(cell("name"))
    index = number(head[1]) if head else None
    bus, memory = _BUS.search(cell("pcie")), _MEMORY.search(cell("mem"))
    found = {"util_percent": _PERCENT.search(cell("%gpu")), "temperature_c": _TEMPERATURE.search(cell("temp"))}
    extra: dict[str, Any] = {name: int(match[1]) for name, match in found.items() if match}
    perf, lanes, ecc = _PERF.search(cell("device type")), cell("pcie lane width"), cell("ecc mode")
    kind = cell("device type").split()
    extra |= {
        key: value
        for key, value in (
            ("device_type", kind[0] if kind else None),
            ("perf", perf[0] if perf else None),
            ("pcie_lanes", lanes),
            ("ecc_mode", ecc),
        )
        if value and not absent(value)
    }
    used, total = (mib(memory[1]), mib(memory[2])) if memory else (None, None)
    if used is not None and total is not None and used > total:
        # Seen where the IOMMU is off: the size is what of the memory can be reached.
        extra["used_over_total"] = True
    return Chip(
        npu_id=index or 0,
        chip_id=None,
        name=head[2].strip() if head else "",
        health=None,
        bus_id=bus[0] if bus else None,
        memory_kind="VRAM",
        memory_used_mb=used,
        memory_total_mb=total,
        logic_id=index,
        extra=extra,
    )


def _processes(body: _Body) -> tuple[list[Process], str]:
    found = []
    state = "not-printed" if body.processes is None else "ok" if body.processes_ended else "truncated"
    for line in body.processes or ():
        row = _PROCESS.fullmatch(line)
        if row:
            found.append(Process(int(row[1]), None, number(row[2]), row[3] or "", mib(row[4])))
        elif _NONE_RUNNING.search(line):
            state = "ok"
    return found, state


# The detailed answer

_GPU_LINE = re.compile(r"\s*GPU\s*#?(\d{1,4})?\b[^|]*?\s*([0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F])?\s*:?", re.I)


def parse_query(text: str) -> Accelerators:
    """Read `mthreads-gmi -q`, as text or with `-j` as JSON."""
    lines = clean_lines(text, data=True)
    value = find_json(lines)
    if isinstance(value, dict):
        listed = value.get("GPU", value.get("GPUs", value.get("gpu")))
        listed = [listed] if isinstance(listed, dict) else listed
        entries = [_lowered(entry) for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else None
        driver = value.get("Driver Version", value.get("driver_version"))
    else:
        entries, driver = _detailed([line[:2000] for line in lines])
    chips = tuple(_queried(entry, place) for place, entry in enumerate(entries or []))
    version = str(driver) if isinstance(driver, str) and not absent(driver) else None
    if chips:
        unnamed = any(not chip.name for chip in chips)
        state, message = ("truncated", "a card has no product name") if unnamed else ("ok", "")
    elif entries is not None and isinstance(value, dict):
        state, message = "no-devices", "the list of cards is empty"
    else:
        state, message = unread(lines, ERRORS)
    return Accelerators(VENDOR, state, message, None, version, chips)


def _lowered(value: dict[str, Any]) -> dict[str, Any]:
    """Keys as `indented` writes them."""
    return {
        re.sub(r"[\s\-]+", "_", str(key).strip().lower()): _lowered(inner) if isinstance(inner, dict) else inner
        for key, inner in list(value.items())[:1000]
    }


def _detailed(lines: list[str]) -> tuple[list[dict[str, Any]] | None, str | None]:
    driver = None
    entries: list[dict[str, Any]] = []
    inside: list[str] = []
    for line in [*lines, "GPU0 :"]:
        start = _GPU_LINE.fullmatch(line) if line.strip() else None
        if start is None or not (start[1] or start[2]):
            inside.append(line)
            found = re.search(r"\bDriver Version\s*:\s*(\S+)", line) if driver is None else None
            driver = found[1] if found else driver
            continue
        if entries:
            entries[-1] = {**indented(inside), **entries[-1]}
        inside = []
        entries.append({key: value for key, value in (("index", start[1]), ("pci_bus_id", start[2])) if value})
    cards = entries[:-1]
    return (cards or None), driver


def _queried(entry: dict[str, Any], place: int) -> Chip:
    def text(*keys: str) -> str | None:
        values = (entry.get(key) for key in keys)
        return next((str(value) for value in values if isinstance(value, (str, int)) and not absent(str(value))), None)

    def section(*keys: str) -> dict[str, Any]:
        return next((value for key in keys if isinstance(value := entry.get(key), dict)), {})

    memory, pci = section("fb_memory_usage", "memory_usage"), section("pci")
    index = clean_number(text("index", "gpu_index", "minor_number"))
    bus = text("pci_bus_id", "bus_id") or next(
        (value for key in ("bus_id", "pci_bus_id") if isinstance(value := pci.get(key), str)), None
    )
    keys = {"uuid": ("gpu_uuid", "uuid"), "serial": ("serial_number",), "firmware": ("mtbios_version", "mtbios")}
    return Chip(
        npu_id=place if index is None else index,
        chip_id=None,
        name=text("product_name", "name") or "",
        health=None,
        bus_id=bus,
        memory_kind="VRAM",
        memory_used_mb=mib(memory.get("used")),
        memory_total_mb=mib(memory.get("total")),
        logic_id=index,
        extra={name: value for name, paths in keys.items() if (value := text(*paths))},
    )


def parse_list(text: str) -> Accelerators:
    """Read `mthreads-gmi -L`, which has the form of `nvidia-smi -L`."""
    answer = nvidia.parse_list(text)
    if answer.state not in {"ok", "truncated"}:
        return Accelerators(VENDOR, *unread(clean_lines(text), ERRORS))
    return replace(answer, vendor=VENDOR)


PARSERS: dict[str, Callable[[str], Any]] = {
    "mthreads-gmi": lambda text: parse_table(text).as_json(),
    "mthreads-gmi-query": lambda text: parse_query(text).as_json(),
    "mthreads-gmi-list": lambda text: parse_list(text).as_json(),
}
