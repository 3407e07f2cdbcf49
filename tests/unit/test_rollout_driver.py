"""Rollouts over a make-believe fleet that keeps its state: budgets, gates, drains, kills at any moment, resumption."""

from __future__ import annotations

import io
from collections.abc import Collection
from pathlib import Path
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from lmcache_fleet.changes import Change
from lmcache_fleet.drain import DrainError
from lmcache_fleet.failures import Failure
from lmcache_fleet.preflight.catalogue import Finding
from lmcache_fleet.preflight.report import Judged
from lmcache_fleet.problems import InputError, Problem
from lmcache_fleet.recording import HostReport, Recorder
from lmcache_fleet.reporters.rollout import LiveWatcher, PlainWatcher, show_standing
from lmcache_fleet.rollout.driver import Limits, Rollout
from lmcache_fleet.rollout.journal import Begin, Journal, read_journal, resumed
from lmcache_fleet.rollout.journey import Progress, Stage
from lmcache_fleet.rollout.waves import parse_waves, plan_waves

UNIT = "x.service"


class Killed(BaseException):
    """As kill -9: nothing is tidied up."""


class World:
    """Hosts that keep their state, and what spreads requests over them. `broken` says what goes wrong where."""

    def __init__(self, names: list[str], broken: dict[str, str] | None = None) -> None:
        self.names = names
        self.broken = broken or {}
        self.serving = dict.fromkeys(names, "old")
        self.up = dict.fromkeys(names, True)
        self.prepared = dict.fromkeys(names, False)
        self.proved = dict.fromkeys(names, True)
        self.in_rotation = dict.fromkeys(names, True)
        self.restarts: list[str] = []
        self.most_out = 0
        self.changed: list[str] = []

    # A runner

    def run(
        self, names: Collection[str], *, change: bool = False, data: Any = None, told: Any = None, **limits: Any
    ) -> Recorder:
        recorder = Recorder(told)
        for name in names:
            if self.broken.get(name) == "unreachable":
                recorder.fail(Failure(name, "connect", "no route to host", "look at it"))
                continue
            if change:
                self._change(name, data["until"], recorder)
            else:
                self._look(name, recorder)
        return recorder

    def _look(self, name: str, recorder: Recorder) -> None:
        pending = []
        if not self.prepared[name]:
            pending.append(Change("release", None, "new"))
        if self.serving[name] != "new" or not self.up[name]:
            pending.append(Change("serving release", self.serving[name], "new"))
        recorder.step(name, "15 service", pending)
        recorder.reports[name] = HostReport(
            "new",
            current=self.serving[name],
            service={UNIT: "active" if self.up[name] else "failed"},
            running=(self.serving[name],) if self.up[name] else (),
            evidence={"online": {"ok": self.proved[name]}},
        )

    def _change(self, name: str, until: str, recorder: Recorder) -> None:
        self._look(name, recorder)
        if name not in self.changed:
            self.changed.append(name)
        if self.broken.get(name) == "build":
            recorder.fail(Failure(name, "04 packages", "the index is down", "wait"))
            return
        self.prepared[name] = True
        if until == "prepared" or self.serving[name] == "new":
            return
        assert not self.in_rotation[name], f"{name} was restarted under load"
        self.restarts.append(name)
        if self.broken.get(name) == "gate":
            recorder.fail(Failure(name, "15 service", "no cache hit; back on old", "read the evidence"))
        elif self.broken.get(name) == "dead":
            self.up[name] = False
            recorder.fail(Failure(name, "15 service", "no answer", ""))
        else:
            self.serving[name] = "new"
            self.proved[name] = self.broken.get(name) != "unproved"

    # A drain

    def drain(self, host: str) -> None:
        gevent.sleep(0)
        if self.broken.get(host) == "drain":
            raise DrainError("3 requests still run", "wait longer")
        self.in_rotation[host] = False
        self.most_out = max(self.most_out, list(self.in_rotation.values()).count(False))

    def undrain(self, host: str) -> None:
        gevent.sleep(0)
        if self.broken.get(host) == "undrain":
            raise DrainError("the health check never saw it up", "look at the balancer")
        self.in_rotation[host] = True


