"""A playbook's lock: all that its installer calls may take, by version and hash, for each architecture.

It lies beside the playbook (`ascend.yaml`, `ascend.lock.yaml`). Where there is one, runs install what it says and
nothing else; when the playbook has moved on without it, that is an error and not a silent return to the index's newest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lmcache_fleet.digest import digest
from lmcache_fleet.playbook.model import PackagesStep, Playbook, StrictModel, VenvStep
from lmcache_fleet.playbook.source import Document, read_document
from lmcache_fleet.problems import InputError, Problem
from lmcache_fleet.resolution import needs_host, platform_of, resolve_step

# What decides which packages a call takes. Where from is left out: a hash is the same on every mirror.
_DECIDING = ("pins", "present", "pre", "no_deps", "no_binary", "only_binary", "overrides", "constraints")


class LockedStep(StrictModel):
    """What one packages step installs."""

    of: str
    packages: dict[str, list[str]]


class LockedArchitecture(StrictModel):
    """What the steps of a playbook install on one architecture."""

    steps: dict[str, LockedStep]


class Lock(StrictModel):
    """A lock file."""

    playbook: str
    architectures: dict[str, LockedArchitecture]


def lock_path(playbook: Path) -> Path:
    """Where a playbook's lock lies."""
    return playbook.with_suffix(".lock.yaml")


def step_digest(step: PackagesStep, python: str) -> str:
    """What a locked step is bound to: when it differs, the lock is stale.

    Args:
        step: the step.
        python: minor version of the interpreter.
    """
    return digest([python, *(getattr(step, name) for name in _DECIDING)])[:16]


def make_lock(playbooks: Mapping[str, Playbook], say: Callable[[str], None]) -> Lock:
    """Resolve all packages steps.

    Args:
        playbooks: architecture → the playbook rendered for it.
        say: told what is done.

    Raises:
        Unresolved: a step's pins can't be had.
    """
    name = next(iter(playbooks.values())).name
    return Lock(playbook=name, architectures={arch: _locked(item, arch, say) for arch, item in playbooks.items()})


def _locked(playbook: Playbook, arch: str, say: Callable[[str], None]) -> LockedArchitecture:
    platform = platform_of(playbook, arch, oldest_glibc(playbook))
    is_pip = any(venv.installer == "pip" for venv in playbook.of_kind(VenvStep))
    there: dict[str, str] = {}
    steps = {}
    for step in playbook.of_kind(PackagesStep):
        if needs_host(step):
            say(f"{arch} {step.name}: left out, it takes what only a host has, or files of a source tree")
            continue
        found = resolve_step(step, platform, is_pip=is_pip, hashes=True, prefer=there.values())
        there |= {canonicalize_name(Requirement(item.requirement).name): item.requirement for item in found}
        packages = {item.requirement: list(item.hashes) for item in found}
        steps[step.name] = LockedStep(of=step_digest(step, platform.python), packages=packages)
        say(f"{arch} {step.name}: {len(packages)} packages")
    return LockedArchitecture(steps=steps)


def oldest_glibc(playbook: Playbook) -> str | None:
    """The oldest C library that a playbook admits; None when it doesn't say.

    Args:
        playbook: the playbook.
    """
    bounds = SpecifierSet(playbook.requires.glibc or "")
    return next((bound.version for bound in bounds if bound.operator in {">=", "=="}), None)


def lock_text(lock: Lock, command: str) -> str:
    """The text of a lock file.

    Args:
        lock: the lock.
        command: what writes it.
    """
    head = (
        f"# Written by `{command}`; write it anew after a change of pins. Runs install what it says and nothing else.\n"
    )
    return head + yaml.safe_dump(lock.model_dump(), sort_keys=False, width=120)


@lru_cache(maxsize=16)
def read_lock(path: Path) -> tuple[Document, Lock] | None:
    """A lock file, read once a process; None when there is none.

    Raises:
        InputError: it is no lock file.
    """
    if not path.is_file():
        return None
    document = read_document(path)
    try:
        return document, Lock.model_validate(document.data)
    except ValueError as error:
        reason = re.sub(r"\s+", " ", str(error))[:200]
        raise InputError([Problem(document.file, 0, 0, "", f"not a lock file; write it anew: {reason}")]) from error


def with_lock(playbook: Playbook, path: Path, arch: str) -> Playbook:
    """The playbook with what its lock says put into its packages steps; as it is without a lock.

    Args:
        playbook: rendered for the architecture.
        path: the playbook's file.
        arch: machine name.

    Raises:
        InputError: the lock was written for another state of the playbook.
    """
    found = read_lock(lock_path(path))
    if found is None:
        return playbook
    document, lock = found
    problems: list[Problem] = []
    entries = lock.architectures.get(arch)
    remedy = f"write it anew: `lmcache-fleet lock {path}`"
    if entries is None:
        raise InputError([document.problem(("architectures",), f"the lock has nothing for {arch}; {remedy}")])
    python = platform_of(playbook, arch).python
    steps: list[Any] = []
    for step in playbook.steps:
        if not isinstance(step, PackagesStep) or not step.when or needs_host(step):
            steps.append(step)
            continue
        where = ("architectures", arch, "steps", step.name)
        entry = entries.steps.get(step.name)
        if entry is None or entry.of != step_digest(step, python):
            why = "has no such step" if entry is None else f"is of other pins, options or another Python than {python}"
            problems.append(document.problem(where, f"the lock {why}: {', '.join(step.wanted)}; {remedy}"))
            continue
        steps.append(step.model_copy(update={"locked": entry.packages}))
    if problems:
        raise InputError(problems)
    return playbook.model_copy(update={"steps": steps})
