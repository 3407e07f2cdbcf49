"""`npu-smi info`: the device table and the process table, of every layout that tools of version 21 to 26 print."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from lmcache_fleet.accelerators import Accelerators, Chip, Process
from lmcache_fleet.parsers.ascend_text import clean_lines, decimal, number, unread_state
from lmcache_fleet.parsers.npu_smi_columns import Header, cell_of, names, read_header, read_pair, read_values
from lmcache_fleet.parsers.npu_smi_frame import Row, read_rows

_VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version\s*:\s*(\S+)", re.IGNORECASE)
_IDLE = re.compile(r"no running process(?:es)?(?: found)?(?: in NPU\s*(\d+))?", re.IGNORECASE)
_BUS = re.compile(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_HEALTH_WORD = re.compile(r"[A-Za-z][A-Za-z ]*")
_ABSENT = {"", "NA", "N/A", "-"}
_MEMORY_FACTOR = {"(kb)": 1 / 1024, "(mb)": 1, "(gb)": 1024}

# What a fragment without a header is read by: the titles that all layouts share. Whether the number after the chip is
# the logical or the physical one can't be told without the header, so it has no title here.
_FRAGMENT_FIRST = {
    3: read_header((" NPU Name", " Health", " Power(W) Temp(C) Hugepages-Usage(page)")),
    4: read_header((" NPU ID", " Name", " Health", " Power(W) Temp(C) Hugepages-Usage(page)")),
}
_FRAGMENT_SECOND = {
    (count, pairs): read_header((*left, " Bus-Id", " AICore(%) Memory-Usage(MB)" + " HBM-Usage(MB)" * (pairs - 1)))
    for count, left in ((3, (" Chip number",)), (4, ("", "")))
    for pairs in (1, 2)
}
_FRAGMENT_PROCESS = {
    count: read_header(
        (" NPU Chip", " Process id", " Process name", " Process memory(MB)", " Process id in container")[:count]
    )
    for count in (4, 5)
}


@dataclass(slots=True)
class _Snapshot:
    """One answer of the tool, while it is read."""

    tool_version: str | None = None
    driver_version: str | None = None
    first: Header | None = None
    second: Header | None = None
    process: Header | None = None
    framed: bool = False
    strange: str = ""
    broken: str = ""
    elided: str = ""
    pending: tuple[dict[str, str], str] | None = None
    chips: list[Chip] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    process_table: bool = False


def parse_info(text: str) -> Accelerators:
    """Read the output of `npu-smi info`.

    Args:
        text: standard output and error, as they came.

    Returns:
        The chips in the order printed. `state` is `ok` only for a table that was read whole; otherwise the named
        error, `empty`, `unrecognized`, `unknown-header` (nothing is guessed), `no-devices` (a table without rows),
        `truncated` (a device without its second row, or half a row), `elided` (`...` in place of rows), or
        `header-missing` (a fragment, read by the columns that all layouts share).
    """
    lines = clean_lines(text)
    snapshots = [_Snapshot()]
    rows = read_rows(lines)
    tables = [row for row in rows if row.kind == "cells"]
    cut = tables[-1] if tables and rows[-1] is tables[-1] and not rows[-1].closed else None
    for row in rows:
        if row is cut and any(other.closed for other in tables):
            snapshots[-1].broken = snapshots[-1].broken or row.text
        else:
            _take(snapshots, row)
    answers = [_answer(snapshot, lines) for snapshot in snapshots]
    # A log of several calls ends with the newest; a newest one that was cut is worse than a whole one before it.
    for good in (lambda answer: answer.state == "ok", lambda answer: bool(answer.chips)):
        for answer in reversed(answers):
            if good(answer):
                return answer
    return answers[-1]


def _take(snapshots: list[_Snapshot], row: Row) -> None:
    """Account for one row, in the last snapshot or in a new one."""
    snapshot = snapshots[-1]
    idle = _IDLE.search(row.text)
    version = _VERSION.search(row.text) if row.kind == "cells" else None
    if row.kind == "double-rule":
        snapshot.framed = True
    elif row.kind == "elision":
        snapshot.elided = snapshot.elided or row.text.strip()
    elif idle:
        _note_idle(snapshot, idle)
    elif version:
        if snapshot.chips or snapshot.pending or snapshot.first:
            snapshot = _Snapshot()
            snapshots.append(snapshot)
        snapshot.tool_version, snapshot.driver_version = version[1], version[2].rstrip("|")
    elif row.kind == "cells":
        _take_cells(snapshots, row)


def _take_cells(snapshots: list[_Snapshot], row: Row) -> None:
    snapshot = snapshots[-1]
    header = read_header(row.cells)
    titles = names(header)
    if "process id" in titles and titles & {"npu", "npu id"}:
        snapshot.process, snapshot.process_table = header, True
    elif {"name", "health"} <= titles and titles & {"npu", "npu id"}:
        if snapshot.process_table:
            # A device table after a process table is the tool's next answer.
            snapshots.append(_Snapshot(first=header))
        else:
            snapshot.first = header
    elif "bus-id" in titles and any(title.takes_pair for cell in header for title in cell):
        snapshot.second = header
    elif snapshot.process or _is_process(row.cells):
        _take_process(snapshot, row)
    elif not snapshot.framed and not _is_device(snapshot, row.cells):
        # Above the first double rule stand titles only: one that isn't known means a layout that isn't known. A line of
        # a log that has a bar in it is no title.
        snapshot.strange = snapshot.strange or (row.text.strip(" |") if row.closed else "")
    elif snapshot.strange and not (snapshot.first and snapshot.second):
        return
    elif not _take_device(snapshots, row):
        snapshot.broken = snapshot.broken or row.text


def _note_idle(snapshot: _Snapshot, found: re.Match[str]) -> None:
    snapshot.process_table = True
    npu = number(found[1])
    if npu is not None and npu not in snapshot.idle:
        snapshot.idle.append(npu)


# Devices


def _headers(snapshot: _Snapshot, cells: tuple[str, ...]) -> tuple[Header, Header] | None:
    """The headers of both rows; None when the row has another number of cells than they."""
    if snapshot.first and snapshot.second:
        return (snapshot.first, snapshot.second) if len(cells) == len(snapshot.second) else None
    second = _FRAGMENT_SECOND.get((len(cells), min(2, max(1, cells[-1].count("/")))))
    return (_FRAGMENT_FIRST[len(cells)], second) if second else None


def _middle(headers: tuple[Header, Header], cells: tuple[str, ...]) -> str:
    """The cell that holds the health in a device's first row and the bus id in its second."""
    index = cell_of(headers[1], "bus-id")
    return cells[index].strip() if index is not None and index < len(cells) else ""


