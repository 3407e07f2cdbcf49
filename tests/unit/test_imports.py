"""What starts with every command is little: imports are counted, since a run of nothing is mostly imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
# Beside what pyinfra itself brings: the playbook's model, the table of failures (rich, at home here), our packages.
OURS = {
    "annotated_types",
    "facts",
    "lmcache_fleet",
    "operations",
    "pydantic",
    "pydantic_core",
    "rich",
    "typing_inspection",
}
# Needed by some runs only: whoever needs them imports them.
LATER = {
    "lmcache_fleet.rollout",
    "lmcache_fleet.reporters",
    "lmcache_fleet.preflight",
    "lmcache_fleet.fleet_report",
    "lmcache_fleet.cross_host",
    "facts.nvidia",
    "facts.rocm",
    "facts.npu_smi",
    "facts.ascend",
}


def imported(program: str) -> set[str]:
    """The modules that a fresh interpreter holds after a program."""
    show = f"{program}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", show], cwd=REPO, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def third_party(modules: set[str]) -> set[str]:
    """Their top level names, without the standard library's and the interpreter's own."""
    return {name.partition(".")[0] for name in modules if not name.startswith("_")} - sys.stdlib_module_names


def test_the_command_line_imports_click_and_nothing_else_until_a_command_runs() -> None:
    found = imported("import lmcache_fleet.cli")
    assert third_party(found) - third_party(imported("pass")) == {"click", "lmcache_fleet"}


def test_a_deploy_imports_no_more_than_its_playbook_needs() -> None:
    found = imported("import pyinfra_cli.main, operations.playbook")
    pyinfra = third_party(imported("import pyinfra_cli.main"))
    assert third_party(found) - pyinfra == OURS - pyinfra
    assert not found & LATER
