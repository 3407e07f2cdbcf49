"""A journal is read back as it was, cut off anywhere it still tells the truth, and a lock goes with its holder."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_fleet.repository import ROOT
from lmcache_fleet.rollout.journal import (
    Begin,
    FleetBusy,
    Journal,
    JournalError,
    fleet_folder,
    fleet_lock,
    last_history,
    read_journal,
    resumed,
)
from lmcache_fleet.rollout.journey import Journey, Progress, Stage, WrongTurn

BEGIN = Begin("rollout", "inventories/x.py", "deploys/x.py", [["h1"], ["h2", "h3"]], {"max_failures": 1}, {"a": 1})
WAY = [Stage.PREPARING, Stage.PREPARED, Stage.DRAINING, Stage.SWITCHING, Stage.UNDRAINING, Stage.DONE]


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path, BEGIN)
    progress = Progress.start(BEGIN.waves, 1)
    for stage in WAY:
        journey = progress.journeys["h1"].to(stage, release="r2")
        progress = progress.step(journey)
        journal.host(journey)
    journal.host(progress.journeys["h2"].to(Stage.FAILED, cause="connect: gone", remedy="look"))
    cut = read_journal(journal.path)
    assert (cut.begin, cut.outcome) == (BEGIN, None)
    assert cut.progress.journeys["h1"] == progress.journeys["h1"]
    assert cut.progress.journeys["h2"].cause == "connect: gone"
    assert cut.progress.journeys["h3"] == Journey("h3", 2)
    assert cut.progress.budget == 1
    journal.write("end", {"outcome": "stopped"})
    journal.close()
    assert read_journal(journal.path).outcome == "stopped"
    assert last_history(tmp_path) == read_journal(journal.path)
    assert last_history(tmp_path, "rollback") is None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cut_off_anywhere_it_says_nothing_that_did_not_come_to_pass(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal.new(Path(folder), BEGIN)
        whole = journal.path.stat().st_size
        journey = Journey("h1", 1)
        seen = [journey]
        for stage in WAY:
            journey = journey.to(stage)
            seen.append(journey)
            journal.host(journey)
        journal.close()
        text = journal.path.read_bytes()
        cut = data.draw(st.integers(whole, len(text)))
        journal.path.write_bytes(text[:cut])
        now = read_journal(journal.path).progress.journeys["h1"]
        assert now in seen
        assert seen.index(now) <= text[:cut].count(b"\n") - 1 + (cut < len(text))
        # The next writer goes on in a line of its own.
        again = Journal(journal.path)
        again.write("resume", {})
        again.close()
        assert read_journal(journal.path).progress.journeys["h1"] == now


def test_no_beginning_is_an_error_and_so_is_nonsense(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_text("")
    with pytest.raises(JournalError, match="no beginning"):
        read_journal(path)
    assert last_history(tmp_path) is None
    path.write_text('{"event": "host", "at": "x", "stage": "flying"}\n')
    with pytest.raises(JournalError, match=r"1\.jsonl:1"):
        read_journal(path)
    path.write_text("[1]\n")
    with pytest.raises(JournalError, match=r"1\.jsonl:1"):
        read_journal(path)


@pytest.mark.parametrize("at", range(len(WAY) + 1))
def test_whatever_a_host_was_at_it_is_taken_up_again(tmp_path: Path, at: int) -> None:
    journal = Journal.new(tmp_path, BEGIN)
    journey = Journey("h1", 1)
    for stage in WAY[:at]:
        journey = journey.to(stage)
        journal.host(journey)
    again = resumed(read_journal(journal.path)).journeys["h1"]
    assert again.stage is (Stage.DONE if journey.stage is Stage.DONE else Stage.WAITING)
    # Somebody may still keep requests from it, and has to be told.
    assert again.drained is (journey.stage in {Stage.DRAINING, Stage.SWITCHING, Stage.UNDRAINING})


def test_nothing_follows_the_end_of_a_way() -> None:
    for stage in (Stage.DONE, Stage.BACK, Stage.FAILED):
        with pytest.raises(WrongTurn):
            Journey("h1", 1, stage).to(Stage.PREPARING)
    with pytest.raises(WrongTurn, match="waiting can't be followed by switching"):
        Journey("h1", 1).to(Stage.SWITCHING)


def test_a_second_rollout_is_refused_with_the_firsts_name(tmp_path: Path) -> None:
    refused = pytest.raises(FleetBusy, match=r"rollout by .*@.* pid \d+ since 20")
    with fleet_lock(tmp_path, "rollout"), refused, fleet_lock(tmp_path, "rollback"):
        pass
    with fleet_lock(tmp_path, "rollback"):
        pass


def test_a_lock_goes_with_its_holder_however_it_ends(tmp_path: Path) -> None:
    program = f"""
        import os, signal
        from pathlib import Path
        from lmcache_fleet.rollout.journal import fleet_lock
        with fleet_lock(Path({str(tmp_path)!r}), "rollout"):
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, check=False)
    assert done.returncode == -9
    with fleet_lock(tmp_path, "rollout"):
        pass


def test_fleets_are_told_apart_and_one_is_itself_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.py").write_text("")
    monkeypatch.chdir(tmp_path)
    here = fleet_folder("a.py", tmp_path)
    assert here != fleet_folder("sub/a.py", tmp_path)
    monkeypatch.chdir(tmp_path / "sub")
    assert fleet_folder("../a.py", tmp_path) == here


def test_lines_are_json_with_a_time(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path, BEGIN)
    journal.write("end", {"outcome": "done"})
    first, last = (json.loads(line) for line in journal.path.read_text().splitlines())
    assert first["event"] == "begin"
    assert last["at"].startswith("20")