def _is_second(snapshot: _Snapshot, headers: tuple[Header, Header], cells: tuple[str, ...]) -> bool:
    middle = _middle(headers, cells)
    if _BUS.fullmatch(middle):
        return True
    if middle.upper() not in _ABSENT:
        return not _HEALTH_WORD.fullmatch(middle)
    # A device without a PCI address, or one whose health isn't told: which of the two is due decides.
    return snapshot.pending is not None


def _is_device(snapshot: _Snapshot, cells: tuple[str, ...]) -> bool:
    """Whether a row above every double rule is a device's all the same: a fragment of a table."""
    headers = _headers(snapshot, cells)
    if headers is None:
        return False
    middle = _middle(headers, cells)
    if snapshot.pending or _BUS.fullmatch(middle):
        return True
    words = cells[0].split()
    return bool(words) and number(words[0]) is not None and bool(middle)


def _take_device(snapshots: list[_Snapshot], row: Row) -> bool:
    """Account for a device's row; False when it can't be read."""
    snapshot = snapshots[-1]
    cells = row.cells
    headers = _headers(snapshot, cells)
    if headers is None and not row.closed:
        # Something was written behind the table's edge.
        cells = cells[:-1]
        headers = _headers(snapshot, cells) if cells else None
    if headers is None:
        return False
    if not _is_second(snapshot, headers, cells):
        unpaired = snapshot.pending
        values = read_values(headers[0], cells)
        snapshot.pending = (values, row.text) if _npu(values) is not None else None
        return unpaired is None and snapshot.pending is not None
    pending, snapshot.pending = snapshot.pending, None
    chip = _chip(pending[0], read_values(headers[1], cells)) if pending else None
    if chip is None or chip.name.lower() == "mcu":
        return chip is not None
    if _key(chip) in {_key(known) for known in snapshot.chips}:
        # The same device again: a second answer of the tool without a version line between.
        snapshot = _Snapshot(
            snapshot.tool_version, snapshot.driver_version, snapshot.first, snapshot.second, framed=True
        )
        snapshots.append(snapshot)
    snapshot.chips.append(chip)
    return True


def _key(chip: Chip) -> tuple[Any, ...]:
    return chip.npu_id, chip.chip_id, chip.bus_id, chip.logic_id, chip.extra.get("phy_id")


def _npu(values: dict[str, str]) -> int | None:
    return number(values.get("npu", values.get("npu id")))


