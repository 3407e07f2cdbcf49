"""`lmcache-fleet rollout` and `rollback`: a change carried through a fleet in waves, and taken back."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmcache_fleet.cli_fleet import Texts, fleet_options, input_errors, load
from lmcache_fleet.problems import InputError, Problem

if TYPE_CHECKING:
    from lmcache_fleet.drain import Drain
    from lmcache_fleet.fleet import Fleet
    from lmcache_fleet.preflight.report import Judged
    from lmcache_fleet.recording import Recorder
    from lmcache_fleet.rollout.driver import Limits, Preflight
    from lmcache_fleet.rollout.journal import Begin, History
    from lmcache_fleet.rollout.journey import Progress

_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")


class Span(click.ParamType):  # type: ignore[type-arg]
    """A time such as `90`, `90s`, `5m` or `1h`, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds of a text."""
        if isinstance(value, (int, float)):
            return float(value)
        found = _SPAN.fullmatch(value)
        if not found:
            self.fail(f"'{value}': expected a time such as 90s, 5m or 1h", param, ctx)
        return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


_UNAVAILABLE = click.option(
    "--max-unavailable",
    type=click.IntRange(1),
    metavar="N",
    help="At most so many hosts out of service at once; a quarter of all if not given.",
)
_FAILURES = click.option(
    "--max-failures",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="So many hosts may fail; the next one stops it.",
)
_HOST_LIMIT = click.option(
    "--host-limit", type=Span(), default="2h", metavar="TIME", help="Give a host up that takes longer over one part."
)


@click.command()
@click.argument("inventory")
@click.argument("deploy")
@click.option(
    "--waves", default="1,10%,50%,100%", show_default=True, help="Hosts done after each wave: numbers or percentages."
)
@_UNAVAILABLE
@_FAILURES
@click.option("--pause", type=Span(), default="0", metavar="TIME", help="Wait between waves.")
@_HOST_LIMIT
@click.option("--same-domain-ok", is_flag=True, help="Let hosts of one failure domain change in one wave.")
@click.option(
    "--no-prepare-ahead",
    is_flag=True,
    help="Touch no wave before the last is through; else, once the first is, each is prepared while the last switches.",
)
@click.option("--resume", is_flag=True, help="Take up the fleet's last rollout where it ended.")
@click.option("--no-preflight", is_flag=True, help="Only the playbook's requirements, not the whole check catalogue.")
@fleet_options
@input_errors
def rollout(
    inventory: str,
    deploy: str,
    waves: str,
    max_unavailable: int | None,
    max_failures: int,
    pause: float,
    host_limit: float,
    same_domain_ok: bool,
    no_prepare_ahead: bool,
    resume: bool,
    no_preflight: bool,
    limit: Texts,
    data: Texts,
    group_data: Texts,
) -> None:
    """Carry DEPLOY through the hosts of INVENTORY wave by wave: prepare, drain, switch, prove, put back in service.

    A host that fails its proof goes back to its last release by itself. Ctrl-C stops when no host is half-way; twice,
    at once. Ends with 0 when every host is as wanted, 1 when one failed, 130 when interrupted.
    """
    fleet = load(inventory, deploy, data, group_data)
    from lmcache_fleet.rollout.driver import Limits
    from lmcache_fleet.rollout.journal import Begin, resumed
    from lmcache_fleet.rollout.journey import Progress
    from lmcache_fleet.rollout.waves import parse_waves, plan_waves

    try:
        sizes = parse_waves(waves)
    except ValueError as error:
        raise InputError([Problem("--waves", 0, 0, "", str(error))]) from error

    def limits_of(hosts: int) -> Limits:
        return Limits(max_unavailable or quarter(hosts), pause, host_limit, ahead=not no_prepare_ahead)

    with _locked(inventory, "rollout") as folder:
        if resume:
            history = _history(folder, fleet, deploy)
            begin, progress = history.begin, resumed(history)
            progress = type(progress)(progress.journeys, max_failures)
            limits = limits_of(len(progress.journeys))
            sys.exit(_drive(fleet, folder, begin, progress, limits, history.path, not no_preflight))
        names = _hosts(fleet, limit)
        domains = {name: fleet.settings(name).failure_domain for name in names}
        dealt = plan_waves(names, sizes, domains, same_domain_ok)
        options = {"max_failures": max_failures, "max_unavailable": max_unavailable, "waves": waves}
        begin = Begin("rollout", inventory, deploy, dealt, options, _variables(fleet), _places(fleet))
        progress = Progress.start(dealt, max_failures)
        limits = limits_of(len(names))
        sys.exit(_drive(fleet, folder, begin, progress, limits, None, not no_preflight))


def quarter(count: int) -> int:
    """A quarter of the hosts, at least one: so many may be out of service at once when nobody says otherwise."""
    return max(1, count // 4)


def _hosts(fleet: Fleet, limit: Texts) -> list[str]:
    """The hosts that a rollout is about: not those that spread requests over them."""
    names = fleet.limited(limit)
    balancers = {item for name in fleet.names if (drain := fleet.settings(name).drain) for item in drain.balancers}
    left_out = [name for name in names if name in balancers]
    if left_out:
        click.echo(f"left out, as load balancers of others: {' '.join(left_out)}", err=True)
    kept = [name for name in names if name not in balancers]
    if not kept:
        raise InputError([Problem("--limit", 0, 0, "", "only load balancers are left")])
    return kept


def _variables(fleet: Fleet) -> dict[str, Any]:
    given = fleet.override.get("vars", {})
    return dict(given) if isinstance(given, Mapping) else {}


def _places(fleet: Fleet) -> dict[str, str]:
    """Playbook and bundle, wherever the command is given from."""
    given = {name: fleet.override.get(name) for name in ("playbook", "bundle")}
    return {name: str(Path(str(place)).resolve()) for name, place in given.items() if place}


def _locked(inventory: str, doing: str) -> Any:
    from contextlib import contextmanager

    from lmcache_fleet.rollout.journal import FleetBusy, fleet_folder, fleet_lock

    @contextmanager
    def held() -> Any:
        folder = fleet_folder(inventory)
        try:
            with fleet_lock(folder, doing):
                yield folder
        except FleetBusy as error:
            raise InputError(
                [Problem(inventory, 0, 0, "", f"{error}; wait for it to end, its lock goes with its process")]
            ) from error

    return held()


def _history(folder: Path, fleet: Fleet, deploy: str) -> History:
    """The rollout to resume; refused when something else is asked for than it was begun with."""
    from lmcache_fleet.rollout.journal import last_history

    found = last_history(folder)
    if found is None:
        raise InputError([Problem("--resume", 0, 0, "", "no rollout of this fleet was begun from here")])
    if found.progress.complete:
        raise InputError([Problem("--resume", 0, 0, "", f"the last rollout, of {found.when}, is complete")])
    wrong = []
    if Path(found.begin.deploy).resolve() != Path(deploy).resolve():
        wrong.append(f"it was of {found.begin.deploy}")
    if found.begin.variables != _variables(fleet):
        wrong.append(f"it had the variables {found.begin.variables}")
    given = _places(fleet)
    for name in sorted({*found.begin.places, *given}):
        before = found.begin.places.get(name)
        if before != given.get(name):
            wrong.append(f"it was given {name}={before}" if before else f"it was given no {name}")
    gone = [name for wave in found.begin.waves for name in wave if name not in fleet.names]
    if gone:
        wrong.append(f"the inventory no longer has {' '.join(gone)}")
    if wrong:
        text = f"the last rollout, of {found.when}, can't be taken up: {'; '.join(wrong)}. Begin a new one"
        raise InputError([Problem("--resume", 0, 0, "", text)])
    return found


def _drive(
    fleet: Fleet,
    folder: Path,
    begin: Begin,
    progress: Progress,
    limits: Limits,
    old: Path | None,
    preflight: bool = False,
) -> int:
    """Run a rollout to its end; gives the exit status."""
    from rich.console import Console

    from lmcache_fleet.fleet import log_to
    from lmcache_fleet.reporters.plan import console
    from lmcache_fleet.reporters.rollout import LiveWatcher, PlainWatcher, show_standing
    from lmcache_fleet.rollout.driver import Rollout
    from lmcache_fleet.rollout.journal import Journal

    journal = Journal(old) if old else Journal.new(folder, begin)
    if old:
        journal.write("resume", {"options": begin.options})
    log_to(journal.path.with_suffix(".log"))
    out = console()
    click.echo(f"journal: {journal.path}", err=True)
    with ExitStack() as stack:
        live = isinstance(out, Console) and out.is_terminal
        watcher = stack.enter_context(LiveWatcher(out, progress, begin.waves)) if live else PlainWatcher(out)
        drains = _drains(fleet, progress, watcher)
        checks = _preflight(fleet) if preflight else None
        run = Rollout(fleet, begin.waves, progress, limits, drains, journal, watcher, checks)
        _take_signals(run, watcher)
        try:
            outcome = run.go()
        except KeyboardInterrupt:
            outcome = "interrupted"
            journal.write("end", {"outcome": outcome})
        except InputError as error:
            # Somebody changed the playbook or the inventory meanwhile: hosts may be on their way.
            outcome = "stopped"
            journal.write("end", {"outcome": outcome})
            for problem in error.problems:
                watcher.said(str(problem))
    show_standing(out, run.progress, outcome, resumable=begin.what == "rollout")
    journal.close()
    if outcome == "interrupted":
        return 130
    return 0 if run.progress.complete else 1


def _drains(fleet: Fleet, progress: Progress, watcher: Any) -> dict[str, Drain]:
    from lmcache_fleet.drain import drain_of

    shell = fleet.shell()

    def one(name: str) -> Drain:
        return drain_of(fleet.settings(name), shell, lambda text: watcher.doing(name, "drain", text))

    return {name: one(name) for name in progress.journeys}


def _preflight(fleet: Fleet) -> Preflight:
    """Every check of the catalogue, for the playbooks that the hosts are about to follow."""
    from lmcache_fleet.fleet import deploy_file
    from lmcache_fleet.preflight.report import Judged
    from lmcache_fleet.repository import ROOT

    checks = deploy_file(ROOT / "deploys" / "preflight.py")

    def judge(names: Collection[str], found: Recorder) -> Judged:
        playbooks: dict[str, list[str]] = {}
        for name in names:
            report = found.reports.get(name)
            if report and report.playbook:
                playbooks.setdefault(report.playbook, []).append(name)
        runs = [fleet.running(checks, playbook=playbook).run(hosts) for playbook, hosts in playbooks.items()]
        return Judged(
            {name: items for run in runs for name, items in run.findings.items()},
            {name: failure for run in runs for name, failure in run.failures.items()},
        )

    return judge


def _take_signals(run: Any, watcher: Any) -> None:
    """Ctrl-C stops when no host is half-way; a second one, or one while none is, stops at once."""
    import gevent

    main = gevent.getcurrent()

    def asked() -> None:
        again = run.stopping
        if run.stop() and not again:
            watcher.said("stopping when the hosts on their way are through; once more to stop at once")
        else:
            gevent.kill(main, KeyboardInterrupt())

    for number in (signal.SIGINT, signal.SIGTERM):
        gevent.signal_handler(number, asked)


@click.command()
@click.argument("inventory")
@click.argument("deploy", required=False)
@click.option("--to", "release", metavar="RELEASE", help="This release instead of the one that served before.")
@click.option("--wave", type=click.IntRange(1), metavar="N", help="Only hosts of that wave of the last rollout.")
@_UNAVAILABLE
@_FAILURES
@_HOST_LIMIT
@fleet_options
@input_errors
def rollback(
    inventory: str,
    deploy: str | None,
    release: str | None,
    wave: int | None,
    max_unavailable: int | None,
    max_failures: int,
    host_limit: float,
    limit: Texts,
    data: Texts,
    group_data: Texts,
) -> None:
    """Take hosts of INVENTORY back to the release that served before: one restart each, nothing fetched, proved.

    Hosts are drained as in a rollout. With DEPLOY, what a run of it would do afterwards is said too.
    """
    given = (*data, *([f"rollback_to={json.dumps(release)}"] if release else []))
    from lmcache_fleet.repository import ROOT

    path = ROOT / "deploys" / "rollback.py"
    fleet = load(inventory, path, given, group_data)
    from lmcache_fleet.rollout.driver import Limits
    from lmcache_fleet.rollout.journal import Begin, last_history
    from lmcache_fleet.rollout.journey import Progress

    with _locked(inventory, "rollback") as folder:
        names = _hosts(fleet, limit)
        if wave is not None:
            history = last_history(folder)
            if history is None or wave > len(history.begin.waves):
                count = len(history.begin.waves) if history else 0
                raise InputError([Problem("--wave", 0, 0, "", f"the last rollout had {count} waves")])
            names = [name for name in names if name in history.begin.waves[wave - 1]]
        begin = Begin("rollback", inventory, str(path), [names], {"max_failures": max_failures, "to": release}, {})
        limits = Limits(max_unavailable or quarter(len(names)), 0, host_limit, prepare=False)
        code = _drive(fleet, folder, begin, Progress.start([names], max_failures), limits, None)
    if code:
        sys.exit(code)
    if deploy:
        _afterwards(inventory, deploy, data, group_data, names)
    else:
        click.echo(
            "a run with the playbook as it is would roll forward again: take the change back there too", err=True
        )


def _afterwards(inventory: str, deploy: str, data: Texts, group_data: Texts, names: Sequence[str]) -> None:
    """What a run would do now, in short."""
    from lmcache_fleet.grouping import plan_of
    from lmcache_fleet.reporters.plan import console, show_plan

    found = plan_of(names, load(inventory, deploy, data, group_data).run(names))
    click.echo(f"what a run of {deploy} would do now:", err=True)
    show_plan(console(), found)
