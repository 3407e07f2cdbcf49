"""Where a fleet stands, shown and as data."""

from __future__ import annotations

import io
import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from rich.console import Console

from lmcache_fleet.changes import Change
from lmcache_fleet.failures import Failure
from lmcache_fleet.grouping import plan_of
from lmcache_fleet.identities import known_machine_id, remember_machine_id
from lmcache_fleet.recording import HostReport, Recorder, ReleaseBrief
from lmcache_fleet.reporters.status import age, show_status, status_json
from lmcache_fleet.sizes import readable

NOW = datetime(2026, 1, 2, 12, tzinfo=timezone.utc)


def test_each_host_has_a_row_with_its_drift_and_failures_follow() -> None:
    recorder = Recorder()
    proved = {"offline": {"ok": True, "finished": "2026-01-01T10:00:00Z"}, "online": {"ok": False, "finished": ""}}
    recorder.reports["h1"] = HostReport(
        "aaa", current="aaa", service={"x.service": "active"}, running=("aaa",), evidence=proved,
        releases=(ReleaseBrief("aaa", True, 5 * 10**9, 10**9), ReleaseBrief("old", True, 5 * 10**9, 1500 * 10**6)),
        images=2, image_bytes=31 * 10**9,
    )  # fmt: skip
    recorder.reports["h2"] = HostReport("bbb", current="aaa", service={"x.service": "failed"}, interrupted=True)
    recorder.step("h2", "15 service", [Change("serving release", "aaa", "bbb")])
    recorder.fail(Failure("h3", "connect", "no route", "look"))
    names = ["h1", "h2", "h3"]
    plan = plan_of(names, recorder)
    out = io.StringIO()
    show_status(Console(file=out, width=200), names, recorder, plan, NOW)
    rows = {line.split()[0]: line for line in out.getvalue().splitlines() if line.startswith("h")}
    assert "serving" in rows["h1"]
    assert "offline 1 d online FAILED ?" in rows["h1"]
    assert "2 releases, serving 5.0 GB, others hold 1.5 GB; 2 images of 31 GB" in rows["h1"]
    assert "none" in rows["h1"]
    assert "switch cut off" in rows["h2"]
    assert "15 service" in rows["h2"]
    assert "h3: failed at connect: no route" in out.getvalue()
    answer = json.loads(json.dumps(status_json(names, recorder, plan)))
    assert answer["hosts"]["h1"]["report"]["serving"] is True
    assert answer["hosts"]["h3"]["report"] is None
    assert answer["status"] == 1


@pytest.mark.parametrize(
    ("service", "running", "serving"),
    [
        ({"a": "active", "b": "active"}, ("r",), True),
        ({"a": "active", "b": "failed"}, ("r",), False),
        ({"a": "active", "b": "active"}, ("old", "r"), False),
        ({}, (), True),
    ],
)
def test_serving_means_every_unit_with_the_current_release(
    service: dict[str, str], running: tuple[str, ...], serving: bool
) -> None:
    assert HostReport("r", current="r", service=service, running=running).serving is serving
    assert not HostReport("r", current=None, service=service, running=running).serving


def test_ages_and_sizes_are_short() -> None:
    assert [age(text, NOW) for text in ("2026-01-02T11:59:30+00:00", "2026-01-02T11:00:00", "", None)] == [
        "30 s", "1 h", "?", "?",
    ]  # fmt: skip
    assert [readable(size) for size in (0, 999, 1500, 12_300_000, 5 * 10**9, 3 * 10**12)] == [
        "0 B", "999 B", "1.5 kB", "12 MB", "5.0 GB", "3.0 TB",
    ]  # fmt: skip


def test_an_installation_is_known_again_and_another_one_is_told_apart(tmp_path: Path) -> None:
    assert known_machine_id("h1", tmp_path) is None
    remember_machine_id("@ssh/h 1", "m1", tmp_path)
    assert known_machine_id("@ssh/h 1", tmp_path) == "m1"
    remember_machine_id("@ssh/h 1", "m2", tmp_path)
    assert known_machine_id("@ssh/h 1", tmp_path) == "m2"
    assert HostReport("r", machine_id="m1", known_machine_id="m2").reimaged
    assert not HostReport("r", machine_id="m1").reimaged
