"""Where a host stands, written down for whoever drives the run."""

from __future__ import annotations

from dataclasses import replace

from facts.containers import BroughtImages
from facts.releases import ReleaseSizes
from facts.system import System
from facts.units import Unit, Units
from lmcache_fleet.identities import known_machine_id
from lmcache_fleet.playbook.model import ServiceStep
from lmcache_fleet.recording import HostReport, ReleaseBrief
from lmcache_fleet.release import HostReleases
from lmcache_fleet.units import SERVICE_UNITS, unit_names
from operations.plan import HostPlan
from operations.session import Session


def host_report(session: Session, plan: HostPlan) -> HostReport:
    """Where a host stands on its way to what a playbook wants.

    Args:
        session: the host's session.
        plan: the host's plan.
    """
    names = tuple(name for step in plan.playbook.of_kind(ServiceStep) for name in unit_names(step))
    return replace(standing(session, plan.releases, plan.target.name, names), playbook=plan.document.file)


def standing(session: Session, found: HostReleases, target: str, names: tuple[str, ...]) -> HostReport:
    """Where a host stands on its way to a release.

    Args:
        session: the host's session.
        found: what is under the prefix.
        target: the release that it is to serve.
        names: its units.
    """
    serving, prefix = found.serving, session.layout.prefix
    seen = session.read(Units, names=SERVICE_UNITS) if names else {}
    units = {name: unit for name, unit in seen.items() if name in names}
    measured = session.recorder is not None and session.recorder.measure
    sizes = session.read(ReleaseSizes, prefix=prefix) if measured else {}
    images = session.read(BroughtImages, images=found.images) if measured and found.images else {}
    running = [unit.environment.get("LMCACHE_FLEET_RELEASE", "") for unit in units.values() if unit.running]
    return HostReport(
        target=target,
        current=found.current,
        previous=found.previous,
        interrupted=found.activation is not None,
        rolled_back=found.rolled_back,
        machine_id=session.read(System, prefix=prefix).machine_id,
        known_machine_id=known_machine_id(session.host.name),
        service={name: units.get(name, Unit(None)).properties.get("ActiveState", "absent") for name in names},
        running=tuple(sorted({name for name in running if name})),
        evidence={
            stage: {"ok": bool(item.get("ok")), "finished": item.get("finished")}
            for stage, item in (serving.evidence if serving else {}).items()
        },
        releases=tuple(
            ReleaseBrief(name, state.sealed, *(sizes.get(name) or (None, None)))
            for name, state in found.releases.items()
        ),
        images=len(found.images),
        image_bytes=sum(item["size"] for item in images.values()) if images else None,
    )
