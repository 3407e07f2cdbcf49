"""The exported schema admits our own playbooks' steps, and the written reference is the model's."""

from __future__ import annotations

from pathlib import Path

from lmcache_fleet.playbook.model import STEP_KINDS
from lmcache_fleet.playbook.schema import playbook_schema, reference

ROOT = Path(__file__).resolve().parents[2]


def test_every_step_kind_is_offered_as_people_write_it() -> None:
    offered = playbook_schema()["properties"]["steps"]["items"]["oneOf"]
    assert [next(iter(item["properties"])) for item in offered] == list(STEP_KINDS)
    for kind, model in STEP_KINDS.items():
        assert "kind" not in playbook_schema()["$defs"][model.__name__]["properties"], kind


def test_reference_is_up_to_date() -> None:
    written = (ROOT / "docs" / "playbook.md").read_text(encoding="utf-8")
    assert written.strip() == reference().strip(), "run: lmcache-fleet schema --markdown > docs/playbook.md"
