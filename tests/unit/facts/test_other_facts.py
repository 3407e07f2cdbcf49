"""Facts of the other vendors and of the processors against stand-in tools, run by a plain POSIX shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts import cpu, maca, musa, nvidia, rocm, xpu
from facts.smi import VendorFact, address
from lmcache_fleet import survey

SHELL = shutil.which("dash") or "/bin/sh"
FACTS: list[type[VendorFact]] = [nvidia.NvidiaSmi, rocm.RocmSmi, xpu.XpuSmi, musa.MthreadsGmi, maca.MxSmi]
TOOLS = {
    "cuda": ["nvidia-smi"],
    "rocm": ["amd-smi", "rocm-smi"],
    "xpu": ["xpu-smi"],
    "musa": ["mthreads-gmi"],
    "maca": ["mx-smi"],
}
ELSEWHERE = ["/proc/", "/sys/", "/usr/local/nvidia", "/usr/local/cuda", "/usr/local/musa", "/usr/lib/wsl", "/opt/"]
Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a fact in a host whose files are below tmp_path, inside a survey with a neighbour on each side."""
    (tmp_path / "bin").mkdir()

    def go(fact: Any, limit: str = "20") -> Any:
        command = str(fact.command()).replace("timeout 20", f"timeout {limit}")
        for name in ELSEWHERE:
            command = command.replace(name, f"{tmp_path}{name}")
        script = survey.compose(["x=1; echo before", command, 'echo "after $PWD $-${section:-}"'])
        env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
        done = subprocess.run([SHELL, "-c", script], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=60)
        parts = survey.split(done.stdout.splitlines())
        assert parts[0].lines == ("before",)
        assert parts[2].lines[0].startswith(f"after {tmp_path}")
        assert parts[1].exit_code == 0
        assert done.stderr == ""
        return fact.process(list(parts[1].lines))

    return go


def tool(tmp_path: Path, name: str, *cases: tuple[str, str], otherwise: str = "echo 'invalid option'; exit 2") -> None:
    """A stand-in that answers by its arguments; each call is noted."""
    body = "\n".join(f"  {pattern}) {action} ;;" for pattern, action in cases)
    path = tmp_path / "bin" / name
    path.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\ncase "$*" in\n{body}\n  *) {otherwise} ;;\nesac\n')
    path.chmod(0o755)


def says(text: str, status: int = 0) -> str:
    """Prints a text."""
    return f"cat <<'END'\n{text}\nEND\nexit {status}"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


# Failures, alike for all


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
@pytest.mark.parametrize(
    ("action", "state"),
    [
        (None, "tool-missing"),
        ("exit 0", "empty"),
        ("exit 3", "tool-failed"),
        ("cat; echo nonsense", "unrecognized"),
        ("echo 'No devices were found'; exit 6", "no-devices"),
        ("echo 'the driver is not loaded' >&2; exit 9", "driver-not-loaded"),
        ("echo 'x: error while loading shared libraries: liby.so: cannot open' >&2; exit 127", "library-missing"),
    ],
)
def test_a_failing_tool_is_never_an_empty_host(
    run: Run, tmp_path: Path, fact: type[VendorFact], action: str | None, state: str
) -> None:
    for name in TOOLS[fact.vendor] if action else ():
        tool(tmp_path, name, otherwise=action or "")
    answer = run(fact())
    assert (answer.vendor, answer.state, answer.chips) == (fact.vendor, state, ())


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.__name__)
def test_a_hanging_tool_is_asked_once(run: Run, tmp_path: Path, fact: type[VendorFact]) -> None:
    for name in TOOLS[fact.vendor]:
        tool(tmp_path, name, otherwise="exec sleep 30")
    assert run(fact(), limit="0.3").state == "timed-out"
    assert len(calls(tmp_path)) == len(TOOLS[fact.vendor])


