"""Evidence counts for its own release, driver and settings; off-line evidence only once it sealed the release."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lmcache_fleet.inventory import HostSettings
from lmcache_fleet.judge import Wanted, evidence_change, evidence_subject
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.load import check_document, read_playbook
from lmcache_fleet.playbook.model import VerifyStep
from lmcache_fleet.release import HostKey, ReleaseState
from operations.playbook import _calls

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = check_document(read_playbook(ROOT / "playbooks/ascend.yaml"))
OFFLINE, ONLINE = PLAYBOOK.of_kind(VerifyStep)
WANTED = Wanted(PLAYBOOK, Layout("/p"), HostKey("x86_64", "debian", "12", "2.36"), None, {}, driver="25.5.1")


def proved(step: VerifyStep, **values: Any) -> ReleaseState:
    evidence = {"ok": True, "subject": evidence_subject(step, WANTED, "r")}
    return replace(ReleaseState("r", sealed=True, evidence={step.stage: evidence}), **values)


@pytest.mark.parametrize("step", [OFFLINE, ONLINE], ids=lambda step: step.stage)
def test_evidence_of_this_very_release_is_enough(step: VerifyStep) -> None:
    assert evidence_change(step, WANTED, proved(step)) == []
    assert evidence_change(step, WANTED, ReleaseState("r")) != []


def test_a_run_cut_off_between_proof_and_seal_proves_again() -> None:
    assert evidence_change(OFFLINE, WANTED, proved(OFFLINE, sealed=False)) != []
    assert evidence_change(ONLINE, WANTED, proved(ONLINE, sealed=False)) == []


def test_another_driver_release_or_setting_needs_another_proof() -> None:
    (change,) = evidence_change(ONLINE, replace(WANTED, driver="26.0.0"), proved(ONLINE))
    assert "25.5.1" in str(change)
    assert evidence_change(ONLINE, WANTED, proved(ONLINE, name="r2")) != []
    other = ONLINE.model_copy(update={"options": {"chunk_size": 1}})
    assert evidence_change(other, WANTED, proved(ONLINE)) != []


def test_evidence_that_failed_is_none() -> None:
    state = ReleaseState("r", sealed=True, evidence={"online": {"ok": False}})
    (change,) = evidence_change(ONLINE, WANTED, state)
    assert "failed" in str(change)


def names(steps: list[Any]) -> list[str]:
    playbook = PLAYBOOK.model_copy(update={"steps": steps})
    nobody = cast(Any, SimpleNamespace())
    return [name.split(" ", 1)[1] for name, _ in _calls(nobody, nobody, playbook, HostSettings())]


def test_account_and_files_come_once_before_whatever_needs_them() -> None:
    order = names(PLAYBOOK.steps)
    assert order.count("account") == order.count("service files") == 1
    assert (
        order.index("account") < order.index("service files") < order.index("verify offline") < order.index("service")
    )
    bare = names([step for step in PLAYBOOK.steps if not isinstance(step, VerifyStep)])
    assert bare.index("account") < bare.index("service files") < bare.index("service")
    assert order[-1] == bare[-1] == "retention"
