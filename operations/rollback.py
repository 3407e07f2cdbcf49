"""Back to a release that the host still has: one restart, nothing fetched, proved on line."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from pyinfra import host, state
from pyinfra.api.exceptions import DeployError

from facts.releases import Releases, ServiceRecords
from facts.units import Units
from lmcache_fleet.changes import Change
from lmcache_fleet.inventory import data_layers, host_settings
from lmcache_fleet.layout import Layout
from lmcache_fleet.problems import InputError
from lmcache_fleet.release import NoWayBack, rollback_target
from lmcache_fleet.shell import program_source, words
from lmcache_fleet.units import SERVICE_UNITS
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.report import standing
from operations.service import unit_changes
from operations.session import Session, session_for
from operations.verify import evidence_file, verify_programs

_MARGIN = 120


def roll_back() -> None:
    """Take the current host back to its last release, or to the one that its data names in `rollback_to`.

    It doesn't ask the playbook: each release knows how it was put into service, and is put there again just so.
    """
    this = state.inventory.get_host(host.name)
    try:
        settings = host_settings(this.name, data_layers(this.inventory, this))
    except InputError as error:
        raise DeployError(str(error)) from error
    session = session_for(state, this, Layout(settings.prefix))
    session.step = "rollback"
    session.expect([(Releases, {"prefix": settings.prefix}), (ServiceRecords, {"prefix": settings.prefix})])
    try:
        release, record = _chosen(session, settings.rollback_to)
        if session.recorder:
            session.recorder.reports[this.name] = standing(session, _found(session), release, tuple(record["units"]))
    except HostFault as fault:
        session.fail(fault)
        state.fail_hosts({this})
        return
    operation: Callable[..., Any] = serve
    operation(session, settings.rollback_to, name="rollback")


def _found(session: Session) -> Any:
    return session.read(Releases, prefix=session.layout.prefix)


def _chosen(session: Session, wanted: str | None) -> tuple[str, dict[str, Any]]:
    try:
        release = rollback_target(_found(session), wanted)
    except NoWayBack as error:
        raise HostFault(str(error), error.remedy) from error
    record = session.read(ServiceRecords, prefix=session.layout.prefix).get(release)
    if record is None:
        raise HostFault(
            f"{release} doesn't say how it was put into service",
            "converge with the playbook and variables as they were then: the release is there and will be found",
        )
    return release, record


@step_operation
def serve(session: Session, wanted: str | None) -> Commands:
    """The release serves, proved on line.

    + wanted: its name; the last one when there is none
    """
    release, record = _chosen(session, wanted)
    found = _found(session)
    units = session.read(Units, names=SERVICE_UNITS)
    # Secrets are the host's, not the release's: whatever the processes were started with stays.
    started = {unit.environment.get("LMCACHE_FLEET_SECRETS") for unit in units.values() if unit.running}
    changes = unit_changes(record["units"], units, release, next(iter(started), None))
    if found.current != release:
        changes.insert(0, Change("serving release", found.current, release))
    if found.activation:
        changes.insert(0, Change("interrupted switch", found.activation.get("release"), "finished or undone"))
    if not session.show(changes):
        session.host.noop(f"serving {release}")
        return
    verify = record.get("verify")
    request = {
        **record,
        "prefix": session.layout.prefix,
        "release": release,
        "restart": True,
        "runner": program_source("run_verify.py"),
        "verify": {**verify, "programs": verify_programs()} if verify else None,
        "record": record,
        "rollback": {
            "release": release,
            "from": found.current,
            "who": f"{getpass.getuser()}@{socket.gethostname()}",
            "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        },
    }
    yield session.remote(
        words("python3", "-c", program_source("activate.py")),
        stdin=json.dumps(request),
        timeout=2 * record["start_timeout"] + record.get("verify_timeout", 0) + _MARGIN,
        stream=True,
        doing=f"going back from {found.current} to {release}",
        fetch=evidence_file(session, release, "online") if verify else None,
    )
    session.forget(Units, Releases)
