"""The unframed tables of npu-smi: `-m` (numbers of a die), `-t topo` (links), `-t proc-mem` (processes)."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from lmcache_fleet.accelerators import Process
from lmcache_fleet.parsers.ascend_text import clean_lines, error_state, number, unread_state
from lmcache_fleet.parsers.npu_smi_records import split_pair
from lmcache_fleet.plain import Plain

_MAP_TITLE = re.compile(r"(?:NPU|Card|Slot|Chip Logic|Chip Physical|Chip|Device|Logic) ID|Chip Phy-ID|Chip Name|\S+")
_LABEL = re.compile(r"[A-Za-z][A-Za-z -]*?[A-Za-z_-](\d+(?:[._:]\d+)?)")
_CORES = re.compile(r"[\d,-]+|N/?A")
_LINKS = re.compile(r"X|[A-Z][A-Z0-9_]*|N/A|-")
_PROCESS = re.compile(
    r"Process id\s*:\s*(\S*?)\s+Process name\s*:\s*(.*?)\s+Process memory\(MB\)\s*:\s*(\S*)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class MapRow:
    """One die in the tool's numberings.

    Args:
        npu_id: card.
        chip_id: die on the card.
        logic_id: number that software selects it by; None where not printed.
        phy_id: physical number, that of `/dev/davinciN`; None where not printed.
        slot_id: slot; None where not printed.
        name: chip name.
    """

    npu_id: int
    chip_id: int | None
    logic_id: int | None
    phy_id: int | None
    slot_id: int | None
    name: str


@dataclass(frozen=True, slots=True)
class NpuMapping(Plain):
    """`npu-smi info -m`.

    Args:
        state: `ok`, the named error, `unknown-header`, `header-missing`, `no-devices` or `truncated`.
        message: the line that the state was judged by; empty when ok.
        dies: the dies; rows of a card's controller (MCU) are left out.
    """

    state: str
    message: str = ""
    dies: tuple[MapRow, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The same as plain data, with counts and `map`: card, die, logical (else physical) number of each die."""
        return {
            **asdict(self),
            "npu_count": len({die.npu_id for die in self.dies}),
            "chip_count": len(self.dies),
            "map": [
                [die.npu_id, die.chip_id, die.phy_id if die.logic_id is None else die.logic_id] for die in self.dies
            ],
        }


