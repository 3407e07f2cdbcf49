"""The report: its data, its page, its metrics."""

from __future__ import annotations

import json
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lmcache_fleet.cli import main
from lmcache_fleet.fleet_report import (
    FleetReport,
    HostEntry,
    Passage,
    Proof,
    Timeline,
    Trouble,
    gather,
    host_entry,
    read_proof,
)
from lmcache_fleet.preflight.catalogue import Finding
from lmcache_fleet.reporters.html import html, timeline_rows
from lmcache_fleet.reporters.prometheus import metrics
from lmcache_fleet.rollout.journal import Begin, Journal, read_journal
from lmcache_fleet.rollout.journey import Journey, Stage
from lmcache_fleet.store import save_evidence

MADE = "2026-01-02T12:00:00+00:00"
EVIDENCE: dict[str, Any] = {
    "ok": True,
    "finished": "2026-01-01T10:00:00Z",
    "device": "npu",
    "connector": {"class": "LMCacheMPConnector"},
    "tokens": {"prompt": 1033, "stored": 1024, "hit_after_reset": 1024, "retrieved_after_restart": 768},
    "ttft_ms": {"cold": 100.0, "hit": 5.0, "after_restart": 10.0, "own_cache": 4.0},
    "versions": {"lmcache": "0.5.6", "vllm": "0.23.0"},
    "findings": [{"id": "slow", "severity": "warning", "message": "slow", "cause": "", "remedy": ""}],
}
FINDING = {
    "id": "no-store",
    "severity": "error",
    "message": "stored nothing",
    "cause": "short prompt",
    "remedy": "longer",
}
HOSTILE = '<script>alert("1")</script>\n\\&'


def troubled() -> FleetReport:
    """A report with all that one can have, long and hostile texts included."""
    good = read_proof(EVIDENCE, "offline", "997818b219b8")
    bad = read_proof({**EVIDENCE, "ok": False, "findings": [FINDING]}, "online", "997818b219b8")
    trouble = Trouble("connect", "no route to " + "x" * 200, HOSTILE)
    hosts = (
        HostEntry("h1", "settled", "997818b219b8", "997818b219b8", True, (good,)),
        HostEntry(
            "rack12-node-with-a-name-that-goes-on-and-on.cluster.example.org", "pending", "old", "997818b219b8", False,
            (good, bad), {"05 packages": ["~ lmcache: 0.5.5 → 0.5.6", "+ " + "y" * 200]}, bad.troubles, HOSTILE,
        ),
        HostEntry("h3", "failed", troubles=(trouble,)),
    )  # fmt: skip
    passages = (Passage("h1", "preparing", 0, 50), Passage("h1", "switching", 50, 60), Passage("h1", "done", 60, 60))
    timeline = Timeline("rollout", MADE, 100, None, (("h1",), ("h3",)), passages)
    return FleetReport(HOSTILE, MADE, hosts, timeline, (Trouble("evidence of h9", "cut off", "verify again"),))


def test_a_proof_says_the_least_that_was_found_again_and_how_much_sooner() -> None:
    proof = read_proof(EVIDENCE, "offline", "r")
    assert proof.retrieved_tokens == 768
    assert proof.speedup == 10
    assert not proof.troubles, "a warning fails nothing"
    failed = read_proof({**EVIDENCE, "ok": False, "findings": [FINDING]}, "online", "r")
    assert failed.troubles == (Trouble("online proof of r", "stored nothing: short prompt", "longer"),)
    assert read_proof({"ok": False}, "online", "r").troubles, "a failed proof never goes unsaid"
    assert read_proof({"ok": True, "ttft_ms": {"cold": 1}}, "online", "r").speedup is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*EVIDENCE, "cold", "stored"]), inner),
    )
)
def test_whatever_lies_in_the_store_is_read_or_refused(data: Any) -> None:
    try:
        proof = read_proof(data, "online", "r")
    except ValueError:
        return
    report = FleetReport("f", MADE, (HostEntry("h", "not read", proofs=(proof,), troubles=proof.troubles),))
    assert "</html>" in html(report)
    assert metrics(report)


