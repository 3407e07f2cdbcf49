"""`rocm-smi`: the concise table of every generation, `GPU[n] : key: value` sections, link matrices, JSON and CSV.

Sources: ROCm/rocm_smi_lib's change log and `rocm_smi.py`; outputs in public guides for MI200, MI300 and Radeon hosts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from lmcache_fleet.accelerators import Accelerators, Chip, Process
from lmcache_fleet.parsers.rocm_errors import ERRORS, VENDOR
from lmcache_fleet.parsers.smi_csv import read_csv
from lmcache_fleet.parsers.text import (
    absent,
    clean_lines,
    clean_number,
    find_json,
    known_error,
    mib,
    unprefixed,
    unread,
)

#: The card of a process whose card is not told.
NO_CARD = -1

_PAIR = re.compile(r"\bGPU\[(\d{1,4})\]\s*:\s*(\S.*)")
_CARD_KEY = re.compile(r"(?:card|gpu)\s*(\d{1,4})", re.IGNORECASE)
_SECTION = re.compile(r"={3,}\s*([^=]*[^=\s])\s*={3,}")
_RULE = re.compile(r"={10,}(?:$|[^=]+={3,}$)")
_DRIVER = re.compile(r"\bDriver version\s*:\s*(\S+)", re.IGNORECASE)
_CONCISE = re.compile(r"\b(?:GPU|Device)\s+(?:Node\b|\[|Temp\b|DID\b|\(DID)")
# A value with blanks in it: `0x73bf,   34495`, `N/A, N/A, 0`, `[0x74a1 : 0x00]`; a title: `Temp (DieEdge)`.
_VALUE = re.compile(r"\[[^\]]*\]|\S+,(?:\s+\S+,)*\s+\S+|\S+")
_TITLE = re.compile(r"\[[^\]]*\]|[^\s(]+(?: \([^)]*\))?|\([^)]*\)")
_MATRIX = re.compile(r"\s*(?:.*\s)?GPU(\d{1,4})\s+(\S.*)")
_MATRIX_HEAD = re.compile(r"(?:\s+GPU\d{1,4}){1,}\s*")
_MATRICES = {"weight": "weight", "hops": "hops", "link type": "link_type"}
_PID = re.compile(r"\s*(\d{1,10})\s+(\S.*?)\s+(\d{1,4}|UNKNOWN)\s+(\d{1,18}|UNKNOWN)\s+(\d{1,18}|UNKNOWN)\s+(\S+)\s*")
# Title of the concise table → name in `extra`.
_COLUMNS = {
    "node": "node",
    "ids": "ids",
    "temp": "temperature",
    "power": "power",
    "avgpwr": "power",
    "partitions": "partitions",
    "pwrcap": "power_cap",
    "vram%": "vram_percent",
    "gpu%": "util_percent",
    "perf": "perf",
    "[model : revision]": "model",
}
# Key of a section, in lower case → name in `extra`.
_KEYS = {
    "gfx version": "gfx",
    "guid": "guid",
    "node id": "node",
    "unique id": "unique_id",
    "serial number": "serial",
    "card model": "card_model",
    "card vendor": "card_vendor",
    "card sku": "card_sku",
    "device id": "device_id",
    "vbios version": "vbios",
    "gpu use (%)": "util_percent",
    "(topology) numa node": "numa_node",
    "(topology) numa affinity": "numa_affinity",
    "compute partition": "compute_partition",
    "memory partition": "memory_partition",
}
_CSV_FIELDS = frozenset({"device"})


@dataclass
class _Found:
    """What was found of each card."""

    pairs: dict[int, dict[str, str]] = field(default_factory=dict)
    columns: dict[int, dict[str, str]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    topology: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    driver: str | None = None
    ended: bool = True
    broken: str | None = None

    @property
    def cards(self) -> list[int]:
        """Their numbers."""
        linked = {int(number) for matrix in self.topology.values() for number in matrix}
        return sorted({*self.pairs, *self.columns, *linked})


def parse_rocm_smi(text: str) -> Accelerators:
    """Read any answer of `rocm-smi`, `--json` and `--csv` included."""
    lines = clean_lines(text, data=True)
    found = _Found()
    value = find_json(lines)
    if isinstance(value, dict):
        _read_json(value, found)
    elif not _read_csv(lines, found):
        _read_text(unprefixed([line[:2000] for line in lines], _RULE), found)
    chips = tuple(_chip(found, card) for card in found.cards)
    state, message = "ok", ""
    if not chips and found.processes and found.ended:
        # `--showpids` lists no cards.
        state, message = "ok", ""
    elif not chips:
        state, message = unread(lines, ERRORS)
        if state == "unrecognized" and any("ROCm System Management Interface" in line for line in lines):
            state, message = ("no-devices", "no card is listed") if found.ended else ("truncated", message)
    elif found.broken is not None or not found.ended:
        state, message = "truncated", found.broken or "the output ends before the end of the log"
    extra: dict[str, Any] = {"topology": found.topology} if found.topology else {}
    warning = known_error(lines, (("warning", re.compile(r"^\W*WARNING\b.*", re.IGNORECASE)),))
    if warning:
        extra["warning"] = warning[1]
    return Accelerators(VENDOR, state, message, None, found.driver, chips, tuple(found.processes), extra)


def _read_json(value: dict[str, Any], found: _Found) -> None:
    for key, entry in value.items():
        card = _CARD_KEY.fullmatch(key)
        if isinstance(entry, dict) and card:
            pairs = {str(name).lower(): _plain(item) for name, item in entry.items()}
            found.pairs.setdefault(int(card[1]), {}).update(pairs)
        elif isinstance(entry, dict):
            for name, item in entry.items():
                if str(name).lower() == "driver version":
                    found.driver = _plain(item)


def _plain(item: object) -> str:
    return item if isinstance(item, str) else "" if item is None else str(item)


def _read_csv(lines: list[str], found: _Found) -> bool:
    answer = read_csv(lines, _CSV_FIELDS, spaced=True)
    if answer is None or len(answer[0]) < 2:
        return False
    for row in answer[1]:
        card = _CARD_KEY.fullmatch(row.values.get("device", ""))
        if card:
            found.pairs[int(card[1])] = {
                # The reader takes a unit in brackets off the title; rocm-smi's are in parentheses and stay.
                name: value
                for name, value in row.values.items()
                if name != "device"
            }
            found.broken = found.broken if row.whole else ", ".join(list(row.values.values())[-2:])
    return bool(found.pairs)


def _read_text(lines: list[str], found: _Found) -> None:
    titles: list[str] = []
    lead, named = 0, False
    card: int | None = None
    matrix: dict[str, dict[str, str]] | None = None
    columns: list[str] = []
    log = any("ROCm System Management Interface" in line for line in lines)
    found.ended = not log or any("End of ROCm SMI Log" in line for line in lines)
    for line in lines:
        section = _SECTION.search(line)
        pair = _PAIR.search(line)
        if section:
            titles = []
            matrix = next((found.topology.setdefault(name, {}) for words, name in _MATRICES.items()
                           if section[1].lower().startswith(words)), None)  # fmt: skip
        elif pair:
            _read_pair(int(pair[1]), pair[2], found)
        elif match := _DRIVER.search(line):
            found.driver = match[1]
        elif matrix is not None and _MATRIX_HEAD.fullmatch(f" {line}"):
            columns = [word.removeprefix("GPU") for word in line.split()]
        elif matrix is not None and (match := _MATRIX.fullmatch(line)):
            cells = match[2].split()
            matrix[match[1]] = dict(zip(columns, cells, strict=False))
            found.broken = found.broken if len(cells) == len(columns) else line.strip()
        elif match := _CONCISE.search(line):
            lead, card = match.start(), None
            titles = [title.lower() for title in _TITLE.findall(line[lead:])]
        elif titles and line.strip("= "):
            row = line[lead:] if line[:lead].strip() else line
            words = _VALUE.findall(row)
            if words and re.fullmatch(r"\d{1,4}", words[0]) and len(words) > 2:
                card = int(words[0])
                if len(words) == len(titles):
                    found.columns[card] = dict(zip(titles, words, strict=True))
                else:
                    found.columns[card] = {}
                    found.broken = line.strip()
            elif "Name (" in line:
                named = True
            elif card is not None and named:
                found.names[card] = line.strip()
        elif match := _PID.fullmatch(line):
            # The table tells how many cards a process uses, not which.
            found.processes.append(Process(NO_CARD, None, int(match[1]), match[2], mib(match[4], "B")))


def _read_pair(card: int, rest: str, found: _Found) -> None:
    # Keys have colons of their own only in front of values without one: `(Topology) Numa Node: 0`.
    key, colon, value = rest.partition(":")
    pairs = found.pairs.setdefault(card, {})
    if colon:
        pairs.setdefault(" ".join(key.lower().split()), value.strip())


def _chip(found: _Found, card: int) -> Chip:
    pairs, columns = found.pairs.get(card, {}), found.columns.get(card, {})
    extra: dict[str, Any] = {name: pairs[key] for key, name in _KEYS.items() if not absent(pairs.get(key))}
    for title, name in _COLUMNS.items():
        value = next((value for key, value in columns.items() if key == title or key.startswith(f"{title} (")), None)
        if value is not None and not absent(value):
            extra.setdefault(name, value)
    ids = str(extra.pop("ids", "")).replace(",", " ").split()
    if len(ids) == 2:
        extra |= {"device_id": ids[0], "guid": ids[1]}
    for name in ("node", "numa_node", "util_percent", "vram_percent"):
        if name in extra:
            figure = clean_number(str(extra[name]).rstrip("%"))
            extra[name] = extra[name] if figure is None else figure
    total, used = (pairs.get(key) for key in ("vram total memory (b)", "vram total used memory (b)"))
    if clean_number(total) is not None:
        extra["vram_total_b"] = clean_number(total)
    keys = ("card series", "device name", "card model")
    name = next((pairs[key] for key in keys if not absent(pairs.get(key))), found.names.get(card, ""))
    bus = pairs.get("pci bus")
    return Chip(
        npu_id=card,
        chip_id=None,
        name=name,
        health=None,
        bus_id=None if absent(bus) else bus,
        memory_kind="VRAM",
        memory_used_mb=mib(used, "B"),
        memory_total_mb=mib(total, "B"),
        logic_id=card,
        extra=extra,
    )
