"""pip out of the wheel that Python keeps, in a real environment without pip."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from lab.packages.wheel import write_wheel
from lmcache_fleet.repository import ROOT
from lmcache_fleet.shell import program_source

PROGRAM = ROOT / "templates/programs/bundled_pip.py"


def test_it_installs_into_an_environment_without_pip(tmp_path: Path) -> None:
    made = write_wheel(tmp_path / "wheels", "tool", "1.0", {"tool.py": b"NAME = 'tool'\n"}, summary="Lab stand-in")
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    command = [python, "-I", "-c", program_source("bundled_pip.py"), "install", "--quiet", "--no-index"]
    asked = [*command, "--no-compile", "--find-links", str(made.parent)]
    subprocess.run([*asked, "tool==1.0"], check=True, timeout=120)
    shown = subprocess.run([python, "-c", "import tool; print(tool.NAME)"], capture_output=True, text=True, check=True)
    assert shown.stdout == "tool\n"
    assert importlib.util.find_spec("tool") is None, "into that environment, and no other"
    assert not list(environment.glob("lib/*/site-packages/pip*"))
    refused = subprocess.run([*asked, "tool==2.0"], capture_output=True, text=True, check=False, timeout=120)
    assert refused.returncode != 0
    assert "No matching distribution found for tool==2.0" in refused.stderr


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        ([], None),
        (["setuptools-66.1.1-py3-none-any.whl"], None),
        (["pip-9.0.1-py3-none-any.whl", "pip-23.0.1-py3-none-any.whl"], "pip-23.0.1-py3-none-any.whl"),
        (["pip-24.0-py3-none-any.whl", "pip-24.0.1-py3-none-any.whl"], "pip-24.0.1-py3-none-any.whl"),
        (["pip-26.0.dev0-py3-none-any.whl", "pip-25.3-py3-none-any.whl"], "pip-26.0.dev0-py3-none-any.whl"),
    ],
)
def test_the_newest_wheel_is_taken(tmp_path: Path, names: list[str], taken: str | None) -> None:
    spec = importlib.util.spec_from_file_location("bundled_pip", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    for name in names:
        (tmp_path / name).touch()
    found = program.bundled([None, str(tmp_path), str(tmp_path / "nowhere")])
    assert found == (str(tmp_path / taken) if taken else None)