def _chip(first: dict[str, str], second: dict[str, str]) -> Chip | None:
    """One device of its two rows; None when the second row lacks its memory."""
    npu = _npu(first)
    memories = {kind: _memory(second, kind) for kind in ("hbm", "memory", "ddr")}
    # Tables with a column for each kind name the kind a device doesn't have with 0 / 0. A kind is taken by its total.
    kind = next((kind for kind, (_, total) in memories.items() if total), None) or next(
        (kind for kind, (_, total) in memories.items() if total is not None), None
    )
    if npu is None or kind is None:
        return None
    used, total = memories[kind]
    bus = second.get("bus-id", "")
    extra: dict[str, Any] = {
        "power_w": decimal(first.get("power(w)")),
        "temperature_c": decimal(first.get("temp(c)")),
        "utilization_percent": number(second.get("aicore(%)", second.get("npu util(%)"))),
    }
    pages = read_pair(first.get("hugepages-usage(page)"))
    if pages[1] is not None:
        extra["hugepages"] = pages
    if kind == "hbm" and memories["memory"][1]:
        extra["ddr_mb"] = memories["memory"]
    if "phy-id" in second:
        extra["phy_id"] = number(second["phy-id"])
    health = first.get("health", "")
    return Chip(
        npu_id=npu,
        chip_id=number(second.get("chip")),
        name=first.get("name", ""),
        health=None if health.upper() in _ABSENT else health,
        bus_id=None if bus.upper() in _ABSENT else bus,
        memory_kind="HBM" if kind == "hbm" else "DDR",
        memory_used_mb=used,
        memory_total_mb=total,
        logic_id=number(second.get("device")),
        extra=extra,
    )


def _memory(values: dict[str, str], kind: str) -> tuple[int | None, int | None]:
    """Used and total MB of a kind, whatever unit its title has."""
    for title, text in values.items():
        if title.startswith(f"{kind}-usage"):
            factor = _MEMORY_FACTOR.get(title.removeprefix(f"{kind}-usage"), 1)
            used, total = read_pair(text)
            return (None if used is None else int(used * factor)), (None if total is None else int(total * factor))
    return None, None


# Processes


def _is_process(cells: tuple[str, ...]) -> bool:
    """Whether a row is a process' although no process header came before it."""
    words = cells[0].split()
    return (
        len(cells) in _FRAGMENT_PROCESS
        and 0 < len(words) <= 2
        and all(number(word) is not None for word in words)
        and number(cells[1].strip()) is not None
        and number(cells[3].strip()) is not None
    )


def _take_process(snapshot: _Snapshot, row: Row) -> None:
    header = snapshot.process or _FRAGMENT_PROCESS[len(row.cells)]
    cells = row.cells
    name_at = cell_of(header, "process name")
    extra = len(cells) - len(header)
    if extra > 0 and name_at is not None:
        # A bar inside the process' name.
        cells = (*cells[:name_at], "|".join(cells[name_at : name_at + extra + 1]), *cells[name_at + extra + 1 :])
    values = read_values(header, cells)
    npu = _npu(values)
    pid = values.get("process id", "")
    if npu is None or len(cells) != len(header) or (number(pid) is None and pid.upper() not in _ABSENT):
        snapshot.broken = snapshot.broken or row.text
        return
    snapshot.process_table = True
    name = cells[name_at].strip() if name_at is not None else ""
    snapshot.processes.append(
        Process(
            npu_id=npu,
            chip_id=number(values.get("chip")),
            pid=number(pid),
            name=name,
            used_mb=number(values.get("process memory(mb)")),
            container_pid=number(values.get("process id in container")),
        )
    )


# The answer


def _answer(snapshot: _Snapshot, lines: list[str]) -> Accelerators:
    state, message = _state(snapshot, lines)
    known = {"process_table": snapshot.process_table, "idle_npus": snapshot.idle}
    return Accelerators(
        vendor="ascend",
        state=state,
        message=message[:500],
        tool_version=snapshot.tool_version,
        driver_version=snapshot.driver_version,
        chips=tuple(snapshot.chips),
        processes=tuple(snapshot.processes),
        extra=known if snapshot.chips or snapshot.process_table else {},
    )


def _state(snapshot: _Snapshot, lines: list[str]) -> tuple[str, str]:
    unpaired = snapshot.pending[1] if snapshot.pending else ""
    headed = snapshot.first is not None and snapshot.second is not None
    if snapshot.chips:
        if unpaired or snapshot.broken:
            return "truncated", unpaired or snapshot.broken
        if snapshot.elided:
            return "elided", snapshot.elided
        return ("ok", "") if headed else ("header-missing", "the table's header is not in the output")
    state, message = unread_state(lines)
    if state not in {"unrecognized", "empty"}:
        return state, message
    if unpaired or (headed and snapshot.broken):
        return "truncated", unpaired or snapshot.broken
    if not headed and (snapshot.strange or (snapshot.framed and snapshot.broken)):
        return "unknown-header", snapshot.strange or snapshot.broken
    if snapshot.first or snapshot.tool_version:
        whole = headed and snapshot.framed
        return ("no-devices", "the table has no device rows") if whole else ("truncated", lines[-1] or "no device rows")
    return state, message
