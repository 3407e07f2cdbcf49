"""What an installer left is held against what was wanted, in the release's own Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmcache_fleet.failures import explain
from lmcache_fleet.installer import package_changes
from lmcache_fleet.playbook.model import PackagesStep
from lmcache_fleet.release import ReleaseState
from lmcache_fleet.shell import PROGRAMS, run_program


def check(tmp_path: Path, installed: dict[str, str] | None = None, imports: list[str] | None = None) -> list[str]:
    request = {"installed": installed or {}, "imports": imports or []}
    done = subprocess.run(
        ["sh", "-c", run_program("check_installed.py", request, sys.executable)],
        capture_output=True, text=True, check=False, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert bool(done.stderr) == bool(done.returncode)
    return done.stderr.splitlines()


def dist(tmp_path: Path, name: str, version: str) -> None:
    info = tmp_path / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_builds_and_modules_that_are_right(tmp_path: Path) -> None:
    dist(tmp_path, "torch", "2.11.0+cu129")
    (tmp_path / "kernels.py").write_text("")
    assert check(tmp_path, {"torch": "*+cu129"}, ["kernels"]) == []


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0+cu130"])
def test_another_build_is_refused_and_explained_and_nothing_of_it_loaded(tmp_path: Path, version: str) -> None:
    dist(tmp_path, "torch", version)
    said = check(tmp_path, {"torch": "*+cu129"}, ["no_such_module"])
    assert said == [f"wrong build: torch is {version}, wanted *+cu129"]
    cause, remedy = explain(said)
    assert "another build" in cause
    assert "index_strategy" in remedy


def test_a_module_that_does_not_load_is_said_with_the_loaders_words(tmp_path: Path) -> None:
    symbol = "_ZN3c105ErrorC1ENS_14SourceLocationESs"
    (tmp_path / "cuda_ops.py").write_text(f"raise ImportError('cuda_ops.so: undefined symbol: {symbol}')")
    said = check(tmp_path, {}, ["cuda_ops", "absent"])
    assert said[0] == f"import cuda_ops: ImportError: cuda_ops.so: undefined symbol: {symbol}"
    assert said[1].startswith("import absent: ModuleNotFoundError")
    assert "another torch" in explain(said)[0]
    assert check(tmp_path, {"gone": "*"}) == ["gone is not installed, wanted *"]


@pytest.mark.parametrize(
    ("installed", "wanted"),
    [(["2.11.0"], True), (["2.11.0+cu129"], False), ([], True), (["2.11.0", "2.11.0+cu129"], True)],
)
def test_drift_to_another_build_of_the_same_version_is_a_change(installed: list[str], wanted: bool) -> None:
    fields: dict[str, Any] = {"name": "p", "pins": ["a==1"], "installed": {"Torch": "*+cu129"}}
    state = ReleaseState("r", distributions={"a": ["1"], **({"torch": installed} if installed else {})})
    changes = package_changes(PackagesStep.model_validate(fields), state)
    assert bool(changes) == wanted
    assert not changes or "another build" in str(changes[0])


def test_the_program_needs_nothing_but_the_standard_library() -> None:
    text = (PROGRAMS / "check_installed.py").read_text()
    assert "import lmcache_fleet" not in text
