"""Whether a host can run a playbook: each requirement, met, unmet and unknown."""

# ruff: noqa: E501 - tables of cases, one a line
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version

from lmcache_fleet.accelerators import Accelerators, Chip
from lmcache_fleet.playbook.model import Requirements
from lmcache_fleet.requirements import Observed, shortfalls
from lmcache_fleet.runtimes import Runtime


def chip(number: int, health: str | None = "OK", name: str = "910B3") -> Chip:
    return Chip(number, 0, name, health, None, "HBM", None, None)


NPUS = Accelerators("ascend", "ok", chips=(chip(0), chip(1)))
HOST = Observed(
    arch="aarch64", glibc="2.36", pythons=("3.11.7", "3.12.1"), memory_gb=64, disk_free_gb=100, accelerators=NPUS,
    soc="Ascend910B3", toolkit=Version("9.1.0"), driver=Version("25.0"),
)  # fmt: skip


def unmet(requires: dict[str, Any], **observed: Any) -> list[str]:
    found = shortfalls(Requirements.model_validate(requires), replace(HOST, **observed))
    assert all(item.cause and item.remedy for item in found)
    return [f"{item.what}: {item.cause}" for item in found]


FULL: dict[str, Any] = {
    "architectures": ["aarch64"], "accelerator": {"vendor": "ascend", "soc": ["Ascend910B*"], "health": "OK", "count": 2},
    "cann": ">=9.1,<9.2", "driver": ">=24.1", "python": ">=3.10,<3.13", "glibc": ">=2.34", "disk_free_gb": 20,
    "memory_gb": 7,
}  # fmt: skip


def test_a_host_that_has_all_lacks_nothing_and_nothing_is_wanted_of_an_empty_list() -> None:
    assert unmet(FULL) == []
    assert shortfalls(Requirements(), Observed()) == []


def test_of_a_host_that_told_nothing_all_is_lacking_but_the_interpreter() -> None:
    found = shortfalls(Requirements.model_validate(FULL), Observed())
    assert [item.what for item in found] == [
        "architecture", "ascend accelerator", "CANN", "driver", "glibc", "free disk", "memory",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("requires", "observed", "expected"),
    [
        ({"architectures": ["x86_64"]}, {}, "architecture: the host is aarch64, wanted x86_64"),
        ({"cann": ">=9.2"}, {}, "CANN: found 9.1.0, wanted >=9.2"),
        ({"cann": ">=9.1"}, {"toolkit": None}, "CANN: no version found, wanted >=9.1"),
        ({"driver": "<25"}, {}, "driver: found 25.0, wanted <25"),
        ({"glibc": ">=2.37"}, {}, "glibc: found 2.36, wanted >=2.37"),
        ({"glibc": ">=2.9"}, {"glibc": "garbage"}, "glibc: no version found, wanted >=2.9"),
        ({"python": ">=3.13"}, {}, "python: found 3.11.7, 3.12.1, wanted >=3.13"),
        ({"disk_free_gb": 100.5}, {}, "free disk: 100 GiB, wanted 100.5"),
        ({"memory_gb": 7}, {"memory_gb": None}, "memory: unknown GiB, wanted 7"),
        ({"memory_gb": 1}, {"memory_gb": 0}, "memory: 0 GiB, wanted 1"),
        ({"accelerator": {"vendor": "ascend", "soc": ["Ascend310*", "x"]}}, {}, "SoC: the SoC is Ascend910B3, wanted Ascend310* or x"),
        ({"accelerator": {"vendor": "ascend", "soc": ["ascend910b*"]}}, {}, "SoC: the SoC is Ascend910B3"),
        ({"accelerator": {"vendor": "ascend", "count": 3}}, {}, "chips: 2 chips, wanted 3"),
        ({"accelerator": {"vendor": "ascend"}}, {"accelerators": Accelerators("ascend", "ok")}, "chips: 0 chips, wanted 1"),
        ({"accelerator": {"vendor": "ascend"}}, {"accelerators": None}, "ascend accelerator: nothing was read"),
        (
            {"accelerator": {"vendor": "ascend", "health": "OK"}},
            {"accelerators": Accelerators("ascend", "ok", chips=(chip(0), chip(4, "Alarm"), chip(5, None)))},
            "health: chip 4: Alarm, chip 5: unknown",
        ),
        (
            {"accelerator": {"vendor": "cuda"}},
            {"accelerators": Accelerators("cuda", "tool-missing", "nvidia-smi: not found")},
            "cuda accelerator: tool-missing: nvidia-smi: not found",
        ),
    ],
)  # fmt: skip
def test_one_shortfall(requires: dict[str, Any], observed: dict[str, Any], expected: str) -> None:
    (found,) = unmet(requires, **observed)
    assert found.startswith(expected)


def test_versions_are_compared_as_versions() -> None:
    assert unmet({"glibc": ">=2.9"}) == []
    assert unmet({"cann": ">=9.1,<9.2"}, toolkit=Version("9.1.rc1")) != []
    assert unmet({"cann": ">=9.0"}, toolkit=Version("9.1.rc1")) == []


def test_a_playbook_for_cpus_asks_for_no_accelerator() -> None:
    assert unmet({"accelerator": {"vendor": "cpu"}}, accelerators=None) == []


