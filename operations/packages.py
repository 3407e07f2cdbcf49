"""One installer call, made only when the installed state is not the wanted one."""

from __future__ import annotations

import json

from facts.interpreters import PipWheelFolders
from facts.releases import Releases
from lmcache_fleet.envfile import parse_env
from lmcache_fleet.installer import InstallerCall, install_call
from lmcache_fleet.layout import ReleaseLayout
from lmcache_fleet.playbook.model import PackagesStep
from lmcache_fleet.shell import exports, run_program, script, words, write_file
from operations.bundle import offline_of
from operations.faults import Commands, step_operation
from operations.plan import HostPlan
from operations.session import Session
from operations.venv import uv_path


@step_operation
def packages(session: Session, plan: HostPlan, step: PackagesStep) -> Commands:
    """The release's virtual environment has the step's pins, from the right distribution.

    + step: pins, indexes, flags, and whose files certain import packages must be
    """
    if not session.show(plan.changes(step)):
        session.host.noop(f"installed: {', '.join(step.wanted)}")
        return
    venv = plan.needed_venv()
    layout = session.layout
    release = layout.release(plan.target.name)
    offered = session.read(PipWheelFolders) if step.machine_wheels else ()
    layout_files, offline = offline_of(plan, step)
    call = install_call(step, venv, layout, release, uv_path(venv, layout), offered, offline=offline)
    record = check_command(step.installed, step.imports, plan, release)
    yield session.remote(
        script(layout_files, install_script(call, release, f"packages {step.name}", record=record)),
        timeout=step.timeout,
        doing=f"installing {', '.join(step.wanted)}",
    )
    session.forget(Releases)


def check_command(installed: dict[str, str], imports: list[str], plan: HostPlan, release: ReleaseLayout) -> str | None:
    """The command that holds what was installed against what was wanted; None when nothing is said of that.

    Args:
        installed: distribution → pattern of its version.
        imports: modules that must load.
        plan: whose toolkit environment the modules load in.
        release: paths of the release.
    """
    if not installed and not imports:
        return None
    request = {"installed": installed, "imports": imports}
    environment = exports(parse_env(plan.wanted.toolkit_env or ""))
    return f"{environment} {run_program('check_installed.py', request, release.python)} </dev/null".strip()


def install_script(call: InstallerCall, release: ReleaseLayout, step: str, record: str | None = None) -> str:
    """The remote script of an installer call, with a mark that stands while it is under way.

    Args:
        call: the call.
        release: paths of the release.
        step: named by the mark, for the next run's plan if this one is cut off.
        record: a further command run after the call, before the mark is taken away.
    """
    mark = release.file("records/installing.json")
    files = [write_file(release.file(path), text) for path, text in call.files.items()]
    return script(
        f"umask 022; mkdir -p {words(release.file('records'), release.file('requirements'))}",
        *files,
        write_file(mark, json.dumps({"step": step})),
        f"cd {words(release.root)} && {exports(call.env)} {words(*call.argv)}",
        record,
        f"rm -f {words(mark)}",
    )
