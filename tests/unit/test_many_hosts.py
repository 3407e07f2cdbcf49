"""What is the same for all hosts of a fleet is worked out once, however many they are."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
from pyinfra.api import Inventory
from pyinfra.api import inventory as inventory_module

from lmcache_fleet import compatibility
from lmcache_fleet.playbook.load import check_document, read_playbook
from lmcache_fleet.repository import ROOT
from lmcache_fleet.requirements import Observed
from operations.transport import prepare_pyinfra


def test_rules_about_a_playbook_are_judged_once_for_all_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    playbook = check_document(read_playbook(ROOT / "playbooks/rocm.yaml"))
    judged: list[str] = []
    fires = compatibility._fires

    def counted(rule: compatibility.Rule, of: Any) -> bool:
        judged.append(rule.id)
        return fires(rule, of)

    monkeypatch.setattr(compatibility, "_fires", counted)
    for _ in range(50):
        compatibility.findings(playbook, Observed(arch="x86_64"))
    assert len(judged) == len(set(judged)) > 20


def test_installed_distributions_are_not_read_anew_for_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_pyinfra()
    Inventory((["@fake/warm"], {}))
    reads: list[str] = []
    entry_points = importlib.metadata.entry_points

    def counted(**wanted: Any) -> Any:
        reads.append(wanted["group"])
        return entry_points(**wanted)

    monkeypatch.setattr("pyinfra.api.connectors.entry_points", counted)
    Inventory(([f"@fake/n{number}" for number in range(50)], {}))
    assert len(reads) <= 1, "once an inventory, for what executes"
    assert set(inventory_module.get_all_connectors()) >= {"ssh", "local", "fake"}
