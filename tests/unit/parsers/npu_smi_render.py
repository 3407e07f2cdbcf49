"""Renders `npu-smi info` for an invented machine, in each family of layouts."""

from __future__ import annotations

from dataclasses import dataclass, field

# family -> widths of the cells, titles of both header lines, widths of the places inside the last cell
FAMILIES = {
    "910-21": ((22, 15, 45), ("NPU   Name", "Health", "Power(W)   Temp(C)"), "Chip", (11, 18)),
    "910": (
        (27, 15, 52),
        ("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"),
        "Chip",
        (12, 18),
    ),
    "910-wide": (
        (27, 15, 70),
        ("NPU   Name", "Health", "Power(W)             Temp(C)                 Hugepages-Usage(page)"),
        "Chip",
        (21, 24),
    ),
    "a3": (
        (27, 15, 70),
        ("NPU   Name", "Health", "Power(W)             Temp(C)                 Hugepages-Usage(page)"),
        "Chip  Phy-ID",
        (21, 24),
    ),
    "310-21": ((19, 17, 40), ("NPU     Name", "Health", "Power(W)          Temp(C)"), "Chip    Device", (18, 20)),
    "310p": (
        (31, 17, 54),
        ("NPU     Name", "Health", "Power(W)     Temp(C)           Hugepages-Usage(page)"),
        "Chip    Device",
        (13, 18),
    ),
    "950": (
        (8, 18, 15, 53),
        ("NPU ID", "Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"),
        "",
        (12, 18),
    ),
}
HBM = {"910-21", "910", "910-wide", "a3", "950"}


@dataclass
class Die:
    npu: int
    chip: int
    number: int
    name: str
    health: str
    bus: str
    used: int
    total: int
    power: str = "93.6"
    temp: int = 40
    pages: tuple[int, int] = (0, 0)
    ddr: tuple[int, int] = (0, 0)


@dataclass
class Running:
    npu: int
    chip: int
    pid: int
    name: str
    used: int


@dataclass
class Machine:
    family: str
    tool: str
    driver: str
    dies: list[Die]
    processes: list[Running] = field(default_factory=list)
    process_table: bool = True

    @property
    def split(self) -> bool:
        return self.family == "950"


def line(widths: tuple[int, ...], texts: tuple[str, ...]) -> str:
    return "|" + "|".join((" " + text).ljust(width) for width, text in zip(widths, texts, strict=True)) + "|"


def rule(widths: tuple[int, ...], mark: str) -> str:
    return "+" + "+".join(mark * width for width in widths) + "+"


def render(machine: Machine) -> list[str]:
    widths, first_titles, chip_titles, places = FAMILIES[machine.family]
    total = sum(widths) + len(widths) - 1
    hbm = machine.family in HBM
    core = "NPU Util(%)" if machine.split else "AICore(%)"
    memory = "Memory-Usage(MB)".ljust(places[1]) + ("HBM-Usage(MB)" if hbm else "")
    second_titles = (core.ljust(places[0]) + memory).rstrip()
    head = ("", "", "Bus-Id", second_titles) if machine.split else (chip_titles, "Bus-Id", second_titles)
    out = [
        rule((total,), "-"),
        line((total,), (f"npu-smi {machine.tool}".ljust(36) + f"Version: {machine.driver}",)),
        rule(widths, "-"),
        line(widths, first_titles),
        line(widths, head),
        rule(widths, "="),
    ]
    indent = 8 if machine.family.startswith("310") else 6
    for index, die in enumerate(machine.dies):
        pages = f"{die.pages[0]:<4} / {die.pages[1]}" if "Hugepages" in first_titles[-1] else ""
        upper = die.power.ljust(places[0]) + str(die.temp).ljust(places[1]) + pages
        pair = f"{die.used:<5}/ {die.total}"
        other = f"{die.ddr[0]:<4} / {die.ddr[1]}".ljust(places[1])
        lower = "0".ljust(places[0]) + (other + pair if hbm else pair)
        if machine.split:
            out += [line(widths, (str(die.npu), die.name, die.health, upper)), line(widths, ("", "", die.bus, lower))]
        else:
            number = str(die.number) if len(chip_titles) > 4 else ""
            left = str(die.npu).ljust(indent) + die.name, str(die.chip).ljust(indent) + number
            out += [line(widths, (left[0], die.health, upper)), line(widths, (left[1], die.bus, lower))]
        same_card = index + 1 < len(machine.dies) and machine.dies[index + 1].npu == die.npu
        out.append(rule((total,), "-") if same_card else rule(widths, "="))
    return out + (_processes(machine, total) if machine.process_table else [])


def _processes(machine: Machine, total: int) -> list[str]:
    container = machine.family in {"910-wide", "a3"}
    fixed = (24, 15, 26, 25) if container else (24, 15, 26)
    widths = (*fixed, max(20, total - sum(fixed) - len(fixed)))
    titles = ["NPU ID" if machine.split else "NPU     Chip", "Process id", "Process name", "Process memory(MB)"]
    if container:
        titles.append("Process id in container")
    out = [rule(widths, "-"), line(widths, tuple(titles)), rule(widths, "=")]
    for npu in dict.fromkeys(die.npu for die in machine.dies):
        mine = [process for process in machine.processes if process.npu == npu]
        for process in mine:
            left = str(npu) if machine.split else f"{npu:<8}{process.chip}"
            row = [left, str(process.pid), process.name, str(process.used)]
            out.append(line(widths, tuple(row + ["NA"] * container)))
        if not mine:
            out.append(line((total,), (f"No running processes found in NPU {npu}",)))
        out.append(rule(widths, "="))
    return out
