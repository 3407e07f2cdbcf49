"""Checks of the way to a host and of what our steps need there: privileges, tools, locks, clock, login shell."""

from __future__ import annotations

from collections.abc import Iterator

from lmcache_fleet.playbook.model import SystemPackagesStep
from lmcache_fleet.preflight.observation import Subject
from lmcache_fleet.preflight.registry import Values, check

_SKEW = 30.0
_SLOW_LOGIN = 2.0


@check("host-unread")
def _unread(subject: Subject) -> Iterator[Values]:
    for what, cause in subject.host.unread:
        if not _is_sudo(cause):
            yield {"what": what, "cause": cause}


@check("sudo-refused")
def _sudo(subject: Subject) -> Iterator[Values]:
    for _, cause in subject.host.unread:
        if _is_sudo(cause):
            yield {"cause": cause}


def _is_sudo(cause: str) -> bool:
    return "sudo" in cause.lower()


@check("not-root")
def _not_root(subject: Subject) -> Iterator[Values]:
    if subject.host.uid not in (0, None):
        yield {"uid": subject.host.uid}


@check("not-systemd")
def _not_systemd(subject: Subject) -> Iterator[Values]:
    if subject.service and subject.host.init not in ("systemd", None):
        yield {"init": subject.host.init}


@check("command-missing")
def _commands(subject: Subject) -> Iterator[Values]:
    if subject.host.missing_commands:
        yield {"names": ", ".join(subject.host.missing_commands)}


@check("architecture-not-wanted")
def _architecture(subject: Subject) -> Iterator[Values]:
    wanted = subject.playbook.requires.architectures
    if wanted and subject.host.arch and subject.host.arch not in wanted:
        yield {"found": subject.host.arch, "wanted": ", ".join(wanted)}


@check("package-manager-missing")
def _package_manager(subject: Subject) -> Iterator[Values]:
    missing = _missing_packages(subject)
    if missing and subject.host.package_manager is None and subject.host.uid is not None:
        yield {"names": ", ".join(missing)}


@check("system-packages-missing")
def _system_packages(subject: Subject) -> Iterator[Values]:
    missing = _missing_packages(subject)
    if missing and subject.host.package_manager:
        yield {"names": ", ".join(missing)}


def _missing_packages(subject: Subject) -> list[str]:
    if subject.host.packages is None:
        return []
    is_dnf = subject.host.package_manager == "dnf"
    steps: list[SystemPackagesStep] = subject.playbook.of_kind(SystemPackagesStep)
    wanted = [name for step in steps for name in (step.dnf if is_dnf else step.apt)]
    return [name for name in wanted if name not in subject.host.packages]


@check("package-lock-held")
def _package_lock(subject: Subject) -> Iterator[Values]:
    if subject.host.package_lock and _missing_packages(subject):
        yield {"holder": subject.host.package_lock}


@check("run-lock-held")
def _run_lock(subject: Subject) -> Iterator[Values]:
    if subject.host.run_lock:
        yield {"holder": subject.host.run_lock}


@check("clock-skew")
def _clock(subject: Subject) -> Iterator[Values]:
    skew = subject.host.skew_s
    if skew is not None and abs(skew) > _SKEW:
        yield {"seconds": f"{skew:+.0f}"}


@check("reboot-required")
def _reboot(subject: Subject) -> Iterator[Values]:
    if subject.host.reboot_required:
        yield {}


@check("login-shell-slow")
def _slow_login(subject: Subject) -> Iterator[Values]:
    seconds = subject.host.login_s
    if subject.host.login_state == "timed-out" or (seconds is not None and seconds > _SLOW_LOGIN):
        yield {"seconds": f"{seconds:.1f}" if seconds is not None else "20"}


@check("login-shell-fails")
def _failing_login(subject: Subject) -> Iterator[Values]:
    if subject.host.login_state == "failed":
        yield {"said": "; ".join(subject.host.login_noise[:2]) or "-"}


@check("login-shell-noisy")
def _noisy_login(subject: Subject) -> Iterator[Values]:
    if subject.host.login_state == "ok" and subject.host.login_noise:
        yield {"line": subject.host.login_noise[0]}


@check("switch-interrupted")
def _interrupted(subject: Subject) -> Iterator[Values]:
    if subject.host.interrupted:
        yield {}


@check("host-rolled-back")
def _rolled_back(subject: Subject) -> Iterator[Values]:
    if subject.host.rolled_back:
        yield {"release": subject.host.rolled_back}
