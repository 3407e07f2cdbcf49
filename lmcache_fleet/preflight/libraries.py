"""Checks of what native builds and the engine find on the host: C library, interpreter, headers, compilers."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from lmcache_fleet.playbook.model import PackagesStep, SystemPackagesStep
from lmcache_fleet.preflight.observation import Subject
from lmcache_fleet.preflight.registry import Values, check
from lmcache_fleet.preflight.versions import ascend_source, fits, parsed, tag_version

_CMAKE = Version("3.16")
_COMPILERS = {"g++", "gcc-c++", "build-essential"}


@check("glibc-version")
def _glibc(subject: Subject) -> Iterator[Values]:
    wanted = subject.playbook.requires.glibc
    if not fits(parsed(subject.host.glibc), wanted):
        yield {"found": subject.host.glibc, "wanted": wanted}


@check("python-missing")
def _python(subject: Subject) -> Iterator[Values]:
    if subject.venv and subject.host.pythons == ():
        yield {"minor": subject.venv.python}


@check("python-version")
def _python_version(subject: Subject) -> Iterator[Values]:
    wanted, found = subject.playbook.requires.python, subject.host.pythons or ()
    versions = [parsed(item.version) for item in found]
    if wanted and versions and not any(version and SpecifierSet(wanted).contains(version) for version in versions):
        yield {"found": ", ".join(item.version for item in found), "wanted": wanted}


@check("python-venv-missing")
def _venv(subject: Subject) -> Iterator[Values]:
    if subject.venv and subject.venv.installer == "pip" and subject.host.pythons and not subject.host.pythons[0].venv:
        yield {"python": subject.host.pythons[0].path, "package": f"python{subject.venv.python}-venv"}


@check("python-headers-missing")
def _headers(subject: Subject) -> Iterator[Values]:
    found = subject.host.pythons
    if subject.builds and found and not found[0].headers and not _installs(subject, "python", "-dev", "-devel"):
        yield {"python": found[0].path, "minor": subject.venv.python if subject.venv else "3"}


@check("numa-headers-missing")
def _numa(subject: Subject) -> Iterator[Values]:
    headers = subject.host.headers
    if subject.vendor == "ascend" and subject.builds and headers is not None and "numaif.h" not in headers:
        if not _installs(subject, "libnuma-dev") and not _installs(subject, "numactl-devel"):
            yield {}


@check("compiler-missing")
def _compiler(subject: Subject) -> Iterator[Values]:
    commands = subject.host.commands
    if (
        subject.builds
        and commands is not None
        and not {"g++", "c++"} & set(commands)
        and not any(_installs(subject, name) for name in _COMPILERS)
    ):
        yield {}


@check("cmake-missing")
def _cmake(subject: Subject) -> Iterator[Values]:
    commands = subject.host.commands
    if subject.builds and commands is not None and "cmake" not in commands and not _installs(subject, "cmake"):
        if not _pip_installs(subject, "cmake"):
            yield {}


@check("cmake-too-old")
def _old_cmake(subject: Subject) -> Iterator[Values]:
    version = parsed((subject.host.commands or {}).get("cmake"))
    if subject.builds and version and version < _CMAKE and not _pip_installs(subject, "cmake"):
        yield {"found": version, "wanted": _CMAKE}


def _installs(subject: Subject, start: str, *ends: str) -> bool:
    """Whether the playbook's system packages bring it, so that it need not be there yet."""
    steps: list[SystemPackagesStep] = subject.playbook.of_kind(SystemPackagesStep)
    names = [name for step in steps for name in (*step.apt, *step.dnf)]
    return any(name.startswith(start) and name.endswith(ends or start) for name in names)


def _pip_installs(subject: Subject, name: str) -> bool:
    steps: list[PackagesStep] = subject.playbook.of_kind(PackagesStep)
    return any(item.startswith(name) for step in steps for item in step.wanted)


@check("build-path-openeuler")
def _openeuler(subject: Subject) -> Iterator[Values]:
    host = subject.host
    if subject.vendor == "ascend" and (host.os_id or "").lower() == "openeuler" and host.os_version == "24.03":
        if any("CPLUS_INCLUDE_PATH" not in step.env for step in subject.builds):
            yield {}


@check("build-under-dash")
def _dash(subject: Subject) -> Iterator[Values]:
    source = ascend_source(subject)
    tag = tag_version(source.ref) if source else None
    if subject.builds and source and tag and tag < Version("0.3.7") and (subject.host.shell or "").endswith("dash"):
        yield {"ref": source.ref}
