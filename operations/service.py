"""systemd units of a verified release, and the switch to it."""

from __future__ import annotations

import json

from facts.releases import Releases
from facts.units import Account, SecretFile, Unit, Units
from lmcache_fleet.changes import Change, text_change
from lmcache_fleet.digest import text_digest
from lmcache_fleet.envfile import parse_env, render_env
from lmcache_fleet.inventory import SecretSource
from lmcache_fleet.judge import evidence_change
from lmcache_fleet.layout import STATE_DIRECTORY
from lmcache_fleet.playbook.model import ServiceStep, VerifyStep
from lmcache_fleet.release import HostReleases
from lmcache_fleet.shell import program_source, words
from lmcache_fleet.units import SERVICE_UNITS, health_url, render_units, unit_digest
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.plan import HostPlan
from operations.session import Session
from operations.texts import write_texts
from operations.verify import evidence_file, verify_request


@step_operation
def account(session: Session, plan: HostPlan, step: ServiceStep) -> Commands:
    """The service's account exists and is in those of the wanted groups that the host has.

    + step: names the user and the groups
    """
    seen = session.read(Account, user=step.user, groups=tuple(step.groups))
    lacking = [group for group in seen.present_groups if group not in seen.groups]
    changes = [] if seen.exists else [Change(f"user {step.user}", None, "a system account without login")]
    changes += [Change(f"user {step.user}", None, f"member of {group}") for group in lacking]
    if seen.state_owner != step.user:
        changes.append(Change(STATE_DIRECTORY, seen.state_owner and f"of {seen.state_owner}", f"of {step.user}"))
    if not session.show(changes):
        session.host.noop(f"user {step.user} is there")
        return
    make = words("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", STATE_DIRECTORY)
    commands = [] if seen.exists else [f"{make} --shell /usr/sbin/nologin {words(step.user)}"]
    commands += [words("usermod", "-aG", group, step.user) for group in lacking]
    commands.append(words("install", "-d", "-m", "0750", "-o", step.user, "-g", step.user, STATE_DIRECTORY))
    yield session.remote(" && ".join(commands))
    session.forget(Account)


@step_operation
def service_files(session: Session, plan: HostPlan, step: ServiceStep) -> Commands:
    """The release holds its start scripts and the service's environment.

    + step: model, connector, arguments, environment
    """
    files = plan.wanted.service_files(step, plan.target.name)
    yield from write_texts(session, plan, plan.changes(step), files.texts, files.executable)


@step_operation
def service(session: Session, plan: HostPlan, step: ServiceStep, sources: dict[str, SecretSource]) -> Commands:
    """The units are as wanted and the running processes were started from this release and these units.

    + step: the service
    + sources: where the control machine takes its secrets from

    Switch, restart, on-line proof and the way back are one program on the host, so that a lost connection or a killed
    control process can't leave it half-way.
    """
    groups = session.read(Account, user=step.user, groups=tuple(step.groups)).present_groups
    units = session.read(Units, names=SERVICE_UNITS)
    wanted = render_units(step, session.layout, groups, plan.engine)
    target, host = plan.target, plan.releases
    digest = None
    if step.secrets:
        digest = parse_env(_secret_file(plan, step, sources)[0])["LMCACHE_FLEET_SECRETS"]
    changes = unit_changes(wanted, units, target.name, digest)
    changes += [
        Change(f"/etc/systemd/system/{name}", "of an earlier release", None, why="nothing wants it any more")
        for name, unit in units.items()
        if name not in wanted and unit.text is not None
    ]
    if host.current != target.name:
        why = _taken_back(host)
        changes.insert(0, Change("serving release", host.current, target.name, why=why, restarts=True))
    needs_restart = any(change.restarts for change in changes)
    if host.activation:
        changes.insert(0, Change("interrupted switch", host.activation.get("release"), "finished or undone"))
    if not session.show(changes):
        session.host.noop(f"serving {target.name}")
        return
    online = [item for item in plan.playbook.of_kind(VerifyStep) if item.stage == "online"]
    due = [item for item in online if needs_restart or evidence_change(item, plan.wanted, target.state)]
    verify = verify_request(session, plan, online[0]) if online else None
    # What a way back needs, kept with the release: the playbook may be another one by then.
    record = {
        "units": wanted,
        "health": health_url(step),
        "start_timeout": step.start_timeout,
        "verify": {name: value for name, value in verify.items() if name != "programs"} if verify else None,
        "verify_timeout": online[0].timeout if online else 0,
    }
    request = {
        **record,
        "prefix": session.layout.prefix,
        "release": target.name,
        "restart": needs_restart,
        "runner": program_source("run_verify.py"),
        "verify": verify if due else None,
        "record": record,
    }
    limit = 2 * step.start_timeout + (due[0].timeout if due else 0) + 120
    yield session.remote(
        words("python3", "-c", program_source("activate.py")),
        stdin=json.dumps(request),
        timeout=limit,
        stream=True,
        doing=f"switching to {target.name}" if needs_restart else "mending the units",
        fetch=evidence_file(session, target.name, "online") if due else None,
    )
    session.forget(Units, Releases)


