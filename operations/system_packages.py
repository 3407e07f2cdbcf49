"""Distribution packages are installed, waiting for the package manager's lock with a limit."""

from __future__ import annotations

from facts.system_packages import AptPackages, DnfPackages
from lmcache_fleet.changes import Change
from lmcache_fleet.playbook.model import SystemPackagesStep
from lmcache_fleet.shell import script, words
from operations.bundle import apt_source
from operations.faults import Commands, step_operation
from operations.host_fault import HostFault
from operations.plan import HostPlan
from operations.session import Session

_APT = (
    "DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -o DPkg::Lock::Timeout={wait} -o Acquire::Retries=3"
)


@step_operation
def system_packages(session: Session, plan: HostPlan, step: SystemPackagesStep) -> Commands:
    """Distribution packages are installed.

    + step: which packages, for apt and for dnf
    """
    system = plan.system
    manager = system.package_manager
    names = step.dnf if manager == "dnf" else step.apt
    if not names:
        session.show([])
        session.host.noop("no distribution packages wanted")
        return
    if manager is None:
        raise HostFault("neither apt-get nor dnf is on the host", "install the packages by hand and leave the step out")
    installed = session.read(DnfPackages if manager == "dnf" else AptPackages, names=names)
    missing = [name for name in names if name not in installed.versions]
    if not session.show([Change(name, None, "installed") for name in missing]):
        session.host.noop(f"installed: {', '.join(names)}")
        return
    if system.uid != 0:
        raise HostFault(
            f"missing packages: {', '.join(missing)}; installing them needs root",
            f"as root: {'dnf install' if manager == 'dnf' else 'apt-get install'} {' '.join(missing)}",
        )
    if installed.lock_holder:
        session.progress(f"waiting up to {step.lock_timeout} s for the package lock, held by {installed.lock_holder}")
    if manager == "dnf":
        install = f"timeout {step.lock_timeout + 1800} dnf install -y -- {words(*missing)}"
    else:
        apt = _APT.format(wait=step.lock_timeout)
        # Lists are fetched only when the install fails without: on a converged mirror that saves a minute a host.
        prepared, options = apt_source(plan, step)
        once = f"{apt} {options} install -y --no-install-recommends -- {words(*missing)}"
        install = script(prepared, once) if prepared else f"{once} || {{ {apt} update -q && {once}; }}"
    yield session.remote(
        install,
        timeout=step.lock_timeout + 3600,
        doing=f"installing {', '.join(missing)}",
    )
    # A package may bring anything: an interpreter, a container engine, a group.
    session.forget()
