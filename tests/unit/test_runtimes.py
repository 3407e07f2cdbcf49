"""The stack that a vendor's wheel is linked against: read without importing it, and held against what is wanted."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts.runtimes import Runtimes
from lmcache_fleet.playbook.model import RuntimeRequirement
from lmcache_fleet.runtimes import Runtime, parse_runtimes, runtime_gaps

AMD = Runtime(
    path="/opt/venv/bin/python", version="3.12.3", torch="2.10.0+rocm7.2.4.git3d3aa833", hip="7.2.53211-1234abcd",
    cxx11_abi=True, distributions={"torch_musa": "2.7.0"},
)  # fmt: skip
TUPLE = {
    "torch": "2.10.0+rocm7.2.4.git3d3aa833",
    "hip": "7.2.53211*",
    "cxx11_abi": True,
    "wheel_tag": "cp312-cp312-manylinux_2_39_x86_64",
}


def gaps(wanted: dict[str, Any], runtime: Runtime | None, glibc: str = "2.39", arch: str = "x86_64") -> list[str]:
    return runtime_gaps(RuntimeRequirement.model_validate(wanted), runtime, glibc, arch)


def test_the_exact_tuple_is_accepted() -> None:
    assert gaps(TUPLE, AMD) == []
    assert gaps(TUPLE, AMD, glibc="2.41") == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"torch": "2.10.0+rocm7.2.3.git3d3aa833"}, "torch is 2.10.0+rocm7.2.3.git3d3aa833"),
        ({"torch": "2.11.0+rocm7.2"}, "torch is 2.11.0+rocm7.2"),
        ({"torch": None}, "torch is not there"),
        ({"hip": "7.2.99999"}, "HIP is 7.2.99999"),
        ({"cxx11_abi": False}, "torch's C++ ABI is 0, wanted 1"),
        ({"cxx11_abi": None}, "torch's C++ ABI is unknown"),
        ({"version": "3.13.1"}, "can't be installed (Python 3.13.1"),
    ],
)
def test_each_part_of_the_tuple_must_be_equal(change: dict[str, Any], said: str) -> None:
    (gap,) = gaps(TUPLE, replace(AMD, **change))
    assert said in gap


def test_the_platform_must_be_able_to_install_the_wheel() -> None:
    assert "glibc 2.36" in gaps(TUPLE, AMD, glibc="2.36")[0]
    assert "aarch64" in gaps(TUPLE, AMD, arch="aarch64")[0]


def test_no_interpreter_is_said_once() -> None:
    assert gaps(TUPLE, None) == ["no interpreter of the wanted version answered"]


def test_vendor_distributions_must_be_there() -> None:
    assert gaps({"distributions": {"torch_musa": ""}}, AMD) == []
    assert gaps({"distributions": {"torch_musa": ">=3"}}, AMD) == ["torch_musa is 2.7.0, wanted >=3"]
    assert gaps({"distributions": {"musa_aiter": ""}}, AMD) == ["musa_aiter is not there"]


def make_torch(folder: Path, version: str, symbol: bytes) -> None:
    torch = folder / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "__init__.py").write_text("raise SystemExit('it was imported')\n")
    (torch / "version.py").write_text(
        f"from typing import Optional\n__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = None\n"
        "hip: Optional[str] = '7.2.53211-a'\nrocm: Optional[str] = None\nxpu: Optional[str] = None\n"
    )
    (torch / "lib/libc10.so").write_bytes(b"\x7fELF..." + symbol + b"\0...")


@pytest.mark.parametrize(
    ("symbol", "abi"),
    [
        (b"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", True),
        (b"_ZN3c105ErrorC1ENS_14SourceLocationESs", False),
        (b"nothing", None),
    ],
)
def test_the_fact_reads_torch_without_importing_it(tmp_path: Path, symbol: bytes, abi: bool | None) -> None:
    make_torch(tmp_path, "2.10.0+rocm7.2.4.git3d3aa833", symbol)
    info = tmp_path / "torch_musa-2.7.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_musa\nVersion: 2.7.0\n")
    fact = Runtimes()
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    command = fact.command(minor=minor, also=(sys.executable, "/no/such"), distributions=("torch_musa", "absent"))
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    runtime = fact.process(done.stdout.splitlines())[0]
    assert runtime.path == sys.executable
    assert (runtime.torch, runtime.hip, runtime.xpu) == ("2.10.0+rocm7.2.4.git3d3aa833", "7.2.53211-a", None)
    assert runtime.cxx11_abi is abi
    assert runtime.distributions == {"torch_musa": "2.7.0"}
    assert done.stderr == ""


def test_an_interpreter_without_torch_says_so() -> None:
    fact = Runtimes()
    done = subprocess.run(
        ["sh", "-c", fact.command(minor="3.99", also=("/usr/bin/python3",))], capture_output=True, text=True, check=True
    )
    for runtime in fact.process(done.stdout.splitlines()):
        assert runtime.torch is None or runtime.torch[0].isdigit()


@given(st.lists(st.one_of(st.text(), st.just(json.dumps({"path": 1})), st.just("[]"), st.just("null"))))
def test_no_text_breaks_the_parser(lines: list[str]) -> None:
    assert parse_runtimes(lines) == []
