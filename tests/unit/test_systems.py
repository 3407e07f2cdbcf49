"""The page of systems is current, and speaks of playbooks that are there."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from lmcache_fleet.cli import main
from lmcache_fleet.systems import markdown, systems

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current() -> None:
    assert (ROOT / "docs/systems.md").read_text(encoding="utf-8") == markdown() + "\n"


def test_each_system_has_a_playbook_of_that_name_and_a_deploy() -> None:
    for system in systems():
        playbook = (ROOT / f"playbooks/{system.playbook}.yaml").read_text(encoding="utf-8")
        assert f"\nname: {system.playbook}\n" in playbook
        deploy = (ROOT / f"deploys/{system.playbook}.py").read_text(encoding="utf-8")
        assert f'apply_playbook("playbooks/{system.playbook}.yaml")' in deploy


def test_what_is_said_to_be_tested_is_named_by_that_test() -> None:
    files = {
        "resolution": ["tests/real/test_channels.py"],
        "index": ["tests/real/test_cli_alone.py", "tests/real/test_server_alone.py"],
        "lab": ["tests/lab/test_systems.py", "tests/lab/test_containers.py", "tests/lab/test_server.py"],
    }
    for system in systems():
        for how in system.tested:
            text = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files[how])
            named = (f'"{system.playbook}"', f"deploys/{system.playbook}.py")
            assert any(name in text for name in named), (system.playbook, files[how])


def test_the_command_line_lists_them() -> None:
    run = CliRunner().invoke(main, ["systems"])
    assert run.exit_code == 0
    assert [line.split("\t")[0] for line in run.output.splitlines()] == [system.playbook for system in systems()]
    assert len(json.loads(CliRunner().invoke(main, ["systems", "--json"]).output)) == len(systems())