def test_without_a_status_the_last_proved_release_of_each_host_is_told(tmp_path: Path) -> None:
    save_evidence("h10", "a", "offline", EVIDENCE, tmp_path)
    save_evidence("h2", "old", "online", {**EVIDENCE, "finished": "2025-01-01T00:00:00Z"}, tmp_path)
    save_evidence("h2", "new", "online", EVIDENCE, tmp_path)
    save_evidence("h2", "new", "offline", EVIDENCE, tmp_path)
    (tmp_path / "evidence/h2/new/offline.json").write_text('{"ok": tr')
    report = gather("f", MADE, root=tmp_path)
    assert [(host.name, host.release, host.state) for host in report.hosts] == [
        ("h2", "new", "not read"), ("h10", "a", "not read"),
    ]  # fmt: skip
    assert [item.where for item in report.unreadable] == ["evidence of h2, new, offline"]
    assert report.versions["vllm"] == {"0.23.0": ["h2", "h10"]}
    assert gather("f", MADE, root=tmp_path / "none").hosts == ()


def test_with_a_status_only_proofs_of_the_serving_release_count(tmp_path: Path) -> None:
    save_evidence("h1", "old", "online", EVIDENCE, tmp_path)
    stands = {"current": "new", "target": "new", "serving": True}
    said = {
        "h1": {"state": "settled", "steps": {}, "report": stands},
        "h2": {"state": "failed", "steps": {}, "report": None, "failure": {"step": "s", "cause": "c", "remedy": "r"}},
    }
    report = gather("f", MADE, {"hosts": said}, root=tmp_path)
    assert report.hosts[0].proofs == ()
    assert report.hosts[0].proved is None
    assert report.hosts[1].troubles == (Trouble("s", "c", "r"),)


def test_drift_is_told_without_the_lines_of_files() -> None:
    change = {"what": "/etc/x.env", "before": "as is", "after": "changed", "diff": ["+TOKEN=abc"], "kept": False}
    kept = {"what": "torch", "before": "1", "after": "1", "kept": True}
    entry = host_entry("h", {"state": "pending", "steps": {"a": [change, kept], "b": [kept]}, "report": None}, [])
    assert entry.drift == {"a": ["~ /etc/x.env: as is → changed"]}


def test_a_timeline_is_read_from_the_journal_and_its_bars_end_where_the_next_begin(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path, Begin("rollout", "i", "d", [["h1"], ["h2"]], {}, {}))
    journal.close()
    begun = json.loads(journal.path.read_text())["at"]
    lines = [journal.path.read_text().strip()]
    for seconds, stage in ((0, Stage.PREPARING), (20, Stage.PREPARED), (20, Stage.DRAINING), (30, Stage.FAILED)):
        data = {
            **Journey("h1", 1, stage, cause="broke" if stage is Stage.FAILED else "").as_json(),
            "stage": stage.value,
        }
        lines.append(json.dumps({"at": _later(begun, seconds), "event": "host", **data}))
    journal.path.write_text("\n".join([*lines, '{"at": "2026-']))
    save_evidence("h1", "r", "online", EVIDENCE, tmp_path)
    report = gather("f", MADE, history=read_journal(journal.path), root=tmp_path)
    assert report.hosts[0].troubles == (Trouble("last rollout", "broke", ""),)
    assert report.timeline is not None
    assert report.timeline.seconds == 30
    rows = timeline_rows(report.timeline)
    assert [(row["host"], row["end"]) for row in rows] == [("h1", "failed"), ("h2", "waiting")]
    assert [bar["stage"] for bar in rows[0]["bars"]] == ["preparing", "draining"]
    assert sum(bar["width"] for bar in rows[0]["bars"]) == pytest.approx(100)


