"""A fleet's pending changes, said once for all hosts that agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmcache_fleet.changes import Change
from lmcache_fleet.failures import Failure
from lmcache_fleet.plain import Plain
from lmcache_fleet.recording import Recorder


@dataclass(frozen=True, slots=True)
class Group(Plain):
    """Hosts with the same pending changes.

    Args:
        hosts: their names, in the inventory's order.
        steps: step → its changes, in the playbook's order; only steps that have some.
    """

    hosts: tuple[str, ...]
    steps: Mapping[str, tuple[Change, ...]]

    @property
    def count(self) -> int:
        """How many things change on each of the hosts; what a new release takes over as it is doesn't count."""
        return sum(not change.kept for changes in self.steps.values() for change in changes)


@dataclass(frozen=True, slots=True)
class Plan(Plain):
    """What a run would do.

    Args:
        groups: hosts with something pending.
        settled: hosts with nothing pending.
        failures: hosts of which nothing is known, or that can't become as wanted.
        notes: host → what else there is to say, such as that it was reimaged.
    """

    groups: tuple[Group, ...]
    settled: tuple[str, ...]
    failures: tuple[Failure, ...]
    notes: Mapping[str, str]

    @property
    def status(self) -> int:
        """Exit status: 0 nothing to do, 2 changes pending, 1 a host failed."""
        if self.failures:
            return 1
        return 2 if self.groups else 0

    def as_json(self) -> dict[str, Any]:
        """Plain data, by host."""
        hosts: dict[str, Any] = {name: {"state": "settled", "steps": {}} for name in self.settled}
        for group in self.groups:
            steps = {step: [change.as_json() for change in changes] for step, changes in group.steps.items()}
            hosts.update({name: {"state": "pending", "steps": steps} for name in group.hosts})
        for failure in self.failures:
            about = {"step": failure.step, "cause": failure.cause, "remedy": failure.remedy}
            hosts[failure.host] = {"state": "failed", "steps": {}, "failure": about}
        for name, note in self.notes.items():
            hosts[name]["note"] = note
        return {"status": self.status, "groups": [list(group.hosts) for group in self.groups], "hosts": hosts}


def plan_of(names: Sequence[str], recorder: Recorder) -> Plan:
    """What a run would do on hosts.

    Args:
        names: the hosts, in the inventory's order.
        recorder: of a run that only found out.
    """
    groups: list[tuple[dict[str, tuple[Change, ...]], list[str]]] = []
    settled = []
    for name in names:
        if name in recorder.failures:
            continue
        pending = recorder.pending(name)
        if not pending:
            settled.append(name)
            continue
        same = next((hosts for steps, hosts in groups if steps == pending), None)
        if same is None:
            groups.append((pending, [name]))
        else:
            same.append(name)
    return Plan(
        tuple(Group(tuple(hosts), steps) for steps, hosts in groups),
        tuple(settled),
        tuple(recorder.failures[name] for name in names if name in recorder.failures),
        {name: note for name in names if (note := _note(name, recorder))},
    )


def _note(name: str, recorder: Recorder) -> str:
    report = recorder.reports.get(name)
    if report is None:
        return ""
    if report.reimaged:
        return "another installation than the one seen last: it was reimaged"
    if report.rolled_back and report.target != report.current:
        back = report.rolled_back
        taken = f"{back.get('who')} took it back from {back.get('from')} at {back.get('when')}"
        return f"{taken}: a run would roll forward again"
    return ""
