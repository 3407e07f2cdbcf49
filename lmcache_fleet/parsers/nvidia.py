"""What `nvidia-smi` prints: the table, `-L`, `--query-gpu`, `--query-compute-apps`, `--version`.

Layouts from driver 3xx (79 columns, no CUDA version) to 6xx (KMD and UMD versions), with and without MIG, Linux and
Windows. Columns are found by their titles. Sources: NVIDIA's nvidia-smi manual page and outputs of real hosts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lmcache_fleet.accelerators import Accelerators, Chip, Process
from lmcache_fleet.parsers.smi_csv import Record, read_csv
from lmcache_fleet.parsers.smi_table import Frame, Row, Table, read_frame
from lmcache_fleet.parsers.text import absent, clean_lines, error_table, known_error, mib, number, unread

VENDOR = "cuda"
#: A process whose card the answer names by uuid only.
NO_CARD = -1

ERRORS = error_table(
    ("driver-library-mismatch", r"driver/library version mismatch|library version mismatch"),
    ("driver-not-loaded", r"communicate with the nvidia driver|nvml: driver not loaded|driver is not running"),
    ("library-missing", r"couldn.{1,3}t find libnvidia-ml|nvml: .*(?:library not found|shared library)"),
    ("device-lost", r"gpu is lost|fallen off the bus|unable to determine the device handle for gpu"),
    ("reset-required", r"gpu requires reset"),
    ("device-blocked", r"gpu access blocked by the operating system"),
    ("permission-denied", r"nvml: insufficient permissions"),
    ("nvml-failed", r"failed to initialize nvml|nvml: "),
    ("no-devices", r"no devices (?:were )?found"),
)
# What a table may be followed by, and that makes the list of cards a partial one.
_LOSSES = tuple(item for item in ERRORS if item[0] in {"device-lost", "reset-required"})

_TOOL = re.compile(r"NVIDIA-SMI\s+(\d\S*)")
_DRIVER = re.compile(r"(?:Driver|KMD) Version\s*:\s*([^\s|]+)", re.IGNORECASE)
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*([^\s|]+)", re.IGNORECASE)
_BUS = re.compile(r"\b(?:[0-9A-F]{4,8}:)?[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F]\b", re.IGNORECASE)
_CARD = re.compile(r"(\d{1,4})\.?\s+(.*)")
# The word behind the name: persistence mode, or the driver model on Windows.
_MODE = re.compile(r"(.*?)\s+(On|Off|N/A|WDDM|TCC|MCDM|ERR!|Enabled|Disabled)|(.*?)\s{2,}(\S+)")
_PAIR = re.compile(r"(\d{1,15}\s*[KMGT]?i?B?)\s*/\s*(\d{1,15}\s*[KMGT]i?B)", re.IGNORECASE)
_PERCENT = re.compile(r"(\d{1,3})\s*%")
_POWER = re.compile(r"(\d{1,6})W?\s*/\s*(\d{1,6})W")
_TEMPERATURE = re.compile(r"\b(\d{1,3})C\b")
_MEMORY = r"\d{1,12}\s*[KMGT]i?B|N/A|\[?Not Available\]?|\[?Insufficient Permissions\]?|ERR!"
_LISTED = re.compile(r"\bGPU (\d{1,4}): (.+?)\s*\((?:UUID|S/N): ([^)]*)\)?$")
_LISTED_START = re.compile(r"\bGPU (\d{1,4}): \S")
_LISTED_MIG = re.compile(r"\bMIG (\S+)\s+Device\s+(\d{1,4}): \(UUID: ([^)]*)\)?$")


def parse_table(text: str) -> Accelerators:
    """Read the table that `nvidia-smi` prints without arguments.

    The list of cards counts as whole when the section after it has begun: the tool always prints one for processes.
    """
    lines = clean_lines(text)
    frame = read_frame(lines)
    table = next((table for table in frame.tables if _is_cards(table)), None)
    tool, driver, cuda = (_first(pattern, lines) for pattern in (_TOOL, _DRIVER, _CUDA))
    extra: dict[str, Any] = {} if cuda is None else {"cuda_version": cuda}
    if table is None:
        state, message = unread(lines, ERRORS)
        if state == "unrecognized" and tool:
            state, message = _headless(frame)
        return Accelerators(VENDOR, state, message, tool, driver, extra=extra)
    listed = next((table for table in frame.tables if table.find(r"\bPID\b")), None)
    chips, broken = _cards(table)
    migs = _mig_devices(frame)
    for chip in chips:
        if chip.extra.get("mig_mode") == "Enabled" or any(mig["gpu"] == chip.npu_id for mig in migs):
            chip.extra["mig_devices"] = [
                {key: value for key, value in mig.items() if key != "gpu"} for mig in migs if mig["gpu"] == chip.npu_id
            ]
    if migs or any(chip.extra.get("mig_mode") == "Enabled" for chip in chips):
        extra["mig_devices"] = len(migs)
    processes, extra["processes_state"] = _processes(listed) if listed else ((), "not-printed")
    state, message = _table_state(lines, frame, chips, broken, listed is not None)
    return Accelerators(VENDOR, state, message, tool, driver, tuple(chips), processes, extra)


def _is_cards(table: Table) -> bool:
    return table.find(r"^(?:GPU|Nb\.) +(?:Fan +)?Name\b") is not None


def _headless(frame: Frame) -> tuple[str, str]:
    """A banner of the tool without a table of cards that is known."""
    if frame.tables:
        return "unknown-header", " ".join(frame.tables[0].header[0].inner.split())
    return "truncated", "the output ends before the first card"


def _table_state(lines: list[str], frame: Frame, chips: list[Chip], broken: str | None, ended: bool) -> tuple[str, str]:
    lost = known_error(lines, _LOSSES)
    if lost:
        return lost
    if frame.elided:
        return "elided", "rows are left out"
    if broken is not None:
        return "truncated", broken
    if not ended:
        return "truncated", "the output ends before the processes"
    if not chips:
        state, message = unread(lines, ERRORS)
        return ("no-devices", "the table has no rows") if state == "unrecognized" else (state, message)
    return "ok", ""


def _cards(table: Table) -> tuple[list[Chip], str | None]:
    """The cards, and the first row that is not whole."""
    chips: list[Chip] = []
    broken: str | None = None
    width = len(table.header[0].cells)
    for group in table.groups():
        if not _CARD.match(group[0].cell(0)):
            # A title such as `MIG devices:`, or the tool's `No devices were found`.
            if len(group[0].cells) == width:
                broken = broken or group[0].inner.strip()
            continue
        bad = next((row for row in group if not row.closed or len(row.cells) != width), None)
        if bad is None and len(group) == len(table.header):
            chips.append(_card(table, group))
            continue
        broken = broken or (bad or group[-1]).inner.strip()
        if group[0].closed and len(group[0].cells) == width:
            chips.append(_card(table, tuple(row for row in group if row.closed and len(row.cells) == width)))
    return chips, broken


def _card(table: Table, group: tuple[Row, ...]) -> Chip:
    def cell(title: str) -> str:
        place = table.find(title)
        return group[place[0]].cell(place[1]) if place and place[0] < len(group) else ""

    head = _CARD.match(cell(r"\bName\b"))
    index, rest = (head[1], head[2]) if head else ("", "")
    mode = _MODE.fullmatch(rest) if table.find(r"Persistence|Driver-Model|\b(?:TCC|WDDM)\b") else None
    name = ((mode[1] if mode[1] is not None else mode[3]) if mode else rest).strip()
    bus = _BUS.search(cell(r"Bus-?\s?Id"))
    used, total = read_pair(cell(r"Memory[- ]Usage"))
    first = cell(r"\bFan\b")
    found = {
        "util_percent": _PERCENT.search(cell(r"GPU[- ]Util")),
        "temperature_c": _TEMPERATURE.search(first),
        "power_w": _POWER.search(first),
    }
    extra: dict[str, Any] = {key: int(match[1]) for key, match in found.items() if match}
    power = found["power_w"]
    if power:
        extra["power_limit_w"] = int(power[2])
    mig = cell(r"MIG M\.")
    if not absent(mig):
        extra["mig_mode"] = mig
    behind = (mode[2] or mode[4]) if mode else None
    if not absent(behind):
        extra["driver_model" if table.find(r"Driver-Model|\b(?:TCC|WDDM)\b") else "persistence"] = behind
    if name.endswith("..."):
        extra["name_cut"] = True
    failed = any("ERR!" in row.inner or "Unknown Error" in row.inner for row in group)
    return Chip(
        npu_id=number(index) or 0,
        chip_id=None,
        name=name,
        health="ERR!" if failed else None,
        bus_id=bus[0] if bus else None,
        memory_kind="VRAM",
        memory_used_mb=used,
        memory_total_mb=total,
        logic_id=number(index),
        extra=extra,
    )


def read_pair(cell: str) -> tuple[int | None, int | None]:
    """Both sides of `used / total`, in MiB."""
    found = _PAIR.search(cell)
    return (mib(found[1]), mib(found[2])) if found else (None, None)


def _mig_devices(frame: Frame) -> list[dict[str, Any]]:
    table = next((table for table in frame.tables if table.find(r"\bGPU +GI +CI +MIG\b")), None)
    devices = []
    for row in table.rows if table else ():
        ids = [number(word) for word in row.cell(0).split()]
        if len(ids) == 4 and None not in ids:
            used, total = read_pair(row.cell(1))
            keys = ("gpu", "gpu_instance", "compute_instance", "device")
            devices.append({**dict(zip(keys, ids, strict=True)), "memory_used_mb": used, "memory_total_mb": total})
    return devices


def _processes(table: Table) -> tuple[tuple[Process, ...], str]:
    """The processes, and whether the tool tells them: `ok`, `not-supported`, `truncated`."""
    instances = r"(?:\d+|N/A)\s+(?:\d+|N/A)\s+" if table.find(r"\bGI\b") else ""
    kind = r"(?:[A-Z](?:\+[A-Z])*|N/A)\s+" if table.find(r"\bType\b") else ""
    pattern = re.compile(rf"(\d{{1,4}})\s+{instances}(\d{{1,10}}|N/A|-)\s+{kind}(?:(.*?)\s+)??({_MEMORY})?")
    found: list[Process] = []
    state = "truncated"
    for block in table.blocks:
        for row in block.rows:
            match = pattern.fullmatch(row.inner.strip()) if row.closed else None
            if match:
                found.append(Process(int(match[1]), None, number(match[2]), match[3] or "", mib(match[4])))
            elif re.search(r"\bnot supported\b", row.inner, re.IGNORECASE):
                return (), "not-supported"
        if block.rule:
            state = "ok"
    return tuple(found), state


def parse_list(text: str) -> Accelerators:
    """Read `nvidia-smi -L`: cards with their uuid, MIG devices under them."""
    lines = clean_lines(text)
    chips: list[Chip] = []
    cut = ""
    for line in lines:
        card, mig = _LISTED.search(line), _LISTED_MIG.search(line)
        if card:
            uuid = None if absent(card[3]) else card[3]
            index = int(card[1])
            chips.append(Chip(index, None, card[2], None, None, "VRAM", None, None, index, {"uuid": uuid}))
        elif mig and chips:
            entry = {"profile": mig[1], "device": int(mig[2]), "uuid": mig[3]}
            chips[-1].extra.setdefault("mig_devices", []).append(entry)
        cut = line.strip() if (card or mig) and not line.endswith(")") else cut
        if not card and _LISTED_START.search(line) and not known_error([line], _LOSSES):
            cut = line.strip()
    migs = sum(len(chip.extra.get("mig_devices", ())) for chip in chips)
    state, message = known_error(lines, _LOSSES) or (("truncated", cut) if cut else ("ok", ""))
    if not chips and not cut:
        state, message = unread(lines, ERRORS)
    return Accelerators(VENDOR, state, message, chips=tuple(chips), extra={"mig_devices": migs} if migs else {})


_CARD_FIELDS = frozenset({"index", "name", "gpu_name", "uuid", "gpu_uuid", "memory.total", "memory.used",
                          "driver_version", "pci.bus_id", "gpu_bus_id", "compute_cap", "timestamp",
                          "count"})  # fmt: skip
_APP_FIELDS = frozenset({"pid", "process_name", "name", "used_gpu_memory", "used_memory"})
# Field → name in `extra`, for those that rules and reports ask for; the others are in `extra["fields"]`.
_KEPT = {
    "compute_cap": "compute_capability",
    "mig.mode.current": "mig_mode",
    "vbios_version": "vbios",
    "gpu_recovery_action": "recovery_action",
    "persistence_mode": "persistence",
    "ecc.mode.current": "ecc_mode",
    "serial": "serial",
    "driver_model.current": "driver_model",
}


def parse_query_gpu(text: str, vendor: str = VENDOR) -> Accelerators:
    """Read `nvidia-smi --query-gpu=… --format=csv` (with its header, units or not).

    Args:
        text: the output.
        vendor: `xpu` for the command of the same form that xpu-smi 2 has.
    """
    lines = clean_lines(text, data=True)
    answer = read_csv(lines, _CARD_FIELDS, free="name")
    if answer is None:
        state, message = unread(lines, ERRORS)
        if state == "unrecognized" and message.count(",") > 1:
            state, message = "unknown-header", "the answer has no line of field names"
        return Accelerators(vendor, state, message)
    fields, rows = answer
    chips = [_queried(row, place) for place, row in enumerate(rows)]
    lost = known_error(lines, _LOSSES)
    state, message = lost or ("ok", "")
    broken = next((row for row in rows if not row.whole), None)
    if lost is None and broken:
        state, message = "truncated", ", ".join(list(broken.values.values())[-2:])
    if not rows:
        state, message = known_error(lines, ERRORS) or ("no-devices", "no row under the field names")
    driver = next((version for row in rows if (version := row.get("driver_version"))), None)
    extra = {"columns": len(fields)}
    return Accelerators(vendor, state, message, None, driver, tuple(chips), extra=extra)


def _queried(row: Record, place: int) -> Chip:
    index = number(row.get("index"))
    extra: dict[str, Any] = {"uuid": row.get("uuid", "gpu_uuid")}
    extra |= {name: value for field, name in _KEPT.items() if (value := row.get(field))}
    shown = {field for field in row.values if field in _CARD_FIELDS or field in _KEPT}
    extra["fields"] = {field: value for field, value in row.values.items() if field not in shown and not absent(value)}
    bad = any(word in value for value in row.values.values() for word in ("Unknown Error", "GPU requires reset"))
    return Chip(
        npu_id=place if index is None else index,
        chip_id=None,
        name=row.get("name", "gpu_name") or "",
        health="ERR!" if bad else None,
        bus_id=row.get("pci.bus_id", "gpu_bus_id"),
        memory_kind="VRAM",
        memory_used_mb=mib(row.sized("memory.used")),
        memory_total_mb=mib(row.sized("memory.total")),
        logic_id=index,
        extra=extra,
    )


def parse_query_compute_apps(text: str) -> Accelerators:
    """Read `nvidia-smi --query-compute-apps=… --format=csv`: processes only, `ok` without any.

    The answer doesn't number the cards: `npu_id` is -1, and `extra["cards"]` has the uuid or address for each process.
    """
    lines = clean_lines(text, data=True)
    answer = read_csv(lines, _APP_FIELDS, free="process_name")
    if answer is None:
        return Accelerators(VENDOR, *unread(lines, ERRORS))
    _, rows = answer
    found = [
        Process(
            NO_CARD,
            None,
            number(row.get("pid")),
            row.get("process_name", "name") or "",
            mib(row.sized("used_gpu_memory", "used_memory")),
        )
        for row in rows
    ]
    cards = [row.get("gpu_uuid", "gpu_bus_id", "gpu_serial") for row in rows]
    broken = next((row for row in rows if not row.whole), None)
    state = ("truncated", ", ".join(broken.values.values())) if broken else ("ok", "")
    return Accelerators(VENDOR, *state, processes=tuple(found), extra={"cards": cards})


_VERSION_LINE = re.compile(r"\b(NVIDIA-SMI|NVML|DRIVER|KMD|CUDA(?: UMD)?) version\s*:\s*(\S+)", re.IGNORECASE)


def parse_version(text: str) -> dict[str, Any]:
    """Read `nvidia-smi --version`: `state`, `message` and the versions of tool, NVML, driver and CUDA."""
    lines = clean_lines(text)
    found = {match[1].lower(): match[2] for line in lines for match in _VERSION_LINE.finditer(line)}
    state, message = ("ok", "") if found else unread(lines, ERRORS)
    versions = {
        "tool_version": found.get("nvidia-smi"),
        "nvml_version": found.get("nvml"),
        "driver_version": found.get("driver") or found.get("kmd"),
        "cuda_version": found.get("cuda") or found.get("cuda umd"),
    }
    return {
        "state": state,
        "message": message,
        **{key: None if absent(value) else value for key, value in versions.items()},
    }


def _first(pattern: re.Pattern[str], lines: list[str]) -> str | None:
    value = next((found[1] for line in lines if (found := pattern.search(line))), None)
    return None if absent(value) else value


PARSERS: dict[str, Callable[[str], Any]] = {
    "nvidia-smi": lambda text: parse_table(text).as_json(),
    "nvidia-smi-list": lambda text: parse_list(text).as_json(),
    "nvidia-smi-query-gpu": lambda text: parse_query_gpu(text).as_json(),
    "nvidia-smi-query-compute-apps": lambda text: parse_query_compute_apps(text).as_json(),
    "nvidia-smi-version": parse_version,
}