class DyingJournal(Journal):
    """Kills its process at the given line, before or after it is on disk."""

    lines_left = 10**9
    torn = False

    def write(self, event: str, data: dict[str, Any]) -> None:
        self.lines_left -= 1
        if self.lines_left <= 0:
            if self.torn:
                super().write(event, data)
            raise Killed
        super().write(event, data)


def prepare(
    world: World, folder: Path, waves: str = "1,10%,50%,100%", budget: int = 0, **limits: Any
) -> tuple[Rollout, io.StringIO]:
    dealt = plan_waves(world.names, parse_waves(waves), {})
    begin = Begin("rollout", "i.py", "d.py", dealt, {"max_failures": budget}, {})
    out = io.StringIO()
    journal = DyingJournal.new(folder, begin)
    drains = dict.fromkeys(world.names, world)
    watcher = PlainWatcher(Console(file=out, width=200))
    return Rollout(world, dealt, Progress.start(dealt, budget), Limits(**limits), drains, journal, watcher), out


def again(world: World, path: Path, **limits: Any) -> Rollout:
    history = read_journal(path)
    drains = dict.fromkeys(world.names, world)
    watcher = PlainWatcher(Console(file=io.StringIO()))
    journal = Journal(path)
    journal.write("resume", {})
    return Rollout(world, history.begin.waves, resumed(history), Limits(**limits), drains, journal, watcher)


def names(count: int) -> list[str]:
    return [f"n{number:02d}" for number in range(1, count + 1)]


def test_thirty_hosts_arrive_and_never_more_than_allowed_are_out(tmp_path: Path) -> None:
    world = World(names(30))
    rollout, out = prepare(world, tmp_path, max_unavailable=4)
    assert rollout.go() == "done"
    assert rollout.progress.complete
    assert set(world.serving.values()) == {"new"}
    assert all(world.in_rotation.values())
    assert world.most_out == 4
    assert world.restarts == world.names, "each once, in order"
    assert read_journal(rollout.journal.path).outcome == "done"
    assert "n01 switching" in out.getvalue()


def test_a_second_rollout_touches_nothing(tmp_path: Path) -> None:
    world = World(names(5))
    prepare(world, tmp_path)[0].go()
    world.changed.clear()
    rollout, _ = prepare(world, tmp_path)
    assert rollout.go() == "done"
    assert world.changed == []
    assert rollout.progress.complete


def test_a_host_that_fails_its_gate_is_back_in_service_and_the_budget_stops_the_rest(tmp_path: Path) -> None:
    world = World(names(30), {"n03": "gate"})
    rollout, out = prepare(world, tmp_path)
    assert rollout.go() == "stopped"
    way = rollout.progress.journeys["n03"]
    assert (way.stage, way.release, way.drained) == (Stage.BACK, "old", False)
    assert "no cache hit" in way.cause
    assert all(world.in_rotation.values())
    assert {name for name, release in world.serving.items() if release == "new"} == {"n01", "n02"}
    # Of the third wave of twelve nothing was switched; prepared it was, beside the second.
    assert world.changed == names(15)
    assert rollout.progress.at(Stage.PREPARING) == names(15)[3:]
    show_standing(Console(file=out, width=200), rollout.progress, "stopped")
    text = out.getvalue()
    assert "n03: went back (15 service: no cache hit; back on old); it serves old" in text
    assert "==> STOPPED: more hosts failed than may: 2 of 30 hosts as wanted, 1 failed; --resume" in text
    # Mended and taken up again, it goes on from there.
    world.broken.clear()
    assert again(world, rollout.journal.path).go() == "done"
    assert set(world.serving.values()) == {"new"}


