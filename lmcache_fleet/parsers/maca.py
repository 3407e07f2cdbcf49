"""What `mx-smi` prints: the table of 2.x in its three layouts, `-L`, `--show-memory`.

The layouts differ in where the number, the temperature and the persistence mode stand; all are read by their titles.
Sources: outputs of mx-smi 2.2.4, 2.2.8 and 2.2.9 in public guides (PaddleFleet, ms-swift) and in test suites.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lmcache_fleet.accelerators import Accelerators, Chip, Process
from lmcache_fleet.parsers.smi_table import Row, Table, read_frame
from lmcache_fleet.parsers.text import absent, clean_lines, error_table, known_error, mib, number, unread

VENDOR = "maca"

ERRORS = error_table(
    ("driver-library-mismatch", r"version mismatch|driver.*(?:library|mxsml).*incompatible"),
    (
        "driver-not-loaded",
        r"metax.*(?:not loaded|no such)|/dev/mxcd.*no such|mxsml\w* ?init\w* fail"
        r"|(?:failed|unable) to init\w* (?:mxsml|driver)",
    ),
    ("no-devices", r"no (?:metax )?(?:gpu|device)s? (?:was |were )?(?:found|detected)|attached gpus\s*:\s*0\b"),
)

_TOOL = re.compile(r"MX-SMI\s+(\d\S*)|mx-smi\s+version\s*:\s*(\d\S*)", re.IGNORECASE)
_DRIVER = re.compile(r"Kernel Mode Driver Version\s*:\s*([^\s|]+)", re.IGNORECASE)
_MACA = re.compile(r"MACA Version\s*:\s*([^\s|]+)", re.IGNORECASE)
_BIOS = re.compile(r"BIOS Version\s*:\s*([^\s|]+)", re.IGNORECASE)
_ATTACHED = re.compile(r"Attached GPUs\s*:\s*(\d{1,4})")
_BUS = re.compile(r"\b[0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F]\b", re.IGNORECASE)
_MEMORY = re.compile(r"(\d{1,12})\s*/\s*(\d{1,12}\s*[KMGT]i?B)", re.IGNORECASE)
_PERCENT = re.compile(r"(\d{1,3})\s*%")
_TEMPERATURE = re.compile(r"\b(\d{1,3})C\b")
_POWER = re.compile(r"(\d{1,5})\s*W\s*/\s*(\d{1,5})\s*W")
_NAMED = re.compile(r"(\d{1,4})\s+(\S.*)")
# What may stand behind the name or the number in the same cell.
_SWITCH = re.compile(r"(.*\S)\s+(On|Off|N/A|Enabled|Disabled|ERR!)")
_PROCESS = re.compile(r"(\d{1,4})\s+(\d{1,10})\s+(?:(.*?)\s+)??(\d{1,12}(?:\s*[KMGT]i?B)?|N/A)", re.IGNORECASE)


def parse_table(text: str) -> Accelerators:
    """Read the table that `mx-smi` prints without arguments."""
    lines = clean_lines(text)
    found = {"maca_version": _first(_MACA, lines), "bios_version": _first(_BIOS, lines)}
    extra: dict[str, Any] = {key: value for key, value in found.items() if value}
    tool, driver, attached = _tool(lines), _first(_DRIVER, lines), number(_first(_ATTACHED, lines))
    frame = read_frame(lines)
    table = next((table for table in frame.tables if table.find(r"\bName\b") and table.find(r"\bBus-?id\b")), None)
    if table is None:
        state, message = unread(lines, ERRORS)
        if state == "unrecognized" and (tool or attached is not None):
            state, message = ("unknown-header" if frame.tables else "truncated"), "no table of cards"
        return Accelerators(VENDOR, state, message, tool, driver, extra=extra)
    chips: list[Chip] = []
    broken: str | None = None
    width = len(table.header[0].cells)
    for group in table.groups():
        if len(group) == len(table.header) and all(row.closed and len(row.cells) == width for row in group):
            chips.append(_card(table, group))
        elif len(group[0].cells) > 1 or not group[0].closed:
            broken = broken or group[-1].inner.strip()
    listed = next((table for table in frame.tables if table.find(r"\bPID\b")), None)
    processes, extra["processes_state"] = _processes(listed) if listed else ((), "not-printed")
    state, message = "ok", ""
    if frame.elided:
        state, message = "elided", "rows are left out"
    elif broken is not None or (attached is not None and len(chips) < attached):
        state, message = "truncated", broken or f"{len(chips)} of {attached} cards are listed"
    elif attached is None and listed is None:
        state, message = "truncated", "the output ends before the processes"
    elif not chips:
        state, message = known_error(lines, ERRORS) or ("no-devices", "the table has no rows")
    return Accelerators(VENDOR, state, message, tool, driver, tuple(chips), processes, extra)


def _card(table: Table, group: tuple[Row, ...]) -> Chip:
    def cell(title: str) -> str:
        where = table.find(title)
        return group[where[0]].cell(where[1]) if where else ""

    extra: dict[str, Any] = {}
    head = _NAMED.fullmatch(cell(r"\bName\b"))
    name, index = (head[2], number(head[1])) if head else (cell(r"\bName\b"), None)
    switch = _SWITCH.fullmatch(name) if table.find(r"\bName\b.*\bPersist") else None
    if switch:
        name = switch[1]
    board = table.find(r"\bBoard\b")
    if board and index is not None:
        # The card's number stands in a cell of its own; the one before the name is the board's.
        extra["board"] = index
        index = number(cell(r"^GPU\b").split(" ")[0])
        switch = _SWITCH.fullmatch(cell(r"^GPU\b"))
    if switch:
        extra["persistence"] = switch[2]
    bus, memory = _BUS.search(cell(r"\bBus-?id\b")), _MEMORY.search(cell(r"\bMemory-Usage\b"))
    power, state = _POWER.search(cell(r"\bPwr:")), cell(r"\bGPU-State\b")
    found = {
        "util_percent": _PERCENT.search(cell(r"\bGPU-Util\b")),
        "temperature_c": _TEMPERATURE.search(cell(r"\bTemp\b")),
    }
    extra |= {key: int(match[1]) for key, match in found.items() if match}
    if power:
        extra |= {"power_w": int(power[1]), "power_limit_w": int(power[2])}
    sliced = cell(r"\bsGPU-M\b").split()
    if table.find(r"\bsGPU-M\b") and len(sliced) > 1:
        extra["sgpu_mode"] = sliced[-1]
    return Chip(
        npu_id=index or 0,
        chip_id=None,
        name=name.strip(),
        health=None if absent(state) else state,
        bus_id=bus[0] if bus else None,
        memory_kind="VRAM",
        memory_used_mb=mib(f"{memory[1]}{re.sub('[0-9 ]', '', memory[2])}") if memory else None,
        memory_total_mb=mib(memory[2]) if memory else None,
        logic_id=index,
        extra=extra,
    )


def _processes(table: Table) -> tuple[tuple[Process, ...], str]:
    found = []
    for row in table.rows:
        match = _PROCESS.fullmatch(row.inner.strip()) if row.closed else None
        if match:
            found.append(Process(int(match[1]), None, int(match[2]), match[3] or "", mib(match[4])))
    return tuple(found), "ok" if any(block.rule for block in table.blocks) else "truncated"


_LISTED = re.compile(
    r"\bGPU\s?#\s?(\d{1,4})\s+(\S.*?)\s+([0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F])\b\s*(\S[^(]*?)?\s*"
    r"(?:\(UUID: ([^)]*)\))?$",
    re.IGNORECASE,
)
_SIZE = re.compile(r"(?:^|\s)(vis_vram|vram) (total|used)\s*:\s*(\d{1,15}\s*[KMGT]i?B)", re.IGNORECASE)


def parse_cards(text: str) -> Accelerators:
    """Read `mx-smi -L` or `mx-smi --show-memory`: a line `GPU#n` a card, sizes under it."""
    lines = clean_lines(text)
    heads: list[re.Match[str]] = []
    sizes: list[dict[str, int | None]] = []
    for line in lines:
        head, size = _LISTED.search(line), _SIZE.search(line)
        if head:
            heads.append(head)
            sizes.append({})
        elif size and sizes:
            # `vram` is the card's own; `vis_vram`, what of it the processor sees, serves where only that is printed.
            key = size[2].lower()
            if size[1].lower() == "vram" or key not in sizes[-1]:
                sizes[-1][key] = mib(size[3])
    chips = tuple(_listed(head, size) for head, size in zip(heads, sizes, strict=True))
    attached = number(_first(_ATTACHED, lines))
    state, message = "ok", ""
    if not chips:
        state, message = unread(lines, ERRORS)
    elif attached is not None and len(chips) < attached:
        state, message = "truncated", f"{len(chips)} of {attached} cards are listed"
    return Accelerators(VENDOR, state, message, _tool(lines), None, chips)


def _listed(head: re.Match[str], size: dict[str, int | None]) -> Chip:
    index = int(head[1])
    extra = {"uuid": head[5]} if head[5] else {}
    return Chip(
        npu_id=index,
        chip_id=None,
        name=head[2],
        health=head[4] or None,
        bus_id=head[3],
        memory_kind="VRAM",
        memory_used_mb=size.get("used"),
        memory_total_mb=size.get("total"),
        logic_id=index,
        extra=extra,
    )


def _tool(lines: list[str]) -> str | None:
    found = next((match for line in lines if (match := _TOOL.search(line))), None)
    return (found[1] or found[2]) if found else None


def _first(pattern: re.Pattern[str], lines: list[str]) -> str | None:
    value = next((found[1] for line in lines if (found := pattern.search(line))), None)
    return None if absent(value) else value


PARSERS: dict[str, Callable[[str], Any]] = {
    "mx-smi": lambda text: parse_table(text).as_json(),
    "mx-smi-list": lambda text: parse_cards(text).as_json(),
    "mx-smi-memory": lambda text: parse_cards(text).as_json(),
}
