"""What is installed fits together, but for the conflicts that the playbook expects; judged before the proof."""

from __future__ import annotations

import json

from pyinfra.connectors.util import CommandOutput

from facts.releases import Releases
from lmcache_fleet.changes import Change
from lmcache_fleet.dependencies import (
    PROGRAM,
    checked_digest,
    conflicts,
    expected_conflicts,
    read_installed,
    unexpected,
)
from lmcache_fleet.installer import marker_environment
from lmcache_fleet.shell import program_source, words, write_file
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.plan import HostPlan
from operations.session import Session

_SHOWN = 8


@step_operation
def dependencies(session: Session, plan: HostPlan) -> Commands:
    """No requirement of an installed distribution is unmet, except those that the playbook lists.

    A sealed release was looked at before it was sealed, and costs nothing here.
    """
    expected = expected_conflicts(plan.playbook)
    state = plan.target.state
    if expected is None or plan.target.complete or _is_checked(plan, expected):
        session.show([])
        session.host.noop("what is installed fits together")
        return
    session.show([Change("dependencies", None, "no conflict but those expected")])
    release = session.layout.release(plan.target.name)
    environment = marker_environment(plan.system.arch or "", state.python or plan.needed_venv().python)
    seen: list[str] = []

    def judge(output: CommandOutput) -> None:
        found = conflicts(read_installed(json.loads(output.stdout_lines[-1])), environment)
        wrong = unexpected(found, expected)
        if wrong:
            shown = "; ".join(str(conflict) for conflict in wrong[:_SHOWN])
            more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            raise HostFault(
                f"installed packages conflict: {shown}{more}",
                "correct the pins, or list it in `expected_conflicts` of the venv step when it is known to do no harm",
            )
        seen.extend(str(conflict) for conflict in found)

    yield session.remote(
        words(release.python, "-c", program_source(PROGRAM)), timeout=120, doing="looking for conflicts", then=judge
    )
    session.forget(Releases)
    record = {"of": checked_digest(plan.target.state.distributions, expected), "expected": seen}
    yield session.remote(write_file(release.file("records/dependencies.json"), json.dumps(record, sort_keys=True)))
    session.forget(Releases)


def _is_checked(plan: HostPlan, expected: list[str]) -> bool:
    state = plan.target.state
    record = state.records.get("dependencies") or {}
    return bool(record) and record.get("of") == checked_digest(state.distributions, expected)
