"""Every layout family, rendered from a random machine, reads back; and no text at all makes the parser raise."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_fleet.accelerators import Accelerators
from lmcache_fleet.parsers.npu_smi import PARSERS, parse_info

_spec = importlib.util.spec_from_file_location("npu_smi_render", Path(__file__).with_name("npu_smi_render.py"))
assert _spec and _spec.loader
rendering = importlib.util.module_from_spec(_spec)
sys.modules["npu_smi_render"] = rendering
_spec.loader.exec_module(rendering)

NAMES = {
    "910-21": ["910A"],
    "910": ["910B3", "910B4-1", "910ProB", "910B2C"],
    "910-wide": ["910B3", "910B1"],
    "a3": ["Ascend910"],
    "310-21": ["310"],
    "310p": ["310P3", "310B4"],
    "950": ["Ascend950PR", "Ascend950DT"],
}
BUS = st.one_of(st.just("NA"), st.integers(0, 255).map(lambda n: f"0000:{n:02X}:00.0"))
PROCESS_NAME = st.text("abcXYZ019_./-:", min_size=0, max_size=30).map(lambda t: t.strip())


@st.composite
def machines(draw: Any) -> Any:
    family = draw(st.sampled_from(sorted(NAMES)))
    name = draw(st.sampled_from(NAMES[family]))
    dies_each = 2 if family == "a3" else draw(st.sampled_from([1, 2])) if family == "310p" else 1
    ids = draw(
        st.lists(st.sampled_from([0, 1, 2, 3, 5, 7, 32, 96, 224, 32768, 32800]), min_size=1, max_size=8, unique=True)
    )
    total = draw(st.sampled_from([7545, 21527, 32768, 65536, 131072]))
    dies, processes = [], []
    for card, npu in enumerate(sorted(ids)):
        bus = draw(BUS)
        for chip in range(dies_each):
            # Families without the hugepage column can't show it.
            ddr = draw(st.sampled_from([(0, 0), (1809, 15079)])) if family in {"910", "910-21"} else (0, 0)
            dies.append(
                rendering.Die(
                    npu,
                    chip,
                    card * dies_each + chip,
                    name,
                    draw(st.sampled_from(["OK", "OK", "Warning", "Alarm", "Critical", "UNKNOWN"])),
                    bus,
                    draw(st.integers(0, total)),
                    total,
                    draw(st.sampled_from(["93.6", "NA", "-", "0.0", "162.6"])),
                    draw(st.integers(0, 99)),
                    draw(st.sampled_from([(0, 0), (15, 15), (17057, 17057)])),
                    ddr,
                )
            )
            for pid in draw(st.lists(st.integers(1, 4_000_000), max_size=2, unique=True)):
                processes.append(rendering.Running(npu, chip, pid, draw(PROCESS_NAME), draw(st.integers(0, 60000))))
    version = draw(st.sampled_from(["21.0.2", "23.0.rc2.3", "24.1.0.3", "25.7.rc1.6", "26.1.0"]))
    return rendering.Machine(family, version, version, dies, processes, draw(st.booleans()))


def expect(machine: Any, answer: Accelerators) -> None:
    assert answer.state == "ok", answer.message
    assert (answer.tool_version, answer.driver_version) == (machine.tool, machine.driver)
    kind = "HBM" if machine.family in rendering.HBM else "DDR"
    wanted = [
        (
            die.npu,
            None if machine.split else die.chip,
            die.name,
            die.health,
            None if die.bus == "NA" else die.bus,
            kind,
            die.used,
            die.total,
        )
        for die in machine.dies
    ]
    assert wanted == [
        (c.npu_id, c.chip_id, c.name, c.health, c.bus_id, c.memory_kind, c.memory_used_mb, c.memory_total_mb)
        for c in answer.chips
    ]
    for die, chip in zip(machine.dies, answer.chips, strict=True):
        assert chip.extra["power_w"] == (None if die.power in {"NA", "-"} else float(die.power))
        assert chip.extra["temperature_c"] == die.temp
        if "hugepages" in chip.extra:
            assert tuple(chip.extra["hugepages"]) == die.pages
        if machine.family == "a3":
            assert chip.extra["phy_id"] == die.number
        if machine.family.startswith("310"):
            assert chip.logic_id == die.number
    rows = [(p.npu, None if machine.split else p.chip, p.pid, p.name, p.used) for p in machine.processes]
    seen = [(p.npu_id, p.chip_id, p.pid, p.name, p.used_mb) for p in answer.processes]
    assert seen == (rows if machine.process_table else [])
    json.dumps(answer.as_json())


@settings(max_examples=80, deadline=None)
@given(machines())
def test_reads_back(machine: Any) -> None:
    expect(machine, parse_info("\n".join(rendering.render(machine)) + "\n"))


PREFIXES = ["", "2026-03-04T05:06:07.123+08:00 stdout F ", "worker-1  | ", "[pod/x/y] ", "> ", "\t"]


@settings(max_examples=60, deadline=None)
@given(machines(), st.sampled_from(PREFIXES), st.sampled_from(["\n", "\r\n", "\r\r\n"]), st.booleans(), st.booleans())
def test_logs_and_terminals(machine: Any, prefix: str, newline: str, colour: bool, trailing: bool) -> None:
    lines = rendering.render(machine)
    if colour:
        lines = [f"\x1b[0;32m{line}\x1b[0m" for line in lines]
    if trailing:
        lines = [f"{line}  " for line in lines]
    before = ["[INFO limiter] manager | ready", "", "+ npu-smi info"]
    expect(machine, parse_info(newline.join([*before, *(prefix + line for line in lines), prefix])))


@settings(max_examples=60, deadline=None)
@given(machines(), st.integers(60, 110), st.booleans())
def test_folded_by_a_narrow_terminal(machine: Any, width: int, stripped: bool) -> None:
    folded = []
    for line in rendering.render(machine):
        pieces = [line[start : start + width] for start in range(0, len(line), width)]
        folded += [piece.rstrip() if stripped else piece for piece in pieces]
    expect(machine, parse_info("\n".join(folded)))


@settings(max_examples=60, deadline=None)
@given(machines(), st.data())
def test_a_cut_is_never_ok_with_wrong_chips(machine: Any, data: Any) -> None:
    text = "\n".join(rendering.render(machine))
    whole = parse_info(text)
    answer = parse_info(text[: data.draw(st.integers(0, len(text)))])
    if answer.state == "ok":
        assert answer.chips == whole.chips[: len(answer.chips)]
        assert answer.processes == whole.processes[: len(answer.processes)]
        assert answer.chips


@settings(max_examples=40, deadline=None)
@given(machines(), machines())
def test_the_newest_of_several_answers_counts(first: Any, second: Any) -> None:
    expect(second, parse_info("\n".join([*rendering.render(first), "", *rendering.render(second)])))


@settings(max_examples=40, deadline=None)
@given(machines())
def test_rows_alone_are_read_and_named_a_fragment(machine: Any) -> None:
    machine.process_table = False
    answer = parse_info("\n".join(rendering.render(machine)[6:]))
    assert answer.state == "header-missing"
    assert [(c.npu_id, c.name, c.memory_used_mb, c.memory_total_mb) for c in answer.chips] == [
        (die.npu, die.name, die.used, die.total) for die in machine.dies
    ]


SHARDS = st.sampled_from(
    ["|", "+", "=====", "-----+", "NPU", "Name", "Health", "Bus-Id", "Memory-Usage(MB)", "0", "7", " / ", "65536", "OK",
     "\n", "\r\n", " ", "...", "Process id", "No running processes found in NPU 0", "npu-smi 25.2.0 Version: 25.2.0",
     "0000:C1:00.0", "NA", ":", "NPU ID", "Chip ID", "Total Count", "NPU0", "X", "=", "[pip3] ", "-> ", "\x1b[31m", "²",
     "9" * 5000, "Chip Logic ID", "Chip Name", "ret is -8005"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=300), st.lists(SHARDS, max_size=60).map("".join)))
def test_no_text_raises(text: str) -> None:
    for name, parse in PARSERS.items():
        answer = parse(text)
        json.dumps(answer)
        assert answer["state"], name
    answer = parse_info(text)
    assert answer.chips or answer.state != "ok"