@pytest.mark.parametrize("fact", [*FACTS, cpu.CpuInfo], ids=lambda fact: fact.__name__)
def test_every_call_is_bounded(fact: Any) -> None:
    command = fact().command()
    assert "timeout 20" in command
    assert "exit" not in command.replace("exit_status", "")
    assert json.dumps(fact().process([]).to_json())
    assert fact().process([]).state == "no-answer"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    "@@section query",
                    "@@section table",
                    "@@section static",
                    "@@section list",
                    "@@section cpuinfo",
                    "@@section apps",
                    "@@section card 0",
                    "@@section rocminfo",
                    "@@section nodes",
                    "@@section module",
                    "@@status 0",
                    "@@status 124",
                    "index, name, uuid",
                    "0, NVIDIA L4, GPU-1",
                    "processor : 0",
                    "0 - cpus=",
                    '{"device_list": [{"device_id": 0}]}',
                    '[{"gpu": 0, "bus": {"bdf": ":::"}}]',
                    "GPU 0: A (UUID: B)",
                    "pid, process_name, gpu_uuid",
                    "1, a, GPU-1",
                    "Agent 1",
                    "  Device Type: GPU",
                    "*** Done ***",
                ]
            ),
            st.text(max_size=30),
        ),
        max_size=30,
    )
)
def test_no_output_makes_a_fact_raise(output: list[str]) -> None:
    for fact in (*FACTS, cpu.CpuInfo):
        answer = fact().process(output)
        assert isinstance(answer.state, str)
        assert answer.state != "unreadable"
        json.dumps(answer.to_json())


# NVIDIA

QUERY = """\
index, name, uuid, pci.bus_id, memory.total [MiB], memory.used [MiB], driver_version, compute_cap, mig.mode.current
0, NVIDIA A30, GPU-a, 00000000:65:00.0, 24258 MiB, 25 MiB, 550.1, 8.0, Enabled
1, NVIDIA A30, GPU-b, 00000000:CA:00.0, 24258 MiB, 4000 MiB, 550.1, 8.0, Disabled"""
NVIDIA = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 550.1        Driver Version: 550.1        CUDA Version: 12.4     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|                               |                      |               MIG M. |
|===============================+======================+======================|
|   0  NVIDIA A30          On   | 00000000:65:00.0 Off |                   On |
| N/A   30C    P0    31W / 165W |     25MiB / 24258MiB |     N/A      Default |
|                               |                      |              Enabled |
+-------------------------------+----------------------+----------------------+
|   1  NVIDIA A30          On   | 00000000:CA:00.0 Off |                    0 |
| N/A   29C    P0    29W / 165W |   4000MiB / 24258MiB |      3%      Default |
|                               |                      |             Disabled |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| MIG devices:                                                                |
+------------------+----------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |         Memory-Usage |        Vol|         Shared        |
|      ID  ID  Dev |           BAR1-Usage | SM     Unc| CE  ENC  DEC  OFA  JPG|
|==================+======================+===========+=======================|
|  0    3   0   0  |      7MiB /  5952MiB | 14      0 |  1   0    1    0    0 |
+------------------+----------------------+-----------+-----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|        ID   ID                                                   Usage      |
|=============================================================================|
|    1   N/A  N/A       900      G   /usr/lib/xorg/Xorg                  4MiB |
|    1   N/A  N/A      7001      C   ...cut/bin/python                3990MiB |
+-----------------------------------------------------------------------------+"""
APPS = "pid, process_name, used_gpu_memory [MiB], gpu_uuid\n7001, /srv/not/cut/bin/python, 3990 MiB, GPU-b"
LIST = """\
GPU 0: NVIDIA A30 (UUID: GPU-a)
  MIG 1g.6gb      Device  0: (UUID: MIG-a0)
