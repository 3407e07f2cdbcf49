"""What logs, hand-edited documents and failing tools make of npu-smi's output; what is named rather than guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmcache_fleet.parsers.ascend_soc import check_soc, soc_name
from lmcache_fleet.parsers.npu_smi import (
    PARSERS,
    parse_info,
    parse_list,
    parse_map,
    parse_proc_mem,
    parse_record,
    parse_topo,
)
from lmcache_fleet.parsers.registry import parser, parsers

FIXTURES = Path(__file__).parent / "fixtures"


def fixture(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text(encoding="utf-8")


def test_elided_rows_are_named() -> None:
    answer = parse_info(fixture("npu_smi_elided"))
    assert (answer.state, answer.message) == ("elided", "......")
    assert [(chip.npu_id, chip.health) for chip in answer.chips] == [(0, "OK"), (6, "Alarm")]


def test_a_layout_nobody_knows_is_not_guessed() -> None:
    answer = parse_info(fixture("npu_smi_future"))
    assert answer.state == "unknown-header"
    assert "Model" in answer.message
    assert answer.chip_count == 0
    assert answer.tool_version == "31.0.0"


def test_two_chips_behind_one_bus_address() -> None:
    answer = parse_info(fixture("npu_smi_duo"))
    assert (answer.state, answer.npu_count, answer.chip_count) == ("ok", 1, 2)
    first, second = answer.chips
    assert (first.memory_used_mb, first.memory_total_mb, second.memory_used_mb) == (None, 44280, 1400)
    assert first.extra["hugepages"] == (12345, 20000)
    assert (first.logic_id, second.logic_id, second.health) == (0, 1, "Critical")


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", "empty"),
        (" \r\n\n\x1b[0m\n", "empty"),
        ("hello", "unrecognized"),
        ("bash: npu-smi: command not found", "tool-missing"),
        ("sh: 1: npu-smi: not found", "tool-missing"),
        ("timeout: failed to run command 'npu-smi': No such file or directory", "tool-missing"),
        ("/usr/bin/which: no npu-smi in (/usr/bin:/bin)", "tool-missing"),
        ('exec: "npu-smi": executable file not found in $PATH', "tool-missing"),
        ("-bash: /usr/local/bin/npu-smi: Permission denied", "permission-denied"),
        (
            "npu-smi: error while loading shared libraries: libc_sec.so: cannot open shared object file: No such file",
            "library-missing",
        ),
        ("npu-smi: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by npu-smi)", "library-incompatible"),
        ("DrvMngGetConsoleLogLevel failed. (ret=4)\ndcmi module initialize failed. ret is -8005", "dcmi-init-failed"),
        ("x | dcmi model initialized failed, because the device is used. ret is -8020", "device-in-use"),
        ("dcmi model initialized failed, because the device is used. ret is -802", "device-in-use"),
        ("npu get board type failed. ret is -9005", "dcmi-error"),
        ("dcmi get card list failed. ret is -8008", "no-devices"),
        ("dcmi module initialize failed. ret is -8006", "timed-out"),
        ("This device does not support querying health.", "not-supported"),
        ("Error parameter of -i", "usage-error"),
        ("Segmentation fault (core dumped)", "tool-crashed"),
        ("Cannot find driver: driver is not installed", "driver-not-loaded"),
    ],
)
def test_error_texts_are_named(text: str, state: str) -> None:
    for parse in (parse_info, parse_list, parse_map, parse_topo, parse_record, parse_proc_mem):
        answer = parse(text)
        assert answer.state == state, parse.__name__
        assert bool(answer.message) == (state != "empty")
    assert parse_info(text).chip_count == 0


def test_an_error_before_the_table_does_not_spoil_it() -> None:
    answer = parse_info("DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n" + fixture("npu_smi_duo"))
    assert answer.state == "ok"


def test_a_number_cut_in_the_middle_is_not_taken() -> None:
    whole = fixture("npu_smi_duo")
    answer = parse_info(whole[: whole.index("43693") + 3])
    assert answer.state == "truncated"
    assert [chip.memory_total_mb for chip in answer.chips] == [44280]


def test_a_header_without_rows_is_no_devices() -> None:
    head = fixture("npu_smi_duo").splitlines()[:6]
    assert parse_info("\n".join(head)).state == "no-devices"
    assert parse_info("\n".join(head[:4])).state == "truncated"


def test_a_broken_row_does_not_move_values_to_other_columns() -> None:
    lines = fixture("npu_smi_duo").splitlines()
    lines[6] = lines[6].replace("| OK  ", "  OK  ")
    answer = parse_info("\n".join(lines))
    assert answer.state == "truncated"
    assert [chip.chip_id for chip in answer.chips] == [1]


def test_a_log_line_between_two_rows() -> None:
    lines = fixture("npu_smi_duo").splitlines()
    lines.insert(7, "[INFO] heartbeat")
    assert parse_info("\n".join(lines)).state == "ok"


def test_blanks_folded_to_one() -> None:
    lines = [" ".join(line.split()) for line in fixture("npu_smi_duo").splitlines()]
    answer = parse_info("\n".join(lines))
    assert (answer.state, answer.chip_count) == ("ok", 2)
    assert answer.chips[1].bus_id == "0000:07:00.0"


def test_usages_of_two_chips() -> None:
    answer = parse_record(
        "\tNPU ID                         : 3\n\tChip Count                     : 2\n\n"
        "\tHBM Capacity(MB)               : 65536\n\tHBM Usage Rate(%)              : 7\n\tChip ID        : 0\n\n"
        "\tHBM Capacity(MB)               : 65536\n\tHBM Usage Rate(%)              : 90\n\tChip ID       : 1\n"
    )
    assert (answer.state, answer.npu_id, answer.chip_count) == ("ok", 3, 2)
    assert [(block["Chip ID"], block["HBM Usage Rate(%)"]) for block in answer.blocks] == [("0", "7"), ("1", "90")]
    assert answer.kv["HBM Usage Rate(%)"] == "7"


def test_chip_blocks_without_blank_lines() -> None:
    answer = parse_record(
        "NPU ID : 1\nChip Count : 2\nChip ID : 0\nTemperature(C) : 50\nChip ID : 1\nTemperature(C) : 51\n"
        "Chip Name : mcu\nTemperature(C) : 44\n"
    )
    assert [block["Temperature(C)"] for block in answer.blocks] == ["50", "51", "44"]
    assert answer.blocks[2]["Chip Name"] == "mcu"


def test_an_address_without_an_answer_is_not_ok() -> None:
    assert parse_record("NPU ID : 0\nChip ID : 0\nThis device does not support querying ecc.").state == "not-supported"
    assert parse_record("NPU ID : 0\n").state == "truncated"
    assert parse_record("some prose: with a colon").state == "unrecognized"


def test_prefixed_pairs() -> None:
    answer = parse_record(
        "2026-01-02 03:04:05 INFO NPU ID      : 0\n2026-01-02 03:04:05 INFO Health Status : Warning\n"
    )
    assert (answer.npu_id, answer.health) == (0, "Warning")


def test_a_long_value_goes_on() -> None:
    answer = parse_record(
        "Health Status : Alarm\nError Code : 80\nError Information : first part,\n      second: part = x\n"
    )
    assert answer.kv["Error Information"] == "first part, second: part = x"


def test_list() -> None:
    card = "\n\tNPU ID : 5\n\tProduct Name : Card X\n\tChip Count : 2\n"
    text = f"\tTotal Count : 2\n{card}\n\tNPU ID : 7\n\tChip Count : 2\n"
    answer = parse_list(text)
    assert (answer.state, answer.npu_ids, answer.as_json()["chip_count"]) == ("ok", (5, 7), 4)
    assert parse_list(text.replace("Total Count : 2", "Total Count : 3")).state == "truncated"
    assert parse_list("Total Count : 0\n").state == "no-devices"


def test_map_of_dual_dies_has_both_numbers() -> None:
    answer = parse_map(
        "NPU ID  Chip ID  Chip Logic ID  Chip Phy-ID  Chip Name\n0 0 0 8 Ascend910\n0 1 1 9 Ascend910\n0 2 - - Mcu\n"
    )
    assert [(die.chip_id, die.logic_id, die.phy_id) for die in answer.dies] == [(0, 0, 8), (1, 1, 9)]
    assert parse_map("NPU ID  Chip ID  Chip Logic ID  Chip Name\n").state == "no-devices"
    assert parse_map("NPU ID  Chip ID  Chip Logic ID  Chip Name\n0 0\n").state == "truncated"
    assert parse_map("A B C D\n0 0 0 x\n").state == "unknown-header"


def test_topology_of_a_container_and_a_narrow_terminal() -> None:
    rows = (
        "          Phy-ID4    Phy-ID12   CPU Affinity\nPhy-ID4    X          SIO        0-63,128-191\n"
        "Phy-ID12   SIO        X          64-127,\n192-255\nLegend:\n X = Self\n"
    )
    answer = parse_topo(rows)
    assert answer.state == "ok"
    assert answer.links["4"] == {"4": "X", "12": "SIO"}
    assert answer.affinity == {"4": "0-63,128-191", "12": "64-127,192-255"}
    assert parse_topo(rows.replace("SIO        X", "SIO")).state == "truncated"
    assert parse_topo("\tNPU0 CPU Affinity\nNPU0 X 0-7\n").affinity == {"0": "0-7"}


def test_process_memory_before_and_after_the_chip() -> None:
    after = (
        "NPU ID : 2\nChip Count : 2\n\nNo process in device.\nChip ID : 0\n\n"
        "Process id:9 Process name:  Process memory(MB):8\nChip ID : 1\n"
    )
    before = "NPU ID : 2\nChip ID : 1\nProcess id:9 Process name:a b  Process memory(MB):8\n"
    for text, name in ((after, ""), (before, "a b")):
        (process,) = parse_proc_mem(text).processes
        assert (process.npu_id, process.chip_id, process.pid, process.name, process.used_mb) == (2, 1, 9, name, 8)
    assert parse_proc_mem("NPU ID : 0\nNo process in device.\n").state == "ok"


@pytest.mark.parametrize(
    ("board", "soc"),
    [
        ({"Chip Name": "910B3"}, "Ascend910B3"),
        ({"Chip Name": "Ascend910B3"}, "Ascend910B3"),
        ({"Chip Name": "310P3", "NPU Name": "NA"}, "Ascend310P3"),
        ({"Chip Name": "910B4-1"}, "Ascend910B4-1"),
        ({"Chip Name": "Ascend910", "NPU Name": "9382"}, "Ascend910_9382"),
        ({"Chip Name": "Ascend 910A"}, "Ascend910A"),
        ({"Chip Name": "mcu"}, None),
        ({"NPU Name": "9382"}, None),
        ({}, None),
    ],
)
def test_soc_name(board: dict[str, str], soc: str | None) -> None:
    assert soc_name(board) == soc


def test_check_soc_is_case_exact_and_names_the_nearest() -> None:
    inis = ["Ascend910B3.ini", "Ascend910B1", "Ascend910_9382"]
    assert check_soc("Ascend910B3", inis) is None
    assert "did you mean Ascend910B3?" in (check_soc("Ascend910b3", inis) or "")
    assert "did you mean Ascend910_9382?" in (check_soc("ascend910_9392", inis) or "")
    assert "no platform files" in (check_soc("Ascend910B3", []) or "")
    assert check_soc(None, inis)


def test_registry_has_every_parser_once() -> None:
    assert set(PARSERS) <= set(parsers())
    assert "collect-env" in parsers()
    with pytest.raises(KeyError, match="npu-smi-info"):
        parser("npu-smi-inof")