def test_a_wave_is_prepared_while_the_one_before_is_switched_but_never_beside_the_first(tmp_path: Path) -> None:
    world = World(names(8))
    rollout, _ = prepare(world, tmp_path, waves="1,3,6,100%")
    order = []
    run = world.run

    def noted(hosts: Collection[str], **options: Any) -> Recorder:
        if options.get("change"):
            order.append((options["data"]["until"], *hosts))
            # Long enough for all that may begin beside it.
            gevent.sleep(0.02)
        return run(hosts, **options)

    world.run = noted  # type: ignore[method-assign, assignment]
    assert rollout.go() == "done"
    waves = [names(8)[:1], names(8)[1:3], names(8)[3:6], names(8)[6:]]
    asked = [("prepared", 0), ("served", 0), ("prepared", 1), ("prepared", 2), ("served", 1)]
    asked += [("prepared", 3), ("served", 2), ("served", 3)]
    begun = {(until, waves.index(wave)): order.index((until, *wave)) for until, *wave in order}
    assert set(begun) == set(asked)
    assert begun["served", 0] < begun["prepared", 1], "nothing of the others before one has shown that it works"
    assert begun["prepared", 2] < begun["served", 2]
    assert abs(begun["prepared", 2] - begun["served", 1]) == 1, "side by side"
    order.clear()
    world.serving = dict.fromkeys(world.names, "old")
    world.prepared = dict.fromkeys(world.names, False)
    rollout, _ = prepare(world, tmp_path, waves="1,3,6,100%", ahead=False)
    assert rollout.go() == "done"
    assert order == [(until, *wave) for wave in waves for until in ("prepared", "served")]


def test_what_is_prepared_ahead_is_given_up_when_the_rollout_is(tmp_path: Path) -> None:
    world = World(names(5), {"n02": "gate"})
    rollout, _ = prepare(world, tmp_path, waves="1,2,100%")
    run = world.run
    ended = []

    def slow(hosts: Collection[str], **options: Any) -> Recorder:
        if options.get("change") and "n03" in hosts:
            try:
                gevent.sleep(3600)
            finally:
                ended.append(tuple(hosts))
        return run(hosts, **options)

    world.run = slow  # type: ignore[method-assign, assignment]
    with gevent.Timeout(30):
        assert rollout.go() == "stopped"
    assert ended == [("n03", "n04", "n05")]


def test_a_playbook_that_turned_wrong_while_a_wave_was_prepared_ahead_is_one_error(tmp_path: Path) -> None:
    world = World(names(4))
    rollout, _ = prepare(world, tmp_path, waves="1,2,100%")
    run = world.run

    def wrong(hosts: Collection[str], **options: Any) -> Recorder:
        if options.get("change") and "n03" in hosts:
            raise InputError([Problem("playbook.yaml", 3, 1, "", "unknown key")])
        return run(hosts, **options)

    world.run = wrong  # type: ignore[method-assign, assignment]
    with pytest.raises(InputError, match="unknown key"):
        rollout.go()
    # The wave that was under way is through, and in service.
    assert rollout.progress.at(Stage.DONE) == ["n01", "n02"]
    assert all(world.in_rotation.values())


def test_failures_within_the_budget_do_not_stop_it(tmp_path: Path) -> None:
    broken = {"n02": "gate", "n05": "unreachable", "n07": "build", "n11": "drain"}
    world = World(names(30), broken)
    rollout, _ = prepare(world, tmp_path, budget=4)
    assert rollout.go() == "done"
    assert {journey.host for journey in rollout.progress.failures} == set(broken)
    assert {name for name, release in world.serving.items() if release == "old"} == set(broken)
    assert all(world.in_rotation.values())
    assert "n11" not in world.restarts


