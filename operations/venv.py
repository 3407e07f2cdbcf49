"""An interpreter of the wanted minor version, uv, and the virtual environment of a release."""

from __future__ import annotations

from facts.releases import Releases
from lmcache_fleet.changes import Change
from lmcache_fleet.installer import DEFAULT_UV, UV_ENV
from lmcache_fleet.layout import Layout
from lmcache_fleet.playbook.model import VenvStep
from lmcache_fleet.shell import exports, program_source, script, words
from operations.bundle import laid_out
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.plan import HostPlan
from operations.session import Session


def uv_path(step: VenvStep, layout: Layout) -> str:
    """Where uv is on the host: the playbook's own path, or the tool of that version."""
    if step.uv and step.uv.startswith("/"):
        return step.uv
    return f"{layout.tool(_uv_tool(step))}/bin/uv"


def _uv_tool(step: VenvStep) -> str:
    return f"uv-{step.uv or DEFAULT_UV}"


@step_operation
def installer_tool(session: Session, plan: HostPlan, step: VenvStep) -> Commands:
    """uv of the wanted version is on the host.

    + step: names the version, or a path to one that is already there
    """
    name = _uv_tool(step)
    provided = step.installer != "uv" or (step.uv or "").startswith("/")
    if provided or name in plan.releases.tools:
        session.show([])
        session.host.noop("the installer is there")
        return
    session.show([Change("uv", None, name.removeprefix("uv-"))])
    tool = session.layout.tool(name)
    staging = f"{tool}.new"
    laid, places = None, words("--index-url", step.index_url) if step.index_url else ""
    places += " " + " ".join(words("--trusted-host", host) for host in step.trusted_hosts)
    if plan.bundle is not None:
        folder = f"{session.layout.bundle}/links/{name}"
        laid = laid_out(plan, [plan.bundle.manifest.tools[name.replace("-", "==")]], folder)
        places = words("--no-index", "--find-links", folder)
    yield session.remote(
        script(
            laid,
            f"rm -rf {words(staging)} && mkdir -p {words(session.layout.tool(''))}",
            # Only uv's own binary is used afterwards, and that one doesn't mind being moved: nobody needs pip in there.
            words(_interpreter(plan), "-m", "venv", "--without-pip", staging),
            f"{words(f'{staging}/bin/python', '-c', program_source('bundled_pip.py'))} install --quiet "
            f"--disable-pip-version-check --no-compile --retries 3 {places} {words(name.replace('-', '=='))}",
            f"rm -rf {words(tool)} && mv {words(staging, tool)}",
        ),
        timeout=900,
        doing=f"fetching {name}",
    )
    session.forget(Releases)


@step_operation
def venv(session: Session, plan: HostPlan, step: VenvStep) -> Commands:
    """The release has a virtual environment of the wanted Python.

    + step: minor version, installer, and an interpreter to use
    """
    if not session.show(plan.changes(step)):
        session.host.noop(f"python {step.python} is there")
        return
    layout = session.layout
    release = layout.release(plan.target.name)
    interpreter = _interpreter(plan)
    site = "--system-site-packages" if step.system_site_packages else ""
    if step.installer == "uv":
        environment = exports({**UV_ENV, "UV_CACHE_DIR": layout.uv_cache})
        make = f"{environment} {words(uv_path(step, layout), 'venv', '--quiet', '--python', interpreter)} {site}"
    else:
        make = f"{words(interpreter, '-m', 'venv')} {site}"
    yield session.remote(
        script(
            # What an interrupted installation left can't be told from a whole one: start over.
            f"rm -rf {words(release.venv, release.file('records/installing.json'))}",
            f"{make} {words(release.venv)}",
        ),
        timeout=300,
    )
    session.forget(Releases)


def _interpreter(plan: HostPlan) -> str:
    found = plan.interpreters()
    step = plan.needed_venv()
    fitting = [item for item in found if item.version.startswith(f"{step.python}.")]
    usable = [item for item in fitting if step.installer == "uv" or item.venv] or fitting
    if not usable:
        seen = ", ".join(f"{item.version} at {item.path}" for item in found) or "none"
        raise HostFault(
            f"no Python {step.python} on the host (found: {seen})",
            f"install python{step.python} with its venv and dev packages, or set `interpreter` in the venv step",
        )
    return str(usable[0].path)