GPU 1: NVIDIA A30 (UUID: GPU-b)"""


def test_nvidia(run: Run, tmp_path: Path) -> None:
    tool(
        tmp_path,
        "nvidia-smi",
        ("--query-gpu*", says(QUERY)),
        ('""', says(NVIDIA)),
        ("--query-compute*", says(APPS)),
        ("-L", says(LIST)),
    )
    write(tmp_path / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1  Tue\n")
    write(tmp_path / "usr/local/cuda/version.json", '{"cuda" : {"name" : "CUDA SDK", "version" : "12.4.1"}}')
    answer = run(nvidia.NvidiaSmi())
    assert (answer.state, answer.driver_version, answer.tool_version) == ("ok", "550.1", "550.1")
    assert {key: answer.extra[key] for key in ("cuda_version", "module_version", "toolkit_version", "mig_devices")} == {
        "cuda_version": "12.4",
        "module_version": "550.1",
        "toolkit_version": "12.4.1",
        "mig_devices": 1,
    }
    first, second = answer.chips
    assert (first.extra["uuid"], first.extra["compute_capability"], first.memory_total_mb) == ("GPU-a", "8.0", 24258)
    (mig,) = first.extra["mig_devices"]
    assert (mig["profile"], mig["uuid"], mig["memory_total_mb"]) == ("1g.6gb", "MIG-a0", 5952)
    assert second.extra["util_percent"] == 3
    assert [(process.npu_id, process.pid, process.name) for process in answer.processes] == [
        (1, 900, "/usr/lib/xorg/Xorg"),
        (1, 7001, "/srv/not/cut/bin/python"),
    ]
    assert len(calls(tmp_path)) == 4


def test_an_old_nvidia_tool_refuses_newer_fields(run: Run, tmp_path: Path) -> None:
    old = "\n".join(",".join(line.split(",")[:7]) for line in QUERY.splitlines())
    refusal = says('Field "compute_cap" is not a valid field to query.', 2)
    tool(tmp_path, "nvidia-smi", ("*compute_cap*", refusal), ("--query-gpu*", says(old)), ('""', says(NVIDIA)))
    answer = run(nvidia.NvidiaSmi())
    assert (answer.state, answer.chip_count, answer.chips[1].memory_used_mb) == ("ok", 2, 4000)
    assert len(answer.processes) == 2


def test_the_table_serves_where_the_query_fails(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", ('""', says(NVIDIA)))
    answer = run(nvidia.NvidiaSmi())
    assert (answer.state, answer.chip_count, answer.chips[0].extra["mig_mode"]) == ("ok", 2, "Enabled")


def test_an_upgraded_driver_names_both_versions(run: Run, tmp_path: Path) -> None:
    said = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.1"
    tool(tmp_path, "nvidia-smi", otherwise=says(said, 18))
    write(
        tmp_path / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.9  Mon\n"
    )
    answer = run(nvidia.NvidiaSmi())
    assert (answer.state, answer.chip_count) == ("driver-library-mismatch", 0)
    assert answer.message.startswith("Failed to initialize NVML")


def test_a_damaged_inforom_is_noted(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", ("--query-gpu*", says(QUERY, 14)), ('""', says(NVIDIA, 14)))
    answer = run(nvidia.NvidiaSmi())
    assert (answer.state, answer.chip_count, answer.extra["exit_status"]) == ("ok", 2, 14)


# AMD

STATIC = json.dumps(
    {
        "gpu_data": [
            {
                "gpu": n,
                "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},
                "bus": {"bdf": f"0000:0{n}:00.0"},
                "vram": {"type": "HBM", "size": {"value": 196592, "unit": "MB"}},
                "driver": {"name": "amdgpu", "version": "6.16.6"},
            }
            for n in range(2)
        ]
    },
    indent=4,
)
METRIC = json.dumps({"gpu_data": [{"gpu": 1, "mem_usage": {"used_vram": {"value": 283, "unit": "MB"}}}]})
PROCESS = json.dumps(
    [
        {
            "gpu": 1,
            "process_list": [
                {
                    "process_info": {
                        "name": "python3",
                        "pid": 42,
                        "memory_usage": {"vram_mem": {"value": 1048576, "unit": "B"}},
                    }
                }
            ],
        }
    ]
)
ROCMINFO = """\
ROCk module is loaded
*******
Agent 1
*******
  Name:                    gfx90a
  Marketing Name:          AMD Instinct MI210
  Device Type:             GPU