@dataclass(frozen=True, slots=True)
class NpuTopology(Plain):
    """`npu-smi info -t topo`.

    Args:
        state: `ok`, the named error, or `truncated` (a device without its row, or a row without all its links).
        message: the line that the state was judged by; empty when ok.
        links: device → device → kind of link (`HCCS`, `SIO`, `UB`, `PIX`, `PHB`, `SYS`; `X` is the device itself).
        affinity: device → processors near to it, as printed (`144-167`).
    """

    state: str
    message: str = ""
    links: dict[str, dict[str, str]] = field(default_factory=dict)
    affinity: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data, with the number of devices."""
        return {**asdict(self), "npu_count": len(self.links)}


@dataclass(frozen=True, slots=True)
class NpuProcesses(Plain):
    """`npu-smi info -t proc-mem`.

    Args:
        state: `ok` (also without a process, when the answer names its device) or the named error.
        message: the line that the state was judged by; empty when ok.
        processes: as listed.
    """

    state: str
    message: str = ""
    processes: tuple[Process, ...] = ()


def parse_map(text: str) -> NpuMapping:
    """Read `npu-smi info -m`, by its titles: the columns differ by generation.

    Args:
        text: standard output and error, as they came.
    """
    lines = clean_lines(text)
    titles: list[str] = []
    cut_at = 0
    dies: list[MapRow] = []
    broken = ""
    for line in lines:
        if not line.strip():
            continue
        start = line.find("NPU ID")
        if start >= 0 and ("Chip" in line or "Logic" in line):
            # A second header is a second answer: the newest counts.
            titles, cut_at, dies, broken = _MAP_TITLE.findall(line[start:]), len(line[:start].split()), [], ""
            continue
        words = line.split()[cut_at:]
        if not titles or not words or number(words[0]) is None:
            continue
        values = dict(zip(titles, [*words[: len(titles) - 1], " ".join(words[len(titles) - 1 :])], strict=False))
        name = values.get("Chip Name", "")
        die = MapRow(
            npu_id=int(words[0]),
            chip_id=number(values.get("Chip ID")),
            logic_id=number(values.get("Chip Logic ID", values.get("Logic ID"))),
            phy_id=number(values.get("Chip Phy-ID", values.get("Chip Physical ID"))),
            slot_id=number(values.get("Slot ID")),
            name=name,
        )
        if "mcu" in (word.lower() for word in words):
            continue
        if len(words) < len(titles) - 1 or not name:
            broken = broken or line.strip()
            continue
        dies.append(die)
    return NpuMapping(*_map_state(lines, bool(titles), bool(dies), broken), tuple(dies))


def _map_state(lines: list[str], headed: bool, found: bool, broken: str) -> tuple[str, str]:
    if broken:
        return "truncated", broken
    if found:
        return "ok", ""
    state, message = unread_state(lines)
    if headed and state == "unrecognized":
        return "no-devices", "the table has no rows"
    if state == "unrecognized" and any(
        len(line.split()) >= 3 and number(line.split()[0]) is not None for line in lines
    ):
        return "unknown-header", message
    return state, message


def parse_topo(text: str) -> NpuTopology:
    """Read `npu-smi info -t topo`, word by word: a wide table folds at the words, and nothing else is certain.

    Args:
        text: standard output and error, as they came.
    """
    lines = clean_lines(text)
    words: list[str] = []
    for line in lines:
        if line.strip().lower().startswith("legend"):
            break
        words += line.split()
    start = next((i for i in range(len(words) - 1) if _LABEL.fullmatch(words[i]) and _starts_header(words, i)), None)
    if start is None:
        return NpuTopology(*unread_state(lines))
    end = start
    while end < len(words) and _LABEL.fullmatch(words[end]):
        end += 1
    # Without an affinity column the first row's label follows the header directly.
    columns = list(dict.fromkeys(words[start:end]))
    end = start + len(columns)
    links: dict[str, dict[str, str]] = {}
    affinity: dict[str, str] = {}
    index = end
    while index < len(words):
        label = words[index]
        index += 1
        if label not in columns:
            continue
        row: list[str] = []
        while (
            index < len(words)
            and len(row) < len(columns)
            and _LINKS.fullmatch(words[index])
            and words[index] not in columns
        ):
            row.append(words[index])
            index += 1
        links[_device(label)] = {_device(column): link for column, link in zip(columns, row, strict=False)}
        near = ""
        while index < len(words) and (not near or near.endswith(",")) and _CORES.fullmatch(words[index]):
            near += words[index]
            index += 1
        if near:
            affinity[_device(label)] = near
    lacking = [column for column in columns if len(links.get(_device(column), {})) < len(columns)]
    if lacking:
        return NpuTopology("truncated", f"{lacking[0]} has no whole row", links, affinity)
    return NpuTopology("ok", "", links, affinity)


def _starts_header(words: list[str], index: int) -> bool:
    """Whether the labels from here are the header's: another label or the affinity column comes next, not a link."""
    following = words[index + 1]
    return bool(_LABEL.fullmatch(following)) or following == "CPU"


def _device(label: str) -> str:
    found = _LABEL.fullmatch(label)
    return found[1] if found else label


def parse_proc_mem(text: str) -> NpuProcesses:
    """Read `npu-smi info -t proc-mem`, with the three values of a process on one line or on three.

    Args:
        text: standard output and error, as they came.
    """
    lines = clean_lines(text)
    processes: list[Process] = []
    npu: int | None = None
    chip: int | None = None
    # A card's answer for all its chips names each chip after its processes; an answer for one chip names it first.
    trailing: bool | None = None
    waiting: list[dict[str, str]] = []
    current: dict[str, str] = {}

    def flush() -> None:
        if npu is not None:
            for found in waiting:
                pid, used = number(found.get("process id")), number(found.get("process memory(mb)"))
                processes.append(Process(npu, chip, pid, found.get("process name", ""), used))
        waiting.clear()

    for line in lines:
        whole = _PROCESS.search(f"{line} ")
        if whole:
            waiting.append({"process id": whole[1], "process name": whole[2], "process memory(mb)": whole[3]})
        elif "no process" in line.lower():
            trailing = trailing if trailing is not None else chip is None
        elif pair := split_pair(line):
            key, value = pair[0].lower(), pair[1]
            if key == "npu id":
                flush()
                npu, chip, trailing = number(value), None, None
            elif key == "chip id":
                trailing = bool(waiting) if trailing is None else trailing
                if not trailing:
                    flush()
                chip = number(value)
                if trailing:
                    flush()
                    chip = None
            elif key.startswith("process "):
                if key in current or not waiting or waiting[-1] is not current:
                    current = {}
                    waiting.append(current)
                current[key] = value
    flush()
    if processes:
        return NpuProcesses("ok", "", tuple(processes))
    error = error_state(lines)
    if npu is not None and error is None:
        return NpuProcesses("ok")
    return NpuProcesses(*(error or unread_state(lines)))