def test_checks_that_fired_in_the_last_rollouts_preflight_are_told_with_their_remedies(tmp_path: Path) -> None:
    taken = Finding("port-taken", "error", (("what", "port"), ("port", "8000"), ("holders", "nginx")))
    twice = Finding("port-twice", "warning", (("port", "8000"), ("names", "a and b")))
    known = Finding("port-taken", "info", taken.values)
    journal = Journal.new(tmp_path, Begin("rollout", "i", "d", [["h1", "h2", "h3"]], {}, {}))
    # Of a rollout that was resumed, the last word on a host counts.
    journal.preflight({"h1": [taken], "h2": [taken]})
    journal.preflight({"h1": [taken, twice, known], "h2": [twice], "h3": []})
    journal.host(Journey("h1", 1).to(Stage.FAILED, cause="preflight: port-taken: …", remedy="…"))
    journal.host(Journey("h3", 1).to(Stage.FAILED, cause="15 service: broke", remedy="mend it"))
    for name in ("h1", "h2", "h3"):
        save_evidence(name, "r", "online", EVIDENCE, tmp_path)
    report = gather("f", MADE, history=read_journal(journal.path), root=tmp_path)
    first = Trouble("last rollout: check port-taken", taken.message(), taken.remedy())
    warned = Trouble("last rollout: check port-twice", twice.message(), twice.remedy(), "warning")
    assert [host.troubles for host in report.hosts] == [
        (first, warned), (warned,), (Trouble("last rollout", "15 service: broke", "mend it"),),
    ]  # fmt: skip
    assert [host.failed for host in report.hosts] == [True, False, True]
    assert json.loads(json.dumps(report.as_json()))["hosts"][0]["troubles"][0]["remedy"] == taken.remedy()
    page = unescape(html(report))
    assert page.count(taken.remedy()) == 1
    assert page.count(twice.remedy()) == 1, "hosts that share it are one row"
    assert '<th scope="row">h1 h2</th>' in page
    assert 'host_troubles{host="h1",severity="warning"} 1.0\n' in metrics(report)


def _later(text: str, seconds: int) -> str:
    from datetime import datetime, timedelta

    return (datetime.fromisoformat(text) + timedelta(seconds=seconds)).isoformat()


def test_the_page_is_whole_escaped_and_has_no_outside() -> None:
    page = html(troubled())
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    seen: list[tuple[str, dict[str, str | None]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append((tag, dict(attrs)))

    Reader().feed(page)
    asks = {"src", "href", "action", "srcset", "data"}
    assert [value for _, attrs in seen for name, value in attrs.items() if name in asks] == ["data:,"]
    assert "url(" not in page
    assert "@import" not in page
    assert page.count("<h3>") >= 3


def test_metrics_are_escaped_and_unknown_things_have_no_sample() -> None:
    text = metrics(FleetReport("f", MADE, (HostEntry('h"\\\n', "not read", "r"),)))
    assert 'lmcache_fleet_host_info{host="h\\"\\\\\\n",release="r",target=""} 1.0\n' in text
    assert "lmcache_fleet_host_serving" not in text
    assert "lmcache_fleet_host_failed" not in text
    full = metrics(troubled())
    assert 'time_to_first_token_seconds{host="h1",stage="offline",phase="cold"} 0.1\n' in full
    assert 'lmcache_fleet_host_pending_steps{host="h1"} 0.0\n' in full
    names = [line.split()[2] for line in full.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


def test_the_command_writes_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_FLEET_ARTIFACTS", str(tmp_path))
    save_evidence("h1", "r", "online", EVIDENCE, tmp_path)
    page, prom = tmp_path / "r.html", tmp_path / "r.prom"
    done = CliRunner().invoke(main, ["report", "-o", str(page), "--prometheus", str(prom), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["hosts"][0]["name"] == "h1"
    assert "h1" in page.read_text()
    assert prom.stat().st_mode & 0o777 == 0o644
    wrong = CliRunner().invoke(main, ["report", "-o", str(tmp_path / "none/r.html")])
    assert wrong.exit_code == 1
    assert "can't be written" in wrong.output
    half = CliRunner().invoke(main, ["report", "inventories/lab.py"])
    assert half.exit_code == 1
    assert "an inventory and a deploy file" in half.output


def test_a_proof_without_hosts_asked_keeps_json_plain() -> None:
    assert json.loads(json.dumps(troubled().as_json()))["format"] == "lmcache-fleet/report/v1"
    assert Proof("online", "r", True).speedup is None
