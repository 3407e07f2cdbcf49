"""Tools of NVIDIA, AMD, Intel, Moore Threads and MetaX: real outputs, old and new layouts, failures, and no guesses."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_fleet.accelerators import Accelerators
from lmcache_fleet.parsers import cpuinfo, maca, musa, nvidia, rocm, xpu
from lmcache_fleet.parsers.text import absent, clean_lines, find_json, mib

_spec = importlib.util.spec_from_file_location("parser_corpus", Path(__file__).with_name("corpus.py"))
assert _spec and _spec.loader
corpus = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus)

FIXTURES = Path(__file__).parent / "fixtures_other"
PARSERS: dict[str, Callable[[str], Any]] = {}
for module in (nvidia, rocm, xpu, musa, maca, cpuinfo):
    PARSERS |= module.PARSERS


def fixture(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text(encoding="utf-8")


# Real outputs

KINDS = {
    "nvidia_L": "nvidia-smi-list",
    "nvidia_version": "nvidia-smi-version",
    "query_gpu": "nvidia-smi-query-gpu",
    "query_compute_apps": "nvidia-smi-query-compute-apps",
    "nvidia": "nvidia-smi",
    "showtopo": "rocm-smi-topo",
    "meminfo": "rocm-smi-meminfo",
    "showproduct": "rocm-smi-showproduct",
    "rocm_smi": "rocm-smi",
    "amd_smi": "amd-smi",
    "rocminfo": "rocminfo",
    "xpu_smi_discovery": "xpu-smi-discovery",
    "mthreads": "mthreads-gmi",
    "mx_smi": "mx-smi",
}
ERRORS = {
    "not found": "tool-missing",
    "driver not loaded": "driver-not-loaded",
    "driver/library mismatch": "driver-library-mismatch",
}


@pytest.mark.parametrize("row", corpus.rows("other_smi"), ids=lambda row: row["file"])
def test_right_values(row: dict[str, Any]) -> None:
    if "missing" in row:
        pytest.skip(row["missing"])
    kind = next(kind for words, kind in KINDS.items() if words in row["file"])
    text = corpus.text("other_smi", row)
    _check(PARSERS[kind](text), row)
    _check(PARSERS[kind](text.replace("\n", "\r\n")), row)
    _check(PARSERS[kind]("\n".join(f"\x1b[1m{line}\x1b[0m" for line in text.splitlines())), row)
    if "csv" not in row["file"] and "apps" not in row["file"]:
        _check(PARSERS[kind]("\n".join(f"gpu-7  | {line}" for line in text.splitlines())), row)


def _check(answer: dict[str, Any], row: dict[str, Any]) -> None:
    wanted = row["expected"]
    chips = answer.get("chips", ())
    if "error" in wanted:
        assert (answer["state"], len(chips)) == (ERRORS[wanted["error"]], 0)
        return
    # What is cut by an excerpt is named.
    assert answer["state"] == ("truncated" if "excerpt" in row["provenance"] else "ok")
    assert len(chips) == wanted.get("gpus", len(chips))
    if "names" in wanted:
        gfx, _, name = wanted["names"].rpartition(" / ")
        assert [chip["name"] for chip in chips] == corpus.named(name)
        assert all(chip["extra"]["gfx"] == gfx for chip in chips if gfx)
    if "mem" in wanted:
        used, total = re.findall(r"\d+", wanted["mem"])
        assert {(chip["memory_used_mb"], chip["memory_total_mb"]) for chip in chips} == {(int(used), int(total))}
    if "procs" in wanted:
        keys = ("npu_id", "pid", "name", "used_mb") if answer["chips"] else ("pid", "name", "used_mb")
        assert [[process[key] for key in keys] for process in answer["processes"]] == wanted["procs"]
    for key, value in {
        "driver": answer["driver_version"],
        "cuda": answer.get("extra", {}).get("cuda_version"),
        "mig_devices": answer.get("extra", {}).get("mig_devices"),
        "columns": answer.get("extra", {}).get("columns"),
        "mig": chips[0]["extra"].get("mig_mode") if chips else None,
        "vram_total_b": chips[0]["extra"].get("vram_total_b") if chips else None,
    }.items():
        assert key not in wanted or wanted[key] == value


# Layouts


def test_a_failing_card_among_good_ones() -> None:
    answer = nvidia.parse_table(fixture("nvidia_535_two_cards"))
    assert (answer.state, answer.driver_version, answer.extra["cuda_version"]) == ("ok", "535.54.03", "12.2")
    first, second = answer.chips
    assert (first.npu_id, first.health, first.memory_used_mb, first.extra["power_w"]) == (0, None, 12345, 52)
    assert (second.npu_id, second.health, second.bus_id) == (3, "ERR!", "00000000:0F:00.0")
    assert "power_w" not in second.extra
    assert "mig_mode" not in second.extra
    assert [(process.npu_id, process.pid, process.name, process.used_mb) for process in answer.processes] == [
        (0, 2211, "/usr/lib/xorg/Xorg", 4),
        (0, 40404, "...a dir with spaces/bin/python3.11", 12330),
        (3, 40405, "[Not Found]", None),
    ]


def test_mig_of_an_older_tool() -> None:
    answer = nvidia.parse_table(fixture("nvidia_470_mig"))
    assert (answer.state, answer.npu_count, answer.extra["mig_devices"]) == ("ok", 2, 2)
    devices = [chip.extra["mig_devices"] for chip in answer.chips]
    assert devices[1] == []
    assert [(device["gpu_instance"], device["memory_used_mb"]) for device in devices[0]] == [(3, 7), (4, 18)]
    assert answer.processes[0].pid == 7001


def test_unified_memory_has_no_size() -> None:
    answer = nvidia.parse_table(fixture("nvidia_unified"))
    (chip,) = answer.chips
    assert (answer.state, chip.memory_used_mb, chip.memory_total_mb, chip.health) == ("ok", None, None, None)
    assert chip.bus_id == "0000000F:01:00.0"


def test_blanks_folded_to_one() -> None:
    text = "\n".join(" ".join(line.split()) for line in fixture("nvidia_535_two_cards").splitlines())
    answer = nvidia.parse_table(text)
    assert answer.state == "ok"
    assert [(chip.name, chip.memory_total_mb) for chip in answer.chips] == [("NVIDIA A100-SXM4-40GB", 40960)] * 2
    assert len(answer.processes) == 3


def test_a_lost_card_spoils_the_list() -> None:
    lost = "Unable to determine the device handle for GPU1: 0000:0F:00.0: Unknown Error\n"
    assert nvidia.parse_table(fixture("nvidia_535_two_cards") + lost).state == "device-lost"
    assert nvidia.parse_list(f"GPU 0: NVIDIA A100 (UUID: GPU-1)\n{lost}").state == "device-lost"
    assert nvidia.parse_query_gpu(f"index, name\n0, NVIDIA A100\n{lost}").state == "device-lost"


def test_an_unknown_layout_is_not_guessed() -> None:
    text = fixture("nvidia_535_two_cards").replace("| GPU  Name  ", "| Dev  Label ")
    answer = nvidia.parse_table(text)
    assert (answer.state, answer.chip_count) == ("unknown-header", 0)
    assert "Dev Label" in answer.message


def test_elided_rows_are_named() -> None:
    lines = fixture("nvidia_535_two_cards").splitlines()
    lines[8:12] = ["..."]
    assert nvidia.parse_table("\n".join(lines)).state == "elided"


def test_queries() -> None:
    text = "name, index, memory.total [MiB], memory.used [MiB], compute_cap, mig.mode.current\n"
    answer = nvidia.parse_query_gpu(text + "NVIDIA L4, 4, 23034, 11, 8.9, [N/A]\n")
    (chip,) = answer.chips
    assert (chip.npu_id, chip.memory_total_mb, chip.memory_used_mb) == (4, 23034, 11)
    assert chip.extra["compute_capability"] == "8.9"
    assert "mig_mode" not in chip.extra
    assert nvidia.parse_query_gpu(text + "NVIDIA L4, 4, 23034 MiB").state == "truncated"
    assert nvidia.parse_query_gpu(text).state == "no-devices"
    assert nvidia.parse_query_gpu("NVIDIA L4, 4, 23034 MiB, 8.9").state == "unknown-header"
    asked = 'Field "compute_cap" is not a valid field to query.'
    assert nvidia.parse_query_gpu(asked).state == "usage-error"
    prefixed = "2026-01-02 INFO index, name, memory.total [MiB]\n2026-01-02 INFO 0, NVIDIA L4, 23034 MiB\n"
    answer = nvidia.parse_query_gpu(prefixed)
    assert [(chip.npu_id, chip.memory_total_mb) for chip in answer.chips] == [(0, 23034)]
    unified = "index, name, memory.total [MiB]\n0, NVIDIA GB10, [N/A]\n"
    assert nvidia.parse_query_gpu(unified).chips[0].memory_total_mb is None


def test_no_process_is_an_answer() -> None:
    answer = nvidia.parse_query_compute_apps("pid, process_name, used_gpu_memory [MiB], gpu_uuid\n")
    assert (answer.state, answer.processes) == ("ok", ())
    comma = "pid, process_name, used_gpu_memory [MiB]\n12, a, b, 4 MiB\n13, [Not Found], [N/A]\n"
    found = nvidia.parse_query_compute_apps(comma).processes
    assert [(process.pid, process.name, process.used_mb) for process in found] == [(12, "a, b", 4), (13, "", None)]


def test_amd_default_table() -> None:
    answer = rocm.parse_amd_smi(fixture("amd_smi_default"))
    assert (answer.state, answer.driver_version, answer.extra["rocm_version"]) == ("ok", None, "7.1.0")
    first, second = answer.chips
    assert (first.name, first.bus_id, first.logic_id) == ("AMD Instinct MI325X", "0000:11:00.0", 2)
    assert (first.memory_used_mb, first.memory_total_mb, first.extra["partition_mode"]) == (1024, 262144, "SPX/NPS1")
    assert (second.npu_id, second.extra["power_w"], second.extra["temperature_c"]) == (1, 200, 51)
    assert [(process.npu_id, process.pid, process.used_mb) for process in answer.processes] == [(1, 5151, 1536)]


def test_amd_json_text_and_csv_say_the_same() -> None:
    entry = {
        "gpu": 1,
        "asic": {"market_name": "AMD Instinct MI325X", "target_graphics_version": "gfx942"},
        "bus": {"bdf": "0000:21:00.0"},
        "driver": {"name": "amdgpu", "version": "6.14.1"},
        "vram": {"type": "HBM3E", "size": {"value": 262144, "unit": "MB"}},
    }
    indented = """\
