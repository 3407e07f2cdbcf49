"""Carries a change through a fleet, wave by wave, over runs of pyinfra; decides nothing that the plan doesn't say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import gevent

from lmcache_fleet.drain import Drain, DrainError, NoDrain
from lmcache_fleet.failures import Failure
from lmcache_fleet.recording import HostReport, Recorder
from lmcache_fleet.rollout.journal import Journal
from lmcache_fleet.rollout.journey import Journey, Progress, Stage
from lmcache_fleet.rollout.waves import batches

if TYPE_CHECKING:
    from lmcache_fleet.preflight.report import Judged

PREPARED = {"until": "prepared"}
SERVED = {"until": "served"}

_TICK = 0.2
_SWITCH_REMEDY = (
    "`journalctl -u 'lmcache-fleet-*'` on the host and the release's evidence/online.json say why: mend it, then resume"
)


class Runner(Protocol):
    """What runs a deploy on hosts: a `Fleet`."""

    def run(
        self,
        names: Collection[str],
        *,
        change: bool = False,
        data: Mapping[str, Any] | None = None,
        told: Callable[[str, str, str], None] | None = None,
        host_limit: float | None = None,
    ) -> Recorder:
        """Run it; without `change`, find out only."""


Preflight = Callable[[Collection[str], Recorder], "Judged"]


class Watcher(Protocol):
    """Who is told how a rollout goes."""

    def moved(self, journey: Journey) -> None:
        """A host's way went on."""

    def doing(self, host: str, step: str, text: str) -> None:
        """A host is at a step."""

    def said(self, text: str) -> None:
        """Something about the whole."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How fast and how far a rollout goes.

    Args:
        max_unavailable: so many hosts at most are out of service at once; None for a whole wave.
        pause: seconds between waves.
        host_limit: seconds after which a host is given up in one run; None for its steps' own limits.
        prepare: make the new release before a host is drained; a rollback has none to make.
        ahead: once a wave is through, prepare the wave after next while the next one is switched.
    """

    max_unavailable: int | None = None
    pause: float = 0
    host_limit: float | None = None
    prepare: bool = True
    ahead: bool = True


class Ahead:
    """A wave that is being prepared while the one before it is switched.

    Args:
        work: prepares its hosts.
    """

    def __init__(self, work: Callable[[], Recorder]) -> None:
        self._greenlet = gevent.spawn(self._contained, work)

    @staticmethod
    def _contained(work: Callable[[], Recorder]) -> Recorder | Exception:
        # Raised where the result is asked for, not printed where nobody waits.
        try:
            return work()
        except Exception as error:
            return error

    def result(self) -> Recorder:
        """What was found and done, once it is.

        Raises:
            InputError: the playbook or the inventory is wrong.
        """
        made: Recorder | Exception = self._greenlet.get()
        if isinstance(made, Exception):
            raise made
        return made

    def drop(self) -> None:
        """Give it up: what is half prepared serves nobody, and the next run finishes it."""
        self._greenlet.kill()


