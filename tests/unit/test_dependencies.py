"""Conflicts of installed distributions: those that a playbook expects, and all others."""

# ruff: noqa: E501 - tables of cases, one a line
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lmcache_fleet.dependencies import (
    PROGRAM,
    Conflict,
    Installed,
    checked_digest,
    conflicts,
    expected_conflicts,
    read_installed,
    unexpected,
)
from lmcache_fleet.installer import marker_environment
from lmcache_fleet.playbook.model import PackagesStep, Playbook, VenvStep
from lmcache_fleet.shell import program_source

HERE = marker_environment("aarch64", "3.12.4")


def found(**requires: list[str]) -> list[str]:
    versions = {"torch": "2.10.0+cpu", "numpy": "2.2.6", "triton-ascend": "3.2.2", "odd": "not a version"}
    installed = {name: Installed(version) for name, version in versions.items()}
    installed |= {name: Installed("1.0", tuple(lines)) for name, lines in requires.items()}
    return [str(conflict) for conflict in conflicts(installed, HERE)]


@pytest.mark.parametrize(
    ("line", "conflict"),
    [
        ("torch==2.11.0", "a wants torch==2.11.0, 2.10.0+cpu is installed"),
        ("torch==2.10.0", None),
        ("Torch>=2", None),
        ("numpy<2.2", "a wants numpy<2.2, 2.2.6 is installed"),
        ("cupy-cuda12x", "a wants cupy-cuda12x, nothing is installed"),
        ("Triton_Ascend==3.2.2", None),
        ("gone ; python_version < '3.10'", None),
        ("gone ; python_version >= '3.10'", "a wants gone, nothing is installed"),
        ("gone ; platform_machine == 'x86_64'", None),
        ("gone ; platform_machine == 'aarch64'", "a wants gone, nothing is installed"),
        ("gone ; extra == 'dev'", None),
        ("odd>1", "a wants odd>1, not a version is installed"),
        ("this is nothing(", "a wants this is nothing(, nothing is installed"),
    ],
)
def test_a_requirement_is_met_or_named(line: str, conflict: str | None) -> None:
    assert found(a=[line]) == ([conflict] if conflict else [])


def test_our_answer_is_that_of_pip_check(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name, version, requires in (("aa", "1.0", ["bb==2", "cc"]), ("bb", "1.0", []), ("dd", "1.0", ["bb>=1"])):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
            *(f"Requires-Dist: {line}" for line in requires),
        ]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
    seen = json.loads(
        subprocess.run(
            [sys.executable, "-S", "-c", program_source(PROGRAM)], env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True, cwd=tmp_path,
        ).stdout
    )  # fmt: skip
    ours = conflicts(read_installed(seen), HERE)
    assert [(item.package, item.requirement, item.found) for item in ours] == [
        ("aa", "bb==2", "1.0"),
        ("aa", "cc", None),
    ]
    uv = str(Path(sys.executable).parent / "uv")
    subprocess.run([uv, "venv", "--quiet", "--no-config", "--python", sys.executable, str(tmp_path / "v")], check=True)
    for folder in site.iterdir():
        target = next((tmp_path / "v").glob("lib/python3*/site-packages")) / folder.name
        folder.rename(target)
        (target / "RECORD").write_text("")
        (target / "INSTALLER").write_text("uv")
    theirs = subprocess.run(
        [uv, "pip", "check", "--no-config", "--python", str(tmp_path / "v")],
        capture_output=True,
        text=True,
        check=False,
    )
    # uv also minds records that these few files haven't got; of requirements it says the same.
    told = [line for line in theirs.stderr.splitlines() if "requires" in line]
    assert len(told) == 2, theirs.stderr
    assert "`aa` requires `bb==2`" in told[0]
    assert "`aa` requires `cc`" in told[1]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("vllm: torch*", True),
        ("vllm: torch", True),
        ("*: torch", True),
        ("vllm: triton", False),
        ("vllm-ascend: torch", False),
        ("lmcache:*", False),
    ],
)
def test_an_expected_conflict_is_named_by_who_and_whom(pattern: str, expected: bool) -> None:
    conflict = Conflict("vllm", "torch==2.11.0", "2.10.0")
    assert unexpected([conflict], [pattern]) == ([] if expected else [conflict])


@pytest.mark.parametrize("text", ["vllm", "vllm torch", ": torch", "vllm:", "VLLM: torch", "a: b: c", "a: b\n"])
def test_a_pattern_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="who: whom"):
        VenvStep.model_validate({"python": "3.12", "expected_conflicts": [text]})


def test_what_a_step_overrides_is_expected_and_without_a_list_nothing_is_judged() -> None:
    step = PackagesStep(name="p", pins=["a==1"], overrides=["Torch==2", "torch_audio ; sys_platform == 'never'"])
    for listed, expected in ((None, None), (["x: y"], ["x: y", "*: torch", "*: torch-audio"])):
        venv = VenvStep(python="3.12", expected_conflicts=listed)
        assert expected_conflicts(Playbook.model_construct(steps=[venv, step])) == expected


def test_a_record_is_of_these_versions_and_these_expectations() -> None:
    first = checked_digest({"a": ["1"], "b": ["2"]}, ["x: y"])
    assert first == checked_digest({"b": ["2"], "a": ["1"]}, ["x: y"])
    assert first != checked_digest({"a": ["1"], "b": ["3"]}, ["x: y"])
    assert first != checked_digest({"a": ["1"], "b": ["2"]}, [])


NAMES = st.sampled_from(["a", "b", "c"])
LINES = st.builds(
    lambda n, o, v: f"{n}{o}{v}", NAMES, st.sampled_from(["==", ">=", "<", "!="]), st.sampled_from(["1", "2.0", "3rc1"])
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        NAMES, st.builds(Installed, st.sampled_from(["1", "2.0", "3rc1"]), st.lists(LINES, max_size=3).map(tuple))
    )
)
def test_expecting_everything_leaves_nothing_and_expecting_nothing_leaves_all(installed: dict[str, Installed]) -> None:
    all_of_them = conflicts(installed, HERE)
    assert unexpected(all_of_them, ["*: *"]) == []
    assert unexpected(all_of_them, []) == all_of_them