GPU: 1
    ASIC:
        MARKET_NAME: AMD Instinct MI325X
        TARGET_GRAPHICS_VERSION: gfx942
    BUS:
        BDF: 0000:21:00.0
    DRIVER:
        NAME: amdgpu
        VERSION: 6.14.1
    VRAM:
        TYPE: HBM3E
        SIZE: 262144 MB
"""
    for text in (
        json.dumps([entry]),
        "WARNING: a group is missing\n" + json.dumps({"gpu_data": [entry]}, indent=4),
        indented,
    ):
        answer = rocm.parse_amd_smi(text)
        (chip,) = answer.chips
        assert (answer.state, answer.driver_version) == ("ok", "6.14.1")
        assert (chip.npu_id, chip.name, chip.bus_id) == (1, "AMD Instinct MI325X", "0000:21:00.0")
        assert (chip.memory_kind, chip.memory_total_mb, chip.extra["gfx"]) == ("HBM", 262144, "gfx942")
    listed = rocm.parse_amd_smi("gpu,gpu_bdf,gpu_uuid\n0,0000:11:00.0,aa\n1,0000:21:00.0,bb\n")
    assert [chip.extra["uuid"] for chip in listed.chips] == ["aa", "bb"]
    older = rocm.parse_amd_smi('[{"gpu": 0, "vram": {"vram_type": "GDDR6", "vram_size_mb": 16368}}]')
    assert older.chips[0].memory_total_mb == 16368
    assert rocm.parse_amd_smi("[]").state == "no-devices"
    help_text = (
        "usage: amd-smi [-h]  ...\n\nAMD System Management Interface | Version: 24.6.3.0 | ROCm version: 6.2.4 |"
    )
    assert (rocm.parse_amd_smi(help_text).state, rocm.parse_amd_smi(help_text).tool_version) == (
        "usage-error",
        "24.6.3.0",
    )


def test_amd_versions() -> None:
    text = "AMDSMI Tool: 26.1.0+0a1b | AMDSMI Library version: 26.1.0 | ROCm version: 7.1.0 | amdgpu version: 6.16.6"
    answer = rocm.parse_amd_smi_version(text)
    assert [answer[key] for key in ("state", "tool_version", "rocm_version", "driver_version")] == [
        "ok",
        "26.1.0+0a1b",
        "7.1.0",
        "6.16.6",
    ]


def test_concise_tables_of_each_generation() -> None:
    named = rocm.parse_rocm_smi(fixture("rocm_smi_names"))
    assert [(chip.name, chip.extra["vram_percent"]) for chip in named.chips] == [
        ("AMD INSTINCT MI200 (", 41),
        ("AMD INSTINCT MI200 (", 2),
    ]
    old = rocm.parse_rocm_smi(fixture("rocm_smi_old"))
    assert [(chip.npu_id, chip.extra["temperature"], chip.extra["util_percent"]) for chip in old.chips] == [
        (0, "38.0c", 9),
        (1, "41.0c", 0),
    ]
    assert (named.state, old.state) == ("ok", "ok")


def test_rocm_smi_json_and_csv() -> None:
    card = {"Card Series": "AMD Instinct MI210", "GFX Version": "gfx90a", "VRAM Total Memory (B)": "68702699520"}
    text = json.dumps({"card0": card, "card1": card, "system": {"Driver version": "6.8.5"}})
    answer = rocm.parse_rocm_smi(f"\n\nWARNING: something\n{text}")
    assert (answer.state, answer.chip_count, answer.driver_version) == ("ok", 2, "6.8.5")
    assert answer.chips[1].memory_total_mb == 65520
    assert answer.extra["warning"].startswith("WARNING")
    table = "device,VRAM Total Memory (B),VRAM Total Used Memory (B),Card Series\ncard3,68702699520,1048576,AMD X\n"
    (chip,) = rocm.parse_rocm_smi(table).chips
    assert (chip.npu_id, chip.name, chip.memory_used_mb, chip.extra["vram_total_b"]) == (3, "AMD X", 1, 68702699520)


def test_rocm_smi_processes() -> None:
    text = "KFD process information:\nPID     PROCESS NAME  GPU(s)  VRAM USED     SDMA USED  CU OCCUPANCY\n"
    answer = rocm.parse_rocm_smi(text + "331     python3       1       19812737024   0          0\n")
    assert answer.state == "ok"
    assert [(process.npu_id, process.pid, process.used_mb) for process in answer.processes] == [(-1, 331, 18894)]


def test_rocminfo_counts_cards_only() -> None:
    answer = rocm.parse_rocminfo(fixture("rocminfo"))
    (chip,) = answer.chips
    assert (answer.state, answer.driver_version, answer.extra["agents"]) == ("ok", "6.8.5", 2)
    assert (chip.npu_id, chip.name, chip.bus_id, chip.memory_total_mb) == (
        0,
        "AMD Instinct MI210",
        "0000:c7:00.0",
        65520,
    )
    assert chip.extra["isa"] == "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-"
    cpu_only = re.sub(r"\*+\nAgent 2.*ISA 1\n[^\n]*\n", "", fixture("rocminfo"), flags=re.DOTALL)
    assert rocm.parse_rocminfo(cpu_only).state == "no-devices"


def test_virtual_functions_count_where_there_is_nothing_else() -> None:
    answer = xpu.parse_discovery(fixture("xpu_discovery"))
    assert [(chip.npu_id, chip.bus_id) for chip in answer.chips] == [(0, "0000:29:00.0")]
    assert answer.chips[0].extra["drm_device"] == "/dev/dri/card1"
    guest = xpu.parse_discovery(fixture("xpu_discovery").replace("physical", "virtual "))
    assert guest.chip_count == 2


def test_xpu_json() -> None:
    text = json.dumps(
        {
            "device_list": [
                {
                    "device_id": 0,
                    "device_type": "GPU",
                    "device_name": "Intel A",
                    "memory_physical_size_byte": "17102532608",
                },
                {"device_id": 1, "device_type": "NNP", "device_name": "other"},
            ]
        }
    )
    answer = xpu.parse_discovery(text)
    assert [(chip.name, chip.memory_total_mb) for chip in answer.chips] == [("Intel A", 16310)]
    assert xpu.parse_discovery('{"device_list": []}').state == "no-devices"
    assert xpu.parse_discovery('{"error": "Level Zero Initialization Error", "errno": 3}').state == "driver-not-loaded"
    assert xpu.parse_discovery('{"error": "device not found", "errno": 4}').state == "no-devices"
    stats = {"device_id": 2, "device_level": [{"metrics_type": "XPUM_STATS_MEMORY_USED", "value": 24.5}]}
    assert xpu.parse_stats(json.dumps(stats)).chips[0].memory_used_mb == 24
    table = "| Device ID             | 1  |\n| GPU Memory Used (MiB) | Tile 0: 24, Tile 1: 30 |\n| GPU Power (W) |  |\n"
    (chip,) = xpu.parse_stats(f"+----+----+\n{table}+----+----+").chips
    assert (chip.npu_id, chip.memory_used_mb, chip.extra) == (1, 54, {})
    running = "PID     Command     DeviceID     SHR     MEM\n4242    python3     1    0    2048\n"
    (process,) = xpu.parse_ps(running).processes
    assert (process.npu_id, process.pid, process.name, process.used_mb) == (1, 4242, "python3", 2)
    assert xpu.parse_query_gpu("index, name, memory.total [MiB]\n0, Intel B, 24480\n").vendor == "xpu"


def test_musa_table() -> None:
    answer = musa.parse_table(fixture("mthreads_s4000"))
    first, second = answer.chips
    assert (answer.state, answer.tool_version, answer.driver_version) == ("ok", "1.14.0", "2.8.0")
    assert (first.memory_used_mb, first.memory_total_mb, first.extra["util_percent"]) == (40960, 49152, 93)
    assert (second.bus_id, second.extra["ecc_mode"], second.extra["used_over_total"]) == (
        "00000000:1b:00.0",
        "On",
        True,
    )
    assert [(process.pid, process.name) for process in answer.processes] == [(8123, ".../a path/bin/python3.10")]


def test_musa_query() -> None:
    entry = {"Index": "1", "Product Name": "MTT S4000", "FB Memory Usage": {"Total": "49152MiB", "Used": "1339MiB"}}
    answer = musa.parse_query(json.dumps({"Driver Version": "2.8.0", "GPU": [entry]}))
    (chip,) = answer.chips
    assert (answer.driver_version, chip.npu_id, chip.name, chip.memory_used_mb) == ("2.8.0", 1, "MTT S4000", 1339)
    text = """\
