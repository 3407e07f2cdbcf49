"""The stack that an interpreter brings: torch, what it was built with, and the vendor's distributions."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from lmcache_fleet.plain import Plain
from lmcache_fleet.playbook.model import RuntimeRequirement


@dataclass(frozen=True, slots=True)
class Runtime(Plain):
    """One interpreter's stack; None where it has none or doesn't tell.

    Args:
        path: the interpreter.
        version: its full version.
        torch: torch's whole version, such as `2.10.0+rocm7.2.4.git3d3aa833`.
        cuda: CUDA that torch was built with.
        hip: HIP that torch was built with.
        xpu: the Intel runtime that torch was built with.
        cxx11_abi: torch's C++ ABI.
        distributions: those asked for that are there, with their versions.
    """

    path: str
    version: str
    torch: str | None = None
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    cxx11_abi: bool | None = None
    distributions: dict[str, str] = field(default_factory=dict)


def parse_runtimes(lines: Iterable[str]) -> list[Runtime]:
    """One interpreter a line, as `templates/programs/probe_runtime.py` prints; other lines are passed over."""
    found: dict[str, Runtime] = {}
    for line in lines:
        try:
            data = json.loads(line)
            runtime = Runtime(**{name: data[name] for name in Runtime.__dataclass_fields__})
        except (ValueError, TypeError, KeyError):
            continue
        found.setdefault(runtime.path, runtime)
    return list(found.values())


def minor_of(version: str) -> str:
    """`3.12` of `3.12.4`."""
    return ".".join(version.split(".")[:2])


def runtime_gaps(wanted: RuntimeRequirement, runtime: Runtime | None, glibc: str | None, arch: str | None) -> list[str]:
    """What of a wanted stack is not there, one text each; empty when all of it is.

    Args:
        wanted: the playbook's.
        runtime: that of the interpreter below the release.
        glibc: version of the host's C library.
        arch: machine name.
    """
    if runtime is None:
        return ["no interpreter of the wanted version answered"]
    gaps = [
        _pattern("torch", wanted.torch, runtime.torch),
        _pattern("HIP", wanted.hip, runtime.hip),
        _abi(wanted.cxx11_abi, runtime.cxx11_abi),
        _tag(wanted.wheel_tag, runtime.version, glibc, arch),
    ]
    gaps += [_distribution(name, condition, runtime) for name, condition in wanted.distributions.items()]
    return [gap for gap in gaps if gap]


def _pattern(what: str, wanted: str | None, found: str | None) -> str | None:
    if wanted is None or (found is not None and fnmatch.fnmatchcase(found, wanted)):
        return None
    return f"{what} is {found or 'not there'}, wanted {wanted}"


def _abi(wanted: bool | None, found: bool | None) -> str | None:
    if wanted is None or wanted is found:
        return None
    shown = "unknown" if found is None else f"{int(found)}"
    return f"torch's C++ ABI is {shown}, wanted {int(wanted)}"


def _tag(wanted: str | None, python: str, glibc: str | None, arch: str | None) -> str | None:
    if wanted is None:
        return None
    match = re.fullmatch(r"cp3(\d+)-cp3\d+-manylinux_(\d+)_(\d+)_(.+)", wanted)
    if not match:
        return f"'{wanted}' is no tag that a host can be held against"
    minor, major_glibc, minor_glibc, machine = match.groups()
    has = f"Python {python}, glibc {glibc}, {arch}"
    fits = (
        python.split(".")[:2] == ["3", minor]
        and machine == arch
        and _version(glibc) is not None
        and (_version(glibc) or Version("0")) >= Version(f"{major_glibc}.{minor_glibc}")
    )
    return None if fits else f"a wheel tagged {wanted} can't be installed ({has})"


def _distribution(name: str, condition: str, runtime: Runtime) -> str | None:
    found = runtime.distributions.get(name)
    if found is None:
        return f"{name} is not there"
    if not condition:
        return None
    version = _version(found)
    if version is None or not SpecifierSet(condition).contains(version, prereleases=True):
        return f"{name} is {found}, wanted {condition}"
    return None


def _version(text: str | None) -> Version | None:
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None