*** Done ***"""


def test_amd_smi(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, "amd-smi", ("static*", says(STATIC)), ("metric*", says(METRIC)), ("process*", says(PROCESS)))
    write(tmp_path / "opt/rocm/.info/version", "7.1.0-20\n")
    answer = run(rocm.RocmSmi())
    assert (answer.state, answer.driver_version, answer.extra["rocm_version"]) == ("ok", "6.16.6", "7.1.0-20")
    assert [(chip.memory_used_mb, chip.memory_total_mb, chip.extra["gfx"]) for chip in answer.chips] == [
        (None, 196592, "gfx942"),
        (283, 196592, "gfx942"),
    ]
    assert [(process.npu_id, process.pid, process.used_mb) for process in answer.processes] == [(1, 42, 1)]


def test_rocm_smi_and_the_architecture(run: Run, tmp_path: Path) -> None:
    card = {"Card Series": "AMD Instinct MI210", "VRAM Total Memory (B)": "68702699520"}
    text = json.dumps({"card0": card, "system": {"Driver version": "6.8.5"}})
    # Its exit status is that of the last value that a card doesn't have.
    tool(tmp_path, "rocm-smi", ("*--json", says(f"WARNING: low-power state\n{text}", 2)))
    tool(tmp_path, "rocminfo", otherwise=says(ROCMINFO))
    answer = run(rocm.RocmSmi())
    assert (answer.state, answer.driver_version, answer.extra["exit_status"]) == ("ok", "6.8.5", 2)
    (chip,) = answer.chips
    assert (chip.memory_total_mb, chip.extra["gfx"]) == (65520, "gfx90a")


def test_rocminfo_alone(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, "rocminfo", otherwise=says(ROCMINFO))
    answer = run(rocm.RocmSmi())
    assert (answer.state, [chip.name for chip in answer.chips]) == ("ok", ["AMD Instinct MI210"])


def test_an_older_amd_smi_hands_over(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, "amd-smi", otherwise=says("usage: amd-smi [-h]  ...", 1))
    tool(tmp_path, "rocm-smi", ("*--json", says('{"card0": {"Card Series": "X", "GFX Version": "gfx1100"}}')))
    answer = run(rocm.RocmSmi())
    assert (answer.state, answer.chips[0].extra["gfx"]) == ("ok", "gfx1100")


# Intel, Moore Threads, MetaX


def test_xpu(run: Run, tmp_path: Path) -> None:
    listed = json.dumps(
        {"device_list": [{"device_id": n, "device_name": "Intel X", "device_type": "GPU"} for n in (0, 3)]}, indent=4
    )
    card = json.dumps(
        {
            "device_id": 3,
            "device_name": "Intel X",
            "memory_physical_size_byte": "17102532608",
            "driver_version": "I915_24.1",
        }
    )
    stats = json.dumps({"device_id": 3, "device_level": [{"metrics_type": "XPUM_STATS_MEMORY_USED", "value": 77}]})
    running = json.dumps({"device_util_by_proc_list": [{"device_id": 3, "process_id": 9, "process_name": "python3"}]})
    tool(
        tmp_path,
        "xpu-smi",
        ("'discovery -j'", says(listed)),
        ("'discovery -d 3 -j'", says(card)),
        ("'stats -d 3 -j'", says(stats)),
        ("'ps -j'", says(running)),
        ("-v", says("CLI:\n    Version: 1.2.3")),
    )
    answer = run(xpu.XpuSmi())
    assert (answer.state, answer.driver_version) == ("ok", "I915_24.1")
    assert [(chip.npu_id, chip.memory_used_mb, chip.memory_total_mb) for chip in answer.chips] == [
        (0, None, None),
        (3, 77, 16310),
    ]
    assert [(process.npu_id, process.pid, process.name) for process in answer.processes] == [(3, 9, "python3")]


def test_musa(run: Run, tmp_path: Path) -> None:
    table = (Path(__file__).parents[1] / "parsers/fixtures_other/mthreads_s4000.txt").read_text()
    query = json.dumps(
        {
            "Driver Version": "2.8.0",
            "GPU": [
                {"Index": "0", "Product Name": "MTT S4000", "GPU UUID": "u"},
                {"Index": "1", "Product Name": "MTT S4000"},
            ],
        }
    )
    tool(tmp_path, "mthreads-gmi", ("'-q -j'", says(query)), ('""', says(table)))
    answer = run(musa.MthreadsGmi())
    assert (answer.state, answer.driver_version, answer.tool_version) == ("ok", "2.8.0", "1.14.0")
    assert (answer.chips[0].extra["uuid"], answer.chips[0].memory_total_mb) == ("u", 49152)
    assert [process.pid for process in answer.processes] == [8123]
    tool(tmp_path, "mthreads-gmi", ('""', says(table)))
    assert run(musa.MthreadsGmi()).chip_count == 2


def test_maca(run: Run, tmp_path: Path) -> None:
    table = (Path(__file__).parents[1] / "parsers/fixtures_other/mx_smi_22_9.txt").read_text()
    listed = "GPU#0 MXC500 0000:0a:00.0 Available (UUID: GPU-x)\nGPU#1 MXC500 0000:0b:00.0 Available (UUID: GPU-y)"
    tool(tmp_path, "mx-smi", ('""', says(table)), ("-L", says(listed)))
    answer = run(maca.MxSmi())
    assert (answer.state, answer.driver_version, answer.extra["maca_version"]) == ("ok", "3.4.1", "3.3.0.1")
    assert [(chip.name, chip.extra["uuid"]) for chip in answer.chips] == [
        ("MetaX C500", "GPU-x"),
        ("MetaX C500", "GPU-y"),
    ]


def test_addresses_in_one_form() -> None:
    assert address("00000000:0A:00.0") == address("0000:0a:00.0") == address("0A:00.0") == "0000:0a:00.0"
    assert address(None) is None


# Processors


def test_this_host(run: Run) -> None:
    found = cpu.CpuInfo()
    done = subprocess.run([SHELL, "-c", found.command()], capture_output=True, text=True, timeout=60, check=True)
    answer = found.process(done.stdout.splitlines())
    assert (answer.state, done.stderr) == ("ok", "")
    assert answer.arch == os.uname().machine
    assert answer.threads
    assert answer.memory_mb


def test_processors(run: Run, tmp_path: Path) -> None:
    each = (
        "processor\t: {n}\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon 9999\nphysical id\t: {s}\ncore id\t: {c}\n"
        "flags\t\t: fpu avx2 avx512f amx_tile amx_bf16\n\n"
    )
    write(tmp_path / "proc/cpuinfo", "".join(each.format(n=n, s=n // 4, c=n % 2) for n in range(8)))
    write(
        tmp_path / "proc/meminfo",
        "MemTotal:       65536000 kB\nMemAvailable:   6553600 kB\nHugePages_Total:      12\n"
        "Hugepagesize:       2048 kB\n",
    )
    for node, cpus in ((0, "0-3"), (1, "4-7"), (10, "")):
        write(tmp_path / f"sys/devices/system/node/node{node}/cpulist", f"{cpus}\n")
        write(tmp_path / f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:  32768000 kB\n")
    tool(tmp_path, "lscpu", otherwise="exit 1")
    answer = run(cpu.CpuInfo())
    assert (answer.state, answer.model, answer.sockets, answer.cores, answer.threads) == ("ok", "Xeon 9999", 2, 4, 8)
    assert (answer.has_avx512, answer.has_amx) == (True, True)
    assert answer.features == ("avx2", "avx512f", "amx_tile", "amx_bf16")
    assert [(node.id, node.cpus, node.cpu_count, node.memory_mb) for node in answer.numa_nodes] == [
        (0, "0-3", 4, 32000),
        (1, "4-7", 4, 32000),
        (10, "", 0, 32000),
    ]
    assert (answer.memory_mb, answer.memory_available_mb, answer.huge_pages, answer.huge_page_kb) == (
        64000,
        6400,
        12,
        2048,
    )


def test_an_arm_host_is_named_by_lscpu(run: Run, tmp_path: Path) -> None:
    write(
        tmp_path / "proc/cpuinfo",
        "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU implementer\t: 0x48\n\nprocessor\t: 1\n",
    )
    tool(
        tmp_path,
        "lscpu",
        otherwise=says(
            "Architecture: aarch64\nCPU(s): 2\nVendor ID: HiSilicon\n"
            "Model name: Kunpeng-920\nSocket(s): 1\nCore(s) per socket: 2"
        ),
    )
    answer = run(cpu.CpuInfo())
    assert (answer.vendor, answer.model, answer.sockets, answer.cores) == ("HiSilicon", "Kunpeng-920", 1, 2)
    assert (answer.threads, answer.features) == (2, ("asimd", "asimddp"))


def test_a_host_without_proc(run: Run, tmp_path: Path) -> None:
    tool(tmp_path, "lscpu", otherwise="exit 1")
    assert run(cpu.CpuInfo()).state == "unreadable"