def test_too_many_unreachable_hosts_stop_it_before_anything_is_touched(tmp_path: Path) -> None:
    world = World(names(10), {"n08": "unreachable", "n09": "unreachable"})
    rollout, _ = prepare(world, tmp_path, budget=1)
    assert rollout.go() == "stopped"
    assert world.changed == []


def test_a_preflight_names_hosts_before_anything_is_touched_and_only_those_that_change(tmp_path: Path) -> None:
    world = World(names(4))
    world.prepared["n04"], world.serving["n04"] = True, "new"
    rollout, _ = prepare(world, tmp_path, budget=0)
    asked: list[str] = []

    taken = Finding("port-taken", "error", (("what", "port"), ("port", "8000"), ("holders", "nginx")))

    def judge(hosts: Collection[str], found: Recorder) -> Judged:
        asked.extend(hosts)
        assert set(found.reports) == set(world.names)
        failure = Failure("n02", "preflight", "a port is taken", "free it")
        return Judged({"n01": [], "n02": [taken]}, {"n02": failure})

    rollout.preflight = judge
    assert rollout.go() == "stopped"
    assert asked == ["n01", "n02", "n03"]
    assert world.changed == []
    assert rollout.progress.journeys["n02"].remedy == "free it"
    assert rollout.progress.journeys["n04"].stage is Stage.DONE
    assert read_journal(rollout.journal.path).findings == {"n01": [], "n02": [taken.as_json()]}


@pytest.mark.parametrize("fault", ["dead", "unproved"])
def test_a_host_that_serves_nothing_proved_gets_no_requests(tmp_path: Path, fault: str) -> None:
    world = World(names(3), {"n01": fault})
    rollout, out = prepare(world, tmp_path)
    assert rollout.go() == "stopped"
    assert world.in_rotation == {"n01": False, "n02": True, "n03": True}
    assert rollout.progress.journeys["n01"].stage is Stage.FAILED
    assert rollout.progress.journeys["n01"].remedy
    show_standing(Console(file=out, width=200), rollout.progress, "stopped")
    assert "no requests are sent to it" in out.getvalue()
    # Once it is mended, the rollout is taken up and puts it back.
    world.broken.clear()
    world.up["n01"] = world.proved["n01"] = True
    assert again(world, rollout.journal.path).go() == "done"
    assert all(world.in_rotation.values())


def test_a_host_that_is_not_put_back_in_service_is_a_failure(tmp_path: Path) -> None:
    world = World(names(3), {"n01": "undrain"})
    rollout, _ = prepare(world, tmp_path)
    assert rollout.go() == "stopped"
    way = rollout.progress.journeys["n01"]
    assert (way.stage, way.drained, way.release) == (Stage.FAILED, True, "new")


@pytest.mark.parametrize("torn", [False, True], ids=["before the line", "after the line"])
def test_killed_at_any_line_of_its_journal_it_is_taken_up_again(tmp_path: Path, torn: bool) -> None:
    whole = World(names(4))
    rollout, _ = prepare(whole, tmp_path / "whole", waves="1,50%,100%")
    rollout.go()
    lines = len(rollout.journal.path.read_bytes().splitlines())
    assert lines > 20
    for line in range(1, lines):
        world = World(names(4))
        rollout, _ = prepare(world, tmp_path / str(line), waves="1,50%,100%", max_unavailable=1)
        assert isinstance(rollout.journal, DyingJournal)
        rollout.journal.lines_left, rollout.journal.torn = line, torn
        with pytest.raises(Killed):
            rollout.go()
        rollout.journal.close()
        second = again(world, rollout.journal.path, max_unavailable=1)
        assert second.go() == "done", line
        assert second.progress.complete
        assert set(world.serving.values()) == {"new"}, line
        assert all(world.in_rotation.values()), line
        assert sorted(world.restarts) == world.names, "nobody was restarted twice"
        assert world.most_out == 1