Driver Version                      : 2.8.0
GPU1 00000000:04:00.0
    Product Name                    : MTT S4000
    FB Memory Usage
        Total                       : 49152MiB
        Used                        : 1339MiB
"""
    (chip,) = musa.parse_query(text).chips
    assert (chip.npu_id, chip.bus_id, chip.memory_total_mb) == (1, "00000000:04:00.0", 49152)


def test_maca_layouts() -> None:
    plain, switch, boards = (maca.parse_table(fixture(f"mx_smi_22_{minor}")) for minor in (4, 8, 9))
    assert [answer.state for answer in (plain, switch, boards)] == ["ok"] * 3
    assert (plain.tool_version, plain.driver_version, plain.extra["maca_version"]) == ("2.2.4", "2.15.1", "2.32.0.1")
    assert [(chip.name, chip.health, chip.memory_used_mb) for chip in plain.chips] == [
        ("MetaX C550", "Available", 60858),
        ("MetaX C550", "Unavailable", 858),
    ]
    assert plain.chips[0].extra["power_w"] == 153
    assert [(process.npu_id, process.pid, process.used_mb) for process in plain.processes] == [(0, 9101, 60000)]
    (chip,) = switch.chips
    assert (chip.name, chip.extra["persistence"], chip.extra["sgpu_mode"]) == ("MetaX N260", "Off", "Native")
    assert [(chip.npu_id, chip.extra["board"], chip.extra["persistence"]) for chip in boards.chips] == [
        (0, 0, "Off"),
        (1, 0, "On"),
    ]
    missing = fixture("mx_smi_22_9").replace("GPUs                                     : 2", "GPUs : 8")
    assert maca.parse_table(missing).state == "truncated"
    listed = maca.parse_cards(
        "GPU#1    MXC500      0000:0f:00.0   Available (UUID: GPU-b)\n  vram total : 67108864 KB\n"
    )
    (chip,) = listed.chips
    assert (chip.npu_id, chip.health, chip.memory_total_mb, chip.extra) == (1, "Available", 65536, {"uuid": "GPU-b"})


def test_processors() -> None:
    text = "".join(
        f"processor\t: {n}\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon 9999\nphysical id\t: {n // 4}\n"
        f"core id\t\t: {n % 2}\nflags\t\t: fpu avx2 avx512f amx_tile\n\n"
        for n in range(8)
    )
    found = cpuinfo.parse_cpuinfo(text)
    assert (found.model, found.sockets, found.cores, found.threads) == ("Xeon 9999", 2, 4, 8)
    assert found.features == ("avx2", "avx512f", "amx_tile")
    arm = cpuinfo.parse_cpuinfo(
        "processor\t: 0\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x48\n\nprocessor\t: 1\n"
    )
    assert (arm.vendor, arm.model, arm.threads, arm.features) == ("0x48", None, 2, ("asimd", "sve", "bf16"))
    assert (
        cpuinfo.parse_lscpu("Architecture: aarch64\nCPU(s): 192\nSocket(s): 4\nCore(s) per socket: 48\n")["cores"]
        == 192
    )
    assert cpuinfo.cpu_count("0-31,64-95,7") == 65


# Failures

TABLES: dict[str, Callable[[str], Accelerators]] = {
    "nvidia": nvidia.parse_table,
    "nvidia-list": nvidia.parse_list,
    "nvidia-query": nvidia.parse_query_gpu,
    "nvidia-apps": nvidia.parse_query_compute_apps,
    "rocm-smi": rocm.parse_rocm_smi,
    "amd-smi": rocm.parse_amd_smi,
    "rocminfo": rocm.parse_rocminfo,
    "xpu": xpu.parse_discovery,
    "xpu-stats": xpu.parse_stats,
    "xpu-ps": xpu.parse_ps,
    "xpu-list": xpu.parse_list,
    "xpu-query": xpu.parse_query_gpu,
    "musa": musa.parse_table,
    "musa-query": musa.parse_query,
    "musa-list": musa.parse_list,
    "maca": maca.parse_table,
    "maca-list": maca.parse_cards,
}


@pytest.mark.parametrize("parse", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", "empty"),
        ("\r\n \x1b[0m\n", "empty"),
        ("hello there", "unrecognized"),
        ("bash: line 1: some-smi: command not found", "tool-missing"),
        ("sh: 1: some-smi: not found", "tool-missing"),
        ("timeout: failed to run command 'some-smi': No such file or directory", "tool-missing"),
        ("-bash: /usr/bin/some-smi: Permission denied", "permission-denied"),
        (
            "x: error while loading shared libraries: libx.so.1: cannot open shared object file: No such file or "
            "directory",
            "library-missing",
        ),
        ("some-smi: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by some-smi)", "library-incompatible"),
        ("Segmentation fault (core dumped)", "tool-crashed"),
        ('Traceback (most recent call last):\n  File "x.py", line 1\nKeyError: 0', "tool-crashed"),
        ("No devices were found", "no-devices"),
        ("2026-01-01 ERROR no devices found", "no-devices"),
        ("some-smi: unrecognized option '--json'", "usage-error"),
        ("the kernel module is not loaded", "driver-not-loaded"),
    ],
)
def test_failures_are_named(parse: Callable[[str], Accelerators], text: str, state: str) -> None:
    answer = parse(text)
    assert (answer.state, answer.chip_count) == (state, 0)
    assert bool(answer.message) == (state != "empty")


@pytest.mark.parametrize(
    ("parser", "text", "state"),
    [
        (
            "nvidia",
            "NVIDIA-SMI has failed because it couldn’t communicate with the NVIDIA driver",
            "driver-not-loaded",
        ),
        ("nvidia", "Failed to initialize NVML: Driver/library version mismatch", "driver-library-mismatch"),
        ("nvidia", "Failed to initialize NVML: Driver Not Loaded", "driver-not-loaded"),
        ("nvidia", "Failed to initialize NVML: Insufficient Permissions", "permission-denied"),
        ("nvidia", "Failed to initialize NVML: Unknown Error", "nvml-failed"),
        ("nvidia", "Failed to initialize NVML: GPU access blocked by the operating system", "device-blocked"),
        ("nvidia", "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "library-missing"),
        ("nvidia", "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.", "device-lost"),
        ("nvidia", "'nvidia-smi' is not recognized as an internal or external command,", "tool-missing"),
        (
            "rocm-smi",
            "cat: /sys/module/amdgpu/initstate: No such file or directory\nERROR:root:Driver not initialized "
            "(amdgpu not found in modules)",
            "driver-not-loaded",
        ),
        ("rocminfo", "ROCk module is NOT loaded, possibly no GPU devices", "driver-not-loaded"),
        ("rocminfo", "Unable to open /dev/kfd read-write: Permission denied", "permission-denied"),
        ("rocminfo", "Unable to open /dev/kfd read-write: No such file or directory", "driver-not-loaded"),
        ("rocminfo", "hsa api call failure at: rocminfo.cc:1219", "hsa-failed"),
        (
            "amd-smi",
            "ERROR: Unable to detect any GPU devices, check amdgpu version and module status (sudo modprobe amdgpu)",
            "driver-not-loaded",
        ),
        ("xpu", "Error: XPUM is not initialized", "tool-not-ready"),
        ("musa", "bash: mthreads-gmi：未找到命令", "tool-missing"),
        ("maca", "Attached GPUs                  : 0", "no-devices"),
    ],
)
def test_failures_of_one_vendor(parser: str, text: str, state: str) -> None:
    answer = TABLES[parser](text)
    assert (answer.state, answer.chip_count) == (state, 0)


def test_versions_of_a_host_without_a_driver() -> None:
    text = (
        "NVIDIA-SMI version  : 580.1\nNVML version        : N/A\nDRIVER version      : N/A\nCUDA Version        : N/A\n"
    )
    answer = nvidia.parse_version(text)
    assert (answer["tool_version"], answer["driver_version"], answer["cuda_version"]) == ("580.1", None, None)
    assert nvidia.parse_version("").get("state") == "empty"


# Every output, cut anywhere

WHOLE: dict[str, Callable[[str], Accelerators]] = {
    "nvidia_535_two_cards": nvidia.parse_table,
    "nvidia_470_mig": nvidia.parse_table,
    "amd_smi_default": rocm.parse_amd_smi,
    "rocm_smi_names": rocm.parse_rocm_smi,
    "rocm_smi_old": rocm.parse_rocm_smi,
    "rocminfo": rocm.parse_rocminfo,
    "mthreads_s4000": musa.parse_table,
    "mx_smi_22_4": maca.parse_table,
    "mx_smi_22_8": maca.parse_table,
    "mx_smi_22_9": maca.parse_table,
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_cut_answer_is_never_a_smaller_machine(name: str) -> None:
    text = fixture(name).rstrip()
    whole = WHOLE[name](text)
    assert whole.state == "ok"
    real = {chip.npu_id: chip for chip in whole.chips}
    for end in range(len(text)):
        answer = WHOLE[name](text[:end])
        assert answer.state != "ok" or answer.chip_count == whole.chip_count, text[:end]
        for chip in answer.chips:
            # A number cut in the middle is not taken for a number.
            assert chip.memory_used_mb in {None, real[chip.npu_id].memory_used_mb}, text[:end]
            assert chip.memory_total_mb in {None, real[chip.npu_id].memory_total_mb}, text[:end]


# Random machines

NAME = st.sampled_from(["NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA GeForce RTX 4090", "Orin (nvgpu)", "A30-24Q"])
PROGRAM = st.text("abcXYZ019_./-: +", min_size=1, max_size=40).map(lambda text: "/" + " ".join(text.split()))
PREFIX = st.sampled_from(["", "  ", "node-1 | ", "2026-01-02T03:04:05+00:00 INFO ", "[x] a|b: "])


@st.composite
def machines(draw: Any) -> Any:
    """Cards as (index, name, address, used, total, mig mode) and processes as (index, pid, name, used)."""
    ids = sorted(draw(st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True)))
    total = draw(st.sampled_from([2048, 24564, 81559, 143771]))
    cards = [
        (
            index,
            draw(NAME),
            f"00000000:{draw(st.integers(0, 255)):02X}:00.0",
            draw(st.integers(0, total)),
            total,
            draw(st.sampled_from(["Disabled", "N/A", "Enabled"])),
        )
        for index in ids
    ]
    processes = [
        (draw(st.sampled_from(ids)), draw(st.integers(1, 4194304)), draw(PROGRAM), draw(st.integers(0, total)))
        for _ in range(draw(st.integers(0, 4)))
    ]
    return cards, processes


def render_nvidia(cards: Any, processes: Any, wide: bool) -> str:
    first, second, third = (41, 24, 22) if wide else (31, 22, 22)
    rule = f"+{'-' * first}+{'-' * second}+{'-' * third}+"
    outer = "+" + "-" * (len(rule) - 2) + "+"

    def row(*cells: str) -> str:
        return (
            "|" + "|".join(f"{cell:{width}}" for cell, width in zip(cells, (first, second, third), strict=True)) + "|"
        )

    def line(text: str) -> str:
        return f"|{text:{len(rule) - 2}}|"

    lines = [
        outer,
        line(" NVIDIA-SMI 550.1    Driver Version: 550.1    CUDA Version: 12.4"),
        rule if wide else "|" + rule[1:],
        row(" GPU  Name" + "Persistence-M".rjust(first - 11) + " ", " Bus-Id  Disp.A", " Volatile Uncorr. ECC"),
        row(" Fan  Temp   Perf   Pwr:Usage/Cap", "Memory-Usage".rjust(second - 1), " GPU-Util  Compute M."),
        row("", "", "MIG M.".rjust(third - 1)),
        "|" + rule[1:-1].replace("-", "=") + "|",
    ]
    for index, name, bus, used, total, mig in cards:
        lines += [
            row(f" {index:3}  {name:{first - 11}}  On ", f" {bus} Off", "0".rjust(third - 1)),
            row(" N/A   33C    P0   52W / 400W", f"{used}MiB / {total}MiB".rjust(second - 1), "    7%      Default"),
            row("", "", mig.rjust(third - 1)),
            rule,
        ]
    lines += [
        "",
        outer,
        line(" Processes:"),
        line("  GPU   GI   CI    PID   Type   Process name     GPU Memory"),
        line("        ID   ID                                   Usage"),
        "|" + "=" * (len(rule) - 2) + "|",
    ]
    for index, pid, name, used in processes:
        lines.append(line(f"  {index:3}   N/A  N/A  {pid:7}      C   {name}     {used}MiB "))
    if not processes:
        lines.append(line("  No running processes found"))
    return "\n".join([*lines, outer])


@settings(max_examples=40, deadline=None)
@given(machines(), st.booleans(), PREFIX, st.sampled_from(["\n", "\r\n"]))
def test_a_random_machine_reads_back(machine: Any, wide: bool, prefix: str, newline: str) -> None:
    cards, processes = machine
    text = newline.join(prefix + line for line in render_nvidia(cards, processes, wide).split("\n"))
    answer = nvidia.parse_table(text)
    assert answer.state == "ok"
    assert [
        (
            chip.npu_id,
            chip.name,
            chip.bus_id,
            chip.memory_used_mb,
            chip.memory_total_mb,
            chip.extra.get("mig_mode", "N/A"),
        )
        for chip in answer.chips
    ] == cards
    assert [(process.npu_id, process.pid, process.name, process.used_mb) for process in answer.processes] == processes


@settings(max_examples=40, deadline=None)
@given(machines(), st.booleans(), PREFIX)
def test_a_random_moore_threads_machine_reads_back(machine: Any, newer: bool, prefix: str) -> None:
    cards, processes = machine
    width = 25 if newer else 19
    inner = "+" + "-" * (width + 50) + "+"
    outer = "-" * len(inner)
    lines = [
        outer,
        "    mthreads-gmi:2.0.0    Driver Version:3.1.0",
        outer,
        f"{'ID   Name':{width}} |PCIe                |%GPU  Mem",
        f"{'     Device Type  Perf':{width}} |Pcie Lane Width     |Temp  MPC Capable",
        f"{'':{width + 21}} |      ECC Mode",
        inner,
    ]
    for index, _, bus, used, total, _ in cards:
        lines += [
            f"{f'{index:<4} MTT S5000':{width}} |{bus:20}|7%    {used}MiB({total}MiB)",
            f"{'     Physical  P0':{width}} |16x(16x)            |48C   YES",
            f"{'':{width + 21}} |      N/A",
            inner,
        ]
    lines[-1] = outer
    lines += ["", outer, "Processes:", "ID   PID       Process name       GPU Memory", "    Usage", inner]
    lines += [f"{index:<4} {pid:<9} {name}     {used}MiB" for index, pid, name, used in processes]
    lines += [] if processes else ["   No running processes found"]
    answer = musa.parse_table("\n".join(prefix + line for line in [*lines, outer]))
    assert answer.state == "ok"
    assert [(chip.npu_id, chip.bus_id, chip.memory_used_mb, chip.memory_total_mb) for chip in answer.chips] == [
        (index, bus, used, total) for index, _, bus, used, total, _ in cards
    ]
    assert [(process.npu_id, process.pid, process.name, process.used_mb) for process in answer.processes] == processes


PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [line for path in sorted(FIXTURES.glob("*.txt")) for line in path.read_text("utf-8").splitlines()]
        ),
        st.sampled_from(
            [
                "+----+",
                "|====|",
                "|",
                "| 0 |",
                "GPU 0: x (UUID: y)",
                "index, name",
                "pid, process_name",
                "GPU[0] : a: b",
                '{"card0": {"VRAM Total Memory (B)": 1}}',
                '[{"gpu": {}, "vram": {"size": []}}]',
                '{"device_list": [1, {}]}',
                '{"GPU": [{"FB Memory Usage": 3}], "gpu_data": 4}',
                "[" * 3000,
                '{"a":' * 3000,
                "9" * 6000,
                "Agent 1",
                '[{"gpu": true, "process_list": [{"process_info": {"pid": null}}, 3]}]',
                "GPU: 0",
                "    VRAM:",
                "processor : 0",
                '{"device_id": 0, "device_level": [{"metrics_type": "XPUM_STATS_MEMORY_USED", "value": NaN}, 4]}',
                '{"device_list": [{"device_id": 1e999, "memory_physical_size_byte": {"value": [], "unit": 3}}]}',
            ]
        ),
        st.text(max_size=60),
    ),
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(PIECES)
def test_no_text_makes_a_parser_raise(pieces: list[str]) -> None:
    text = "\n".join(pieces)
    for name, parse in PARSERS.items():
        answer = parse(text)
        assert isinstance(answer["state"], str), name
        json.dumps(answer)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["|", "+-", "GPU 0: (", "a: ", "{", "[", " ", "1 ", "GPU[0] : ", "/ 1MiB ", "x, "])
def test_long_text_is_read_in_time(piece: str) -> None:
    for text in (piece * 20000, (piece * 40 + "\n") * 150):
        for parse in PARSERS.values():
            parse(text)


def test_sizes_and_noise() -> None:
    assert [mib(text) for text in ("81559 MiB", "1.5 GB", "1024KB", "12", "N/A", None, "-1", True)] == [
        81559,
        1536,
        1,
        12,
        None,
        None,
        None,
        None,
    ]
    assert mib({"value": 2, "unit": "GB"}) == 2048
    assert mib({"value": "N/A", "unit": 3}) is None
    assert find_json(["[info] x", "[1]", '{"a": 1}', "tail"]) == {"a": 1}
    assert find_json(["[info] x"]) is None
    assert clean_lines("\x1b[31ma\x1b[0m \r\nb\x00") == ["a", "b"]
    assert absent("[Not Supported]")
    assert not absent("0")