def _taken_back(host: HostReleases) -> str:
    back = host.rolled_back or {}
    if not back or back.get("release") != host.current:
        return ""
    return f"{back.get('who')} took it back from {back.get('from')} at {back.get('when')}: this goes forward again"


@step_operation
def secrets(session: Session, plan: HostPlan, step: ServiceStep, sources: dict[str, SecretSource]) -> Commands:
    """The service's secrets are in a file of root's, mode 0600; they travel on standard input only.

    + step: names the secrets
    + sources: where the control machine takes each from
    """
    path = session.layout.secrets("service")
    text, wanted = _secret_file(plan, step, sources)
    seen = session.read(SecretFile, path=path)
    changes = []
    if seen.digest != wanted:
        changes.append(Change(path, None if seen.digest is None else "other secrets", ", ".join(step.secrets)))
    elif seen.mode != "600":
        changes.append(Change(path, f"mode {seen.mode}", "mode 600"))
    if not session.show(changes):
        session.host.noop("the secrets are as wanted")
        return
    folder, staged = path.rsplit("/", 1)[0], f"{path}.new"
    put = f"( umask 077 && cat > {words(staged)} ) && mv -f {words(staged, path)}"
    yield session.remote(f"mkdir -p -m 0700 {words(folder)} && {put}", stdin=text)
    session.forget(SecretFile)


def _secret_file(plan: HostPlan, step: ServiceStep, sources: dict[str, SecretSource]) -> tuple[str, str]:
    """The file's text, and the digest by which the host's file and process are compared."""
    variables = {name: secret_value(name, sources) for name in step.secrets}
    salt = f"{plan.system.machine_id}\n"
    variables["LMCACHE_FLEET_SECRETS"] = text_digest(salt + render_env(variables))[:12]
    text = render_env(variables)
    return text, text_digest(salt + text)


def secret_value(name: str, sources: dict[str, SecretSource]) -> str:
    """A secret of the inventory.

    Args:
        name: its name.
        sources: where the control machine takes secrets from.

    Raises:
        HostFault: the inventory doesn't have it, or it can't be had.
    """
    if name not in sources:
        raise HostFault(f"the inventory has no secret '{name}'", "add it to the host's or group's `secrets`")
    try:
        return sources[name].value()
    except LookupError as error:
        raise HostFault(f"the secret '{name}' can't be had: {error}", "make it available, then run again") from None


def unit_changes(
    wanted: dict[str, str], units: dict[str, Unit], release: str, secrets: str | None = None
) -> list[Change]:
    """What differs between units and running processes, and what is wanted of them.

    Args:
        wanted: unit name → text.
        units: as they are on the host.
        release: the release that must be running.
        secrets: digest of the secrets that it must have been started with; None without any.
    """
    changes = []
    for name, text in wanted.items():
        unit = units.get(name, Unit(None))
        changed = text_change(f"/etc/systemd/system/{name}", unit.text, text)
        if changed:
            changes.append(changed)
        if not changed and unit.properties.get("NeedDaemonReload") == "yes":
            changes.append(Change(name, "systemd has an older text loaded", "reloaded"))
        if unit.text is not None and unit.properties.get("UnitFileState") not in {"enabled", ""}:
            changes.append(Change(name, unit.properties.get("UnitFileState"), "enabled"))
        if unit.running:
            started = unit.environment
            seen = (started.get("LMCACHE_FLEET_RELEASE"), started.get("LMCACHE_FLEET_UNIT"))
            process = f"process of {name}"
            if started.get("LMCACHE_FLEET_SECRETS") != secrets:
                changes.append(Change(process, "started with other secrets", "restarted", restarts=True))
            elif seen != (release, unit_digest(text)):
                before = f"started from release {seen[0]}, unit {seen[1]}"
                after = f"release {release}, unit {unit_digest(text)}"
                changes.append(Change(process, before, after, restarts=True))
        else:
            state = unit.properties.get("ActiveState", "absent")
            changes.append(Change(f"process of {name}", state, f"running release {release}", restarts=True))
    return changes