def test_asked_to_stop_it_leaves_no_host_half_way(tmp_path: Path) -> None:
    world = World(names(6))
    rollout, _ = prepare(world, tmp_path, waves="50%,100%", max_unavailable=1)
    switch = world._change

    def and_stop(name: str, until: str, recorder: Recorder) -> None:
        switch(name, until, recorder)
        if name == "n02" and until == "served":
            assert rollout.stop(), "a host is out: stopping has to wait"

    world._change = and_stop  # type: ignore[method-assign]
    assert rollout.go() == "interrupted"
    assert rollout.progress.at(Stage.DONE) == ["n01", "n02"]
    assert all(world.in_rotation.values())
    assert not any(way.stage.out for way in rollout.progress.journeys.values())
    assert again(world, rollout.journal.path).go() == "done"
    assert set(world.serving.values()) == {"new"}


def test_a_pause_is_cut_short_when_asked_to_stop(tmp_path: Path) -> None:
    world = World(names(2))
    rollout, _ = prepare(world, tmp_path, waves="1,100%", pause=3600)
    gevent.spawn_later(0.3, rollout.stop)
    with gevent.Timeout(10):
        assert rollout.go() == "interrupted"
    assert world.serving == {"n01": "new", "n02": "old"}


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(names(12)),
        st.sampled_from(["gate", "dead", "unproved", "build", "drain", "undrain", "unreachable"]),
        max_size=6,
    ),
    st.integers(0, 6),
    st.integers(1, 4),
)
def test_whatever_breaks_the_rest_keeps_serving(broken: dict[str, str], budget: int, limit: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        world = World(names(12), broken)
        rollout, _ = prepare(world, Path(folder), budget=budget, max_unavailable=limit)
        outcome = rollout.go()
        ways = rollout.progress.journeys
        failed = {name for name, way in ways.items() if way.stage in {Stage.FAILED, Stage.BACK}}
        assert failed <= set(broken)
        assert outcome == ("stopped" if len(failed) > budget else "done")
        # Never more over the budget than were under way at the same moment or found so at the start.
        if outcome == "done":
            assert failed == set(broken)
            assert rollout.progress.at(Stage.DONE) == [name for name in world.names if name not in broken]
        for name in world.names:
            assert world.in_rotation[name] or ways[name].drained, "nobody is forgotten out of service"
            if world.in_rotation[name]:
                assert world.up[name]
        assert {name: way.stage for name, way in read_journal(rollout.journal.path).progress.journeys.items()} == {
            name: way.stage for name, way in ways.items()
        }


def test_a_live_table_shows_who_is_on_the_way_and_how_far_each_wave_is() -> None:
    waves = [["n01"], ["n02", "n03"], [f"m{number}" for number in range(40)]]
    progress = Progress.start(waves, 0)
    out = io.StringIO()
    now = [0.0]
    console = Console(file=out, width=120, force_terminal=False)
    watcher = LiveWatcher(console, progress, waves, clock=lambda: now[0])
    way = progress.journeys["n01"]
    for stage in (Stage.PREPARING, Stage.PREPARED, Stage.DRAINING, Stage.SWITCHING, Stage.UNDRAINING, Stage.DONE):
        way = way.to(stage)
        watcher.moved(way)
    watcher.moved(progress.journeys["n02"].to(Stage.PREPARING))
    watcher.doing("n02", "04 packages", "installing [vllm]")
    watcher.moved(progress.journeys["n03"].to(Stage.FAILED, cause="connect: no route"))
    watcher.said("wave 2 of 3")
    now[0] = 75.0
    console.print(watcher.render())
    text = out.getvalue()
    assert "1:15  wave 2 of 3" in text
    assert "wave 1  ██████████ 1/1" in text
    assert "0/2  1 failed" in text
    assert "wave 3  " + "░" * 40 + " 0/40" in text
    (row,) = [line for line in text.splitlines() if line.startswith("n02")]
    assert "preparing" in row
    assert "04 packages: installing [vllm]" in row
    assert "no route" in text
    assert "n01" not in text