class Rollout:
    """One rollout, from where its hosts are to where they should be.

    Args:
        runner: runs the deploy.
        waves: the hosts, wave by wave.
        progress: where they are.
        limits: how fast and how far.
        drains: host → what takes it out of service and back.
        journal: written after every change of state.
        watcher: told likewise.
        preflight: judges hosts further before anything is touched, by what was found of them.
    """

    def __init__(
        self,
        runner: Runner,
        waves: Sequence[Sequence[str]],
        progress: Progress,
        limits: Limits,
        drains: Mapping[str, Drain],
        journal: Journal,
        watcher: Watcher,
        preflight: Preflight | None = None,
    ) -> None:
        self.runner = runner
        self.waves = waves
        self.progress = progress
        self.limits = limits
        self.drains = drains
        self.journal = journal
        self.watcher = watcher
        self.preflight = preflight
        self.stopping = False
        self.busy = False
        self.ahead: Ahead | None = None

    def stop(self) -> bool:
        """Stop when no host is half-way.

        Returns:
            Whether hosts are out of service, so that it takes until they are through.
        """
        self.stopping = True
        return self.busy

    def go(self) -> str:
        """Do it.

        Returns:
            `done`: every host got there, or failed within the budget. `stopped`: more hosts failed than may.
            `interrupted`: it was asked to stop.

        Raises:
            InputError: the playbook or the inventory is wrong; no host was touched.
        """
        try:
            outcome = self._go()
        finally:
            if self.ahead:
                self.ahead.drop()
        self.journal.write("end", {"outcome": outcome})
        return outcome

    def _go(self) -> str:
        self._judge()
        proved = False
        for number, wave in enumerate(self.waves, start=1):
            todo = self._at(wave, Stage.WAITING, Stage.PREPARING)
            if not todo:
                continue
            if self._ended():
                break
            if number > 1 and self.limits.pause:
                self._pause(number)
                if self._ended():
                    break
            self.watcher.said(f"wave {number} of {len(self.waves)}: {' '.join(todo)}")
            self._prepare(todo)
            # Never beside the first wave: nothing of the others is touched before one has shown that it works.
            if proved and self.limits.ahead and not self._ended():
                self._prepare_ahead(self.waves[number:])
            for batch in batches(self._at(wave, Stage.PREPARED), self.limits.max_unavailable):
                if self._ended():
                    break
                self._change(batch)
            proved = True
        if self.progress.over_budget:
            return "stopped"
        return "interrupted" if self.stopping and self._unchanged() else "done"

    def _unchanged(self) -> list[str]:
        return self.progress.at(Stage.WAITING, Stage.PREPARING, Stage.PREPARED)

    def _ended(self) -> bool:
        return self.stopping or self.progress.over_budget

    # --- parts of the way ----------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """Look at every host before any is touched: who can't be reached or falls short has failed here."""
        names = [name for wave in self.waves for name in self._at(wave, Stage.WAITING)]
        self.watcher.said(f"looking at {', '.join(names) if len(names) < 6 else f'{len(names)} hosts'}")
        found = self._look(names)
        failures = dict(found.failures)
        if self.preflight:
            # Only hosts that are about to change: what is as wanted has been proved by its evidence.
            changing = [name for name in names if name not in failures and found.pending(name)]
            judged = self.preflight(changing, found)
            self.journal.preflight(judged.findings)
            failures = {**judged.failures, **failures}
        for name in names:
            if name in failures:
                self._failed(name, failures[name], found.reports.get(name))
            elif not found.pending(name) and not self._way(name).drained:
                self._to(name, Stage.DONE, release=_current(found, name))

    def _prepare(self, names: Sequence[str]) -> None:
        made = self._made(names)
        if made:
            self._all_failed(names, made)
            # What is left to do now is the switch; where nothing is, the host needs not be drained for it.
            found = self._look(self._at(names, Stage.PREPARING))
            self._all_failed(names, found)
            for name in self._at(names, Stage.PREPARING):
                if not found.pending(name) and not self._way(name).drained:
                    self._to(name, Stage.DONE, release=_current(found, name))
        for name in self._at(names, Stage.PREPARING):
            self._to(name, Stage.PREPARED)

    def _made(self, names: Sequence[str]) -> Recorder | None:
        """The preparation's result; None when there is nothing to prepare."""
        if self.ahead:
            made = self.ahead.result()
            self.ahead = None
            return made
        for name in names:
            self._to(name, Stage.PREPARING)
        return self._run(names, PREPARED) if self.limits.prepare else None

    def _prepare_ahead(self, waves: Sequence[Sequence[str]]) -> None:
        """Begin with the next wave that has something to do; what comes of it counts when its turn comes."""
        names = next((todo for wave in waves if (todo := self._at(wave, Stage.WAITING))), None)
        if names and self.limits.prepare:
            self.watcher.said(f"preparing the next wave meanwhile: {' '.join(names)}")
            for name in names:
                self._to(name, Stage.PREPARING)
            self.ahead = Ahead(lambda: self._run(names, PREPARED))

    def _change(self, batch: Sequence[str]) -> None:
        """Drain, switch, gate, undrain: meanwhile these hosts are out of service, and asking to stop has to wait."""
        self.busy = True
        for name in batch:
            self._to(name, Stage.DRAINING)
        self._each(batch, self._drain)
        out = self._at(batch, Stage.DRAINING)
        for name in out:
            self._to(name, Stage.SWITCHING)
        made = self._run(out, SERVED)
        # Looked at anew, with the eyes of somebody who doesn't know what was done.
        look = self._look(out)
        self._each(out, lambda name: self._settle(name, made, look))
        self.busy = False

    def _drain(self, name: str) -> None:
        if not isinstance(self.drains[name], NoDrain):
            self.watcher.doing(name, "drain", "no new requests, waiting for those in flight")
        try:
            self.drains[name].drain(name)
        except DrainError as error:
            self.progress = self.progress.step(self._way(name).undrained())
            self._failed(name, Failure(name, "drain", error.cause, error.remedy), None)

    def _settle(self, name: str, made: Recorder, look: Recorder) -> None:
        """The gate, and the way back into service: of a host that went back to its last release too."""
        report = look.reports.get(name)
        failure = made.failures.get(name) or look.failures.get(name) or gate(name, look)
        if failure:
            failure = failure if failure.remedy else replace(failure, remedy=_SWITCH_REMEDY)
            self._failed(name, failure, report)
            if not report or not report.serving or not _proved(report):
                # Whatever it serves now, nobody knows that it does what it is for: no requests for it.
                return
        else:
            self._to(name, Stage.UNDRAINING, release=report.current if report else None)
        self.watcher.doing(name, "undrain", "")
        try:
            self.drains[name].undrain(name)
        except DrainError as error:
            if not failure:
                self._failed(name, Failure(name, "undrain", error.cause, error.remedy), None)
            return
        if failure:
            self._keep(self._way(name).undrained())
        else:
            self._to(name, Stage.DONE)

    def _pause(self, number: int) -> None:
        self.watcher.said(f"pausing {self.limits.pause:.0f} s before wave {number}")
        left = self.limits.pause
        while left > 0 and not self.stopping:
            gevent.sleep(min(_TICK, left))
            left -= _TICK

    # --- small things --------------------------------------------------------------------------------------------

    def _look(self, names: Sequence[str]) -> Recorder:
        return self.runner.run(names, data=SERVED, host_limit=self.limits.host_limit)

    def _run(self, names: Sequence[str], data: Mapping[str, Any]) -> Recorder:
        return self.runner.run(
            names, change=True, data=data, told=self.watcher.doing, host_limit=self.limits.host_limit
        )

    def _each(self, names: Sequence[str], work: Callable[[str], None]) -> None:
        greenlets = [gevent.spawn(work, name) for name in names]
        try:
            gevent.joinall(greenlets, raise_error=True)
        except BaseException:
            gevent.killall(greenlets)
            raise

    def _way(self, name: str) -> Journey:
        return self.progress.journeys[name]

    def _at(self, names: Sequence[str], *stages: Stage) -> list[str]:
        return [name for name in names if self._way(name).stage in stages]

    def _all_failed(self, names: Sequence[str], made: Recorder) -> None:
        for name in self._at(names, Stage.PREPARING):
            if name in made.failures:
                self._failed(name, made.failures[name], made.reports.get(name))

    def _failed(self, name: str, failure: Failure, report: HostReport | None) -> None:
        stage = Stage.FAILED
        if self._way(name).stage is Stage.SWITCHING and report and report.serving and report.current != report.target:
            stage = Stage.BACK
        self._to(name, stage, release=report.current if report else None, failure=failure)

    def _to(self, name: str, stage: Stage, *, release: str | None = None, failure: Failure | None = None) -> None:
        cause = f"{failure.step}: {failure.cause}" if failure else ""
        self._keep(self._way(name).to(stage, release=release, cause=cause, remedy=failure.remedy if failure else ""))

    def _keep(self, journey: Journey) -> None:
        self.progress = self.progress.step(journey)
        # On disk first: what is shown has come to pass for whoever resumes, too.
        self.journal.host(journey)
        self.watcher.moved(journey)


def gate(name: str, look: Recorder) -> Failure | None:
    """Why a host may not get requests again; None when it may.

    Args:
        name: the host.
        look: what was found after the switch.
    """
    report = look.reports.get(name)
    if report is None:
        return Failure(name, "gate", "nothing is known of the host after the switch", "look at it, then resume")
    pending = look.pending(name)
    if pending:
        left = "; ".join(f"{step}: {changes[0]}" for step, changes in pending.items())
        return Failure(name, "gate", f"not all is as wanted: {left}", "run `lmcache-fleet plan`, then resume")
    if report.service and not report.serving:
        states = ", ".join(f"{unit} {state}" for unit, state in report.service.items())
        return Failure(
            name, "gate", f"{report.current} is not served ({states})", "read the unit's journal, then resume"
        )
    if report.service and not _proved(report):
        return Failure(
            name,
            "gate",
            "there is no evidence of a served request and a cache hit",
            "the playbook needs a verify step of stage online",
        )
    return None


def _proved(report: HostReport) -> bool:
    return bool((report.evidence.get("online") or {}).get("ok"))


def _current(found: Recorder, name: str) -> str | None:
    report = found.reports.get(name)
    return report.current if report else None