def test_a_chips_own_name_serves_where_no_soc_is_known() -> None:
    assert unmet({"accelerator": {"vendor": "ascend", "soc": ["910B*"]}}, soc=None) == []


def test_an_interpreter_whose_version_is_odd_is_no_trace() -> None:
    assert unmet({"python": ">=3.10"}, pythons=("3.13.0+", "3.12.1")) == []
    assert unmet({"python": ">=3.13"}, pythons=("3.13.0+",)) == []
    assert unmet({"python": ">=3.10"}, pythons=("unknown",)) != []


def nvidia(*capabilities: str | None, cuda: str | None = "13.0") -> Accelerators:
    chips = tuple(
        Chip(number, None, "NVIDIA card", None, None, "VRAM", None, None, extra={"compute_capability": value})
        for number, value in enumerate(capabilities)
    )
    return Accelerators("cuda", "ok", chips=chips, extra={"cuda_version": cuda} if cuda else {})


def instinct(*names: str) -> Accelerators:
    return Accelerators(
        "rocm",
        "ok",
        chips=tuple(Chip(n, None, "x", None, None, "VRAM", 0, 0, extra={"gfx": g}) for n, g in enumerate(names)),
    )


@pytest.mark.parametrize(
    ("requires", "observed", "expected"),
    [
        ({"accelerator": {"vendor": "cuda", "compute_capability": ">=7.0"}}, {"accelerators": nvidia("9.0", "7.0")}, []),
        (
            {"accelerator": {"vendor": "cuda", "compute_capability": ">=7.0"}}, {"accelerators": nvidia("9.0", "6.1")},
            ["compute capability: card 1 (NVIDIA card): 6.1, wanted >=7.0"],
        ),
        (
            {"accelerator": {"vendor": "cuda", "compute_capability": ">=7.0"}}, {"accelerators": nvidia(None)},
            ["compute capability: card 0 (NVIDIA card): unknown, wanted >=7.0"],
        ),
        ({"cuda": ">=12.9"}, {"accelerators": nvidia("9.0", cuda="12.9")}, []),
        ({"cuda": ">=13.0"}, {"accelerators": nvidia("9.0", cuda="12.9")}, ["CUDA of the driver: found 12.9, wanted >=13.0"]),
        ({"cuda": ">=13.0"}, {"accelerators": nvidia("9.0", cuda=None)}, ["CUDA of the driver: no version found, wanted >=13.0"]),
        ({"toolkit": "==7.2.*"}, {"toolkit": Version("7.2.4-43")}, []),
        ({"toolkit": "==7.2.4.*"}, {"toolkit": Version("7.2.3")}, ["toolkit: found 7.2.3, wanted ==7.2.4.*"]),
        (
            {"accelerator": {"vendor": "rocm", "soc": ["gfx942", "gfx950"]}},
            {"accelerators": instinct("gfx942", "gfx90a"), "soc": "gfx942"},
            ["SoC: the SoC is gfx90a, wanted gfx942 or gfx950"],
        ),
        (
            {"runtime": {"torch": "2.12.0+xpu"}}, {"runtime": Runtime("/p", "3.12.1", torch="2.12.0")},
            ["runtime: torch is 2.12.0, wanted 2.12.0+xpu"],
        ),
        ({"runtime": {"torch": "2.12.0+xpu"}}, {}, ["runtime: no interpreter of the wanted version answered"]),
    ],
)  # fmt: skip
def test_of_the_other_systems(requires: dict[str, Any], observed: dict[str, Any], expected: list[str]) -> None:
    assert unmet(requires, **observed) == expected


def test_an_accelerator_that_does_not_answer_is_said_once() -> None:
    missing = Accelerators("cuda", "tool-missing", "nvidia-smi: not found")
    requires = {"accelerator": {"vendor": "cuda", "compute_capability": ">=7.0"}, "cuda": ">=13.0", "toolkit": ">=1"}
    assert unmet(requires, accelerators=missing) == ["cuda accelerator: tool-missing: nvidia-smi: not found"]


ASCEND = {"vendor": "ascend", "soc": ["Ascend910B*"], "experimental": ["Ascend310P*"], "health": "OK"}


@pytest.mark.parametrize(
    ("more", "observed", "expected"),
    [
        ({}, {"soc": "Ascend310P3"}, ["SoC: Ascend310P3 is experimental in this playbook"]),
        ({"allow_experimental": True}, {"soc": "Ascend310P3"}, []),
        ({"allow_experimental": True}, {"soc": "Ascend910A"}, ["SoC: the SoC is Ascend910A, wanted Ascend910B*"]),
        ({}, {"accelerators": Accelerators("ascend", "tool-missing")}, ["ascend accelerator: tool-missing: "]),
        ({"optional": True}, {"accelerators": Accelerators("ascend", "tool-missing"), "soc": None}, []),
        (
            {"optional": True},
            {"accelerators": Accelerators("ascend", "device-in-use")},
            ["ascend accelerator: device-in-use: "],
        ),
        # A builder that does have cards is judged like any other host.
        ({"optional": True}, {"soc": "Ascend910A"}, ["SoC: the SoC is Ascend910A, wanted Ascend910B*"]),
    ],
)
def test_experimental_socs_and_hosts_that_need_no_card(
    more: dict[str, Any], observed: dict[str, Any], expected: list[str]
) -> None:
    assert unmet({"accelerator": {**ASCEND, **more}}, **observed) == expected
