"""The release's directory: made, sealed, and old ones taken away."""

from __future__ import annotations

import json
from datetime import datetime, timezone

from pyinfra.connectors.util import CommandOutput

from facts.containers import BroughtImages, Containers
from facts.releases import Releases, ReleaseSizes
from facts.units import Unit, Units
from lmcache_fleet.brought_images import left, needless, removals
from lmcache_fleet.changes import Change
from lmcache_fleet.identities import remember_machine_id
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.model import ServiceStep
from lmcache_fleet.release import HostReleases, release_spec, release_steps, revision
from lmcache_fleet.shell import program_source, script, words, write_file
from lmcache_fleet.sizes import readable
from lmcache_fleet.units import SERVICE_UNITS
from operations.faults import Commands, step_operation
from operations.plan import HostPlan
from operations.session import Session

_FOLDERS = ("releases", "models", "tools", "cache", "secrets", "run", "sources", "builds")


@step_operation
def release(session: Session, plan: HostPlan) -> Commands:
    """The release that the steps work on has its directory and manifest."""
    target = plan.target
    if target.exists:
        session.show([])
        session.host.noop(f"release {target.name} is there")
        return
    serving = plan.releases.current
    if not session.show([Change("release", serving, target.name, why=target.why)]):
        return
    layout = session.layout
    root = layout.release(target.name).root
    manifest = {
        "spec": target.spec,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "why": target.why,
        **release_spec(plan.playbook, plan.wanted.key),
    }
    staging = f"{root}.new"
    yield session.remote(
        script(
            f"umask 022; cd {words(layout.prefix)} && mkdir -p {words(*_FOLDERS)}",
            f"chmod 0700 {words(f'{layout.prefix}/secrets')}",
            f"rm -rf {words(staging)} && mkdir -p {words(f'{staging}/records')}",
            write_file(f"{staging}/release.json", json.dumps(manifest, indent=1, sort_keys=True)),
            f"mv {words(staging, root)}",
        )
    )
    session.forget(Releases)


@step_operation
def switch(session: Session, plan: HostPlan) -> Commands:
    """`current` points to the release that this run worked on; for playbooks that run no service.

    It stays where it is as long as a service starts from it.
    """
    host, target = plan.releases, plan.target
    stays = host.current == target.name or carried(session, plan)
    if not session.show([] if stays else [Change("current", host.current, target.name)]):
        session.host.noop(f"current is {host.current}")
        return
    link, staged = session.layout.current, f"{session.layout.current}.new"
    before = json.dumps({"release": host.current})
    yield session.remote(
        script(
            write_file(f"{session.layout.prefix}/previous.json", before) if host.current else None,
            f"ln -sfn {words(f'releases/{target.name}', staged)} && mv -T {words(staged, link)}",
        )
    )
    session.forget(Releases)


def carried(session: Session, plan: HostPlan) -> tuple[str, ...]:
    """Units for whose sake `current` doesn't move to the release of a playbook that runs no service; mostly none.

    That release has nothing for them to start: they would run until they are restarted, and never come back.
    """
    current = plan.releases.current
    if plan.playbook.of_kind(ServiceStep) or not release_steps(plan.playbook):
        return ()
    if current is None or current == plan.target.name:
        return ()
    return starting_from(session.layout, session.read(Units, names=SERVICE_UNITS))


def starting_from(layout: Layout, units: dict[str, Unit]) -> tuple[str, ...]:
    """Units that start from `current`, now or with the host; one that was disabled and stopped doesn't.

    Args:
        layout: paths on the host.
        units: as they are on the host.
    """
    return tuple(
        name
        for name, unit in units.items()
        if f"ExecStart={layout.current}/" in (unit.text or "")
        and (
            unit.properties.get("UnitFileState") == "enabled"
            or unit.properties.get("ActiveState", "inactive") not in {"inactive", "failed"}
        )
    )


@step_operation
def retention(session: Session, plan: HostPlan, keep: int) -> Commands:
    """Only the newest releases stay: the serving one, the one before it, and others up to the number to keep.

    Images that we brought to the host go with the last release that names them.
    """
    if session.executing and plan.system.machine_id:
        # The last step: the host is as wanted, and it is this installation of it that is known from now on.
        remember_machine_id(session.host.name, plan.system.machine_id)
    doomed = expendable(plan.releases, plan.target.name, keep)
    # Measured only when something goes: it reads every file's size.
    sizes = session.read(ReleaseSizes, prefix=session.layout.prefix) if doomed else {}
    changes = [Change(f"release {name}", f"frees {readable(sizes.get(name, (0, 0))[1])}", None) for name in doomed]
    images = needless(plan.releases, doomed, plan.wanted.images.values())
    seen = session.read(BroughtImages, images=images) if images else {}
    changes += removals(images, seen)
    if not session.rehearsing:
        for line in left(images, seen):
            session.host.log(line)
    if not session.show(changes):
        session.host.noop("no old releases")
        return
    if doomed:
        paths = [session.layout.release(name).root for name in doomed]
        yield session.remote(f"rm -rf -- {words(*paths)}")
    if images:
        # After the releases: cut off in between, the next run still finds what nothing needs.
        def told(output: CommandOutput) -> None:
            after = json.loads(output.stdout_lines[-1])
            # What was already said before is not said again.
            for line in left({key: images[key] for key in images if seen[key]["state"] == "ours"}, after):
                session.host.log(line)

        yield session.remote(
            words("python3", "-c", program_source("brought_images.py")),
            stdin=json.dumps({"images": images, "remove": session.layout.images}),
            then=told,
        )
    session.forget(Releases, Containers, BroughtImages)


def expendable(host: HostReleases, target: str, keep: int) -> list[str]:
    """Releases that can go: never the serving one, the one before it, nor the one being worked on.

    Args:
        host: what is on the host.
        target: the release that this run works on.
        keep: how many to keep in all, at least two, so that there is always a way back.
    """
    safe = {host.current, host.previous, target}
    others = [name for name in host.releases if name not in safe]
    # Unfinished ones first, then the oldest: nobody rolls back to a release that never verified.
    others.sort(key=lambda name: (host.releases[name].sealed, host.releases[name].created, revision(name)))
    return others[: max(0, len(host.releases) - max(2, keep))]
