"""The shared second tier: the store's unit and access list, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from facts.units import Unit
from lmcache_fleet.digest import text_digest
from lmcache_fleet.kv_store import ACL, UNIT, acl_text, changes, packaged_unit, unit_text
from lmcache_fleet.playbook.load import check_document, read_playbook
from lmcache_fleet.playbook.model import KvStoreStep, MpServer
from lmcache_fleet.problems import InputError
from lmcache_fleet.repository import ROOT
from lmcache_fleet.units import unit_digest

STEP: dict[str, Any] = {"bind": ["192.0.2.5"], "max_memory_gb": 2, "password": "KV"}


def step(**more: Any) -> KvStoreStep:
    return KvStoreStep.model_validate({**STEP, **more})


def test_the_unit_holds_no_secret_and_bounds_the_memory() -> None:
    text = unit_text(step(bind=["192.0.2.5", "::1"], port=7000), "0123456789ab")
    assert "--bind 192.0.2.5 ::1 \\\n    --port 7000 " in text
    assert f"--maxmemory {2 * 1024**3} " in text
    assert "--maxmemory-policy allkeys-lru" in text
    assert f"Environment=LMCACHE_FLEET_UNIT={unit_digest(text)}" in text
    assert "Environment=LMCACHE_FLEET_SECRETS=0123456789ab" in text
    assert unit_text(step(server="valkey"), "x").count("valkey-server") == 1


def test_the_access_list_has_the_passwords_hash_only_and_no_administration() -> None:
    text = acl_text("s3cret")
    assert "s3cret" not in text
    assert f"#{text_digest('s3cret')} " in text
    assert "-@admin -@dangerous" in text
    assert " nopass " in acl_text(None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"password": None}, "name a secret in `password`"),
        ({"bind": ["0.0.0.0"], "password": None}, "name a secret in `password`"),
        ({"bind": ["kv-1"]}, "not an IP address"),
        ({"bind": ["10.0.0.1 --protected-mode no"]}, "not an IP address"),
        ({"bind": []}, "at least 1 item"),
        ({"max_memory_gb": 0}, "greater than 0"),
    ],
)
def test_a_store_that_would_be_open_to_all_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step(**more)
    step(bind=["127.0.0.1", "::1"], password=None)


def test_a_password_does_not_get_into_a_command_line() -> None:
    with pytest.raises(ValueError, match="LMCACHE_RESP_PASSWORD"):
        MpServer.model_validate({"l2_adapter": {"type": "resp", "host": "192.0.2.5", "port": 6379, "password": "x"}})


def as_it_should_be(wanted: str) -> dict[str, Unit]:
    running = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled"}
    return {
        UNIT: Unit(wanted, running, {"LMCACHE_FLEET_UNIT": unit_digest(wanted)}),
        "redis-server.service": Unit(None, {"ActiveState": "inactive", "UnitFileState": "disabled"}),
    }


def test_a_store_as_wanted_changes_nothing_and_each_difference_is_named() -> None:
    wanted = unit_text(step(), "a")
    packaged = packaged_unit(step(), "apt-get")
    good = as_it_should_be(wanted)

    def lacks(units: dict[str, Unit], acl: str | None = "same") -> list[str]:
        return [change.what for change in changes(step(), wanted, units, (acl, "same"), packaged)]

    assert lacks(good) == []
    assert lacks(good, "other") == [ACL]
    assert lacks({}, None) == [ACL, f"/etc/systemd/system/{UNIT}", f"process of {UNIT}"]
    stopped = Unit(wanted, {"ActiveState": "failed", "UnitFileState": "enabled"})
    assert lacks({**good, UNIT: stopped}) == [f"process of {UNIT}"]
    edited = Unit(wanted + "#\n", good[UNIT].properties, good[UNIT].environment)
    assert lacks({**good, UNIT: edited}) == [f"/etc/systemd/system/{UNIT}"]
    older = Unit(wanted, good[UNIT].properties, {"LMCACHE_FLEET_UNIT": "0"})
    assert lacks({**good, UNIT: older}) == [f"process of {UNIT}"]
    theirs = Unit(None, {"ActiveState": "active", "UnitFileState": "enabled"})
    assert lacks({**good, packaged: theirs}) == [packaged]


def test_the_cpu_playbook_takes_a_shared_tier_and_its_password() -> None:
    document = read_playbook(ROOT / "playbooks/cpu.yaml")
    adapter = {"type": "resp", "host": "192.0.2.5", "port": 6379}
    playbook = check_document(document, {"l2_adapter": adapter, "service_secrets": ["LMCACHE_RESP_PASSWORD"]})
    (service,) = [item for item in playbook.steps if item.kind == "service"]
    assert service.server is not None
    assert service.server.l2_adapter == adapter
    assert service.secrets == ["LMCACHE_RESP_PASSWORD"]


def test_a_role_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    text = (ROOT / "playbooks/kv_store.yaml").read_text(encoding="utf-8").replace("role: kv_store", "role: kv-store")
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="'engine', 'balancer', 'kv_store' or 'lmcache_server'"):
        check_document(read_playbook(tmp_path / "x.yaml"))
