"""Releases: what a host has, what identity a wanted one has, and which one a run works on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lmcache_fleet.digest import digest
from lmcache_fleet.plain import Plain
from lmcache_fleet.playbook.model import KvStoreStep, Playbook, StepBase, SystemPackagesStep, VenvStep, VerifyStep
from lmcache_fleet.problems import Trouble

# Steps that make up a release. The others change the host (packages of the distribution) or look at it (evidence).
_OUTSIDE_A_RELEASE = (SystemPackagesStep, VerifyStep, KvStoreStep)


@dataclass(frozen=True, slots=True)
class ReleaseState:
    """One release as it is on the host's disk.

    Args:
        name: directory name below `releases/`.
        spec: digest of the steps and host key it was made for.
        created: when it was begun, ISO 8601 in UTC; empty when that isn't known.
        sealed: verified off-line; from then on it is never modified.
        python: version of the virtual environment's interpreter.
        distributions: canonical name → versions installed (two of one name is damage).
        owns: import package → {claimed_by, wrong, wrong_count}.
        wheel_tags: distribution → tags of its installed wheel.
        natives: module → {build_info, missing}.
        torch_cxx_abi: C++ ABI that the installed torch names in its CMake package; None when it names none.
        records: what steps wrote down about what they did, by name.
        texts: path below the release → {sha256, mode, text}.
        evidence: `offline` and `online` → evidence as the verification program wrote it.
    """

    name: str
    spec: str | None = None
    created: str = ""
    sealed: bool = False
    python: str | None = None
    distributions: dict[str, list[str]] = field(default_factory=dict)
    owns: dict[str, Any] = field(default_factory=dict)
    wheel_tags: dict[str, list[str]] = field(default_factory=dict)
    natives: dict[str, Any] = field(default_factory=dict)
    torch_cxx_abi: str | None = None
    records: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, name: str, data: dict[str, Any]) -> ReleaseState:
        """From the probe's answer for one release."""
        manifest = data["manifest"] or {}
        return cls(
            name=name,
            spec=manifest.get("spec"),
            created=str(manifest.get("created") or ""),
            sealed=data["sealed"],
            python=data["python"] if data["interpreter_works"] else None,
            distributions=data["distributions"],
            owns=data["owns"],
            wheel_tags=data["wheel_tags"],
            natives=data["natives"],
            torch_cxx_abi=data.get("torch_cxx_abi"),
            records=data["records"],
            texts=data["texts"],
            evidence=data["evidence"],
        )


@dataclass(frozen=True, slots=True)
class HostReleases(Plain):
    """Everything under the prefix.

    Args:
        current: name of the release that `current` points to.
        previous: name of the release that was current before.
        activation: journal of a switch that didn't end; None when there is none.
        rolled_back: who took the host back to `current`, when, and from which release; None when nobody did.
        releases: by name.
        models: directory name → {state, detail}.
        tools: names below `tools/` that are ready for use.
        images: key → {engine, names, label} of each container image that we brought to the host.
    """

    current: str | None = None
    previous: str | None = None
    activation: dict[str, Any] | None = None
    rolled_back: dict[str, Any] | None = None
    releases: dict[str, ReleaseState] = field(default_factory=dict)
    models: dict[str, dict[str, str]] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    images: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> HostReleases:
        """From the probe's answer."""
        return cls(
            current=data["current"],
            previous=data["previous"],
            activation=data["activation"],
            rolled_back=data.get("rolled_back"),
            releases={name: ReleaseState.from_json(name, item) for name, item in data["releases"].items()},
            models=data["models"],
            tools=tuple(data["tools"]),
            images=data.get("images", {}),
        )

    @property
    def serving(self) -> ReleaseState | None:
        """The release that `current` points to, when it is there."""
        return self.releases.get(self.current or "")


@dataclass(frozen=True, slots=True)
class HostKey:
    """What of a host decides which binaries it can run.

    Args:
        arch: machine name.
        os_id: distribution.
        os_version: its version.
        glibc: version of the C library.
        soc: SoC name as builds need it, such as `Ascend910B3`; None without an accelerator.
        toolkit: version of the vendor's toolkit, such as CANN's.
        runtime: torch of the interpreter below the release, where the release is built on it.
    """

    arch: str
    os_id: str | None
    os_version: str | None
    glibc: str | None
    soc: str | None = None
    toolkit: str | None = None
    runtime: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain data, for digests and manifests."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        # Left out where it says nothing, so that it made no other digest of the releases that were there before it.
        return data if self.runtime else {name: value for name, value in data.items() if name != "runtime"}


def release_steps(playbook: Playbook) -> list[StepBase]:
    """The active steps whose result lives in the release."""
    return [step for step in playbook.steps if step.when and not isinstance(step, _OUTSIDE_A_RELEASE)]


def release_spec(playbook: Playbook, key: HostKey) -> dict[str, Any]:
    """What a release is made from: its steps and the host key, as plain data."""
    # Which uv does the installing, where that came from, and what is judged beforehand make no other release.
    aside = {"when", "uv"}
    of_venv = aside | {"index_url", "trusted_hosts", "resolve_first", "expected_conflicts"}
    steps = [
        step.model_dump(mode="json", exclude=of_venv if isinstance(step, VenvStep) else aside)
        for step in release_steps(playbook)
    ]
    return {"playbook": playbook.name, "steps": steps, "host": key.as_json()}


@dataclass(frozen=True, slots=True)
class Target:
    """The release that this run works on.

    Args:
        state: what of it is on disk; an empty state for one that isn't.
        spec: digest of the wanted steps and host key.
        exists: whether its directory and manifest are there.
        complete: sealed and whole: there is nothing to build.
        why: reason for building; empty when complete.
    """

    state: ReleaseState
    spec: str
    exists: bool
    complete: bool
    why: str

    @property
    def name(self) -> str:
        """Directory name below `releases/`."""
        return self.state.name


def choose_target(host: HostReleases, spec: dict[str, Any], damage: Callable[[ReleaseState], list[str]]) -> Target:
    """Pick the release to work on.

    A sealed release is never modified: when it is no longer what it was sealed as, a revision is built beside it
    (`<digest>-r2`), so that what is serving goes on serving.

    Args:
        host: what is on the host.
        spec: as `release_spec` gave it.
        damage: what is wrong with a release, judged by every step; empty when whole.
    """
    wanted = digest(spec)
    same = [state for state in host.releases.values() if state.spec == wanted]
    same.sort(key=lambda state: (state.name == host.current, revision(state.name)), reverse=True)
    damaged = ""
    for state in same:
        if not state.sealed:
            continue
        wrong = damage(state)
        if not wrong:
            return Target(state, wanted, exists=True, complete=True, why="")
        damaged = damaged or f"{state.name} is no longer as it was sealed: {'; '.join(wrong)}"
    for state in same:
        if not state.sealed:
            why = damaged or "an earlier run was interrupted"
            return Target(state, wanted, exists=True, complete=False, why=why)
    taken = [revision(name) for name in host.releases if name.split("-r")[0] == wanted]
    name = wanted if not taken else f"{wanted}-r{max(taken) + 1}"
    why = damaged or ("the first release" if host.serving is None else "the steps or the host changed")
    return Target(ReleaseState(name, wanted), wanted, exists=False, complete=False, why=why)


def revision(name: str) -> int:
    """Which build of one spec a release's name means: 1 for `<digest>`, 3 for `<digest>-r3`."""
    found = re.search(r"-r(\d+)$", name)
    return int(found[1]) if found else 1


class NoWayBack(Trouble):
    """A host can't go back to the wanted release."""


def rollback_target(host: HostReleases, wanted: str | None) -> str:
    """The release to go back to.

    Args:
        host: what is on the host.
        wanted: its name or the beginning of it; None for the one that served before.

    Raises:
        NoWayBack: there is none, there are several, or it was never proved.
    """
    there = ", ".join(sorted(name for name, state in host.releases.items() if state.sealed)) or "none"
    if wanted is None:
        # Asked again, for instance after a run that was cut off: it is not taken forward again.
        back = (host.rolled_back or {}).get("release")
        name = host.current if back and back == host.current else host.previous
        if name is None:
            raise NoWayBack("no release served before this one", f"name one of those on the host: {there}")
    else:
        found = [wanted] if wanted in host.releases else [name for name in host.releases if name.startswith(wanted)]
        if len(found) > 1:
            raise NoWayBack(f"'{wanted}' may be {' or '.join(sorted(found))}", "give more of the name")
        if not found:
            raise NoWayBack(f"there is no release '{wanted}' on the host", f"name one of those on the host: {there}")
        name = found[0]
    state = host.releases.get(name)
    if state is None:
        raise NoWayBack(f"the release {name} is no longer on the host", f"name one of those on the host: {there}")
    if not state.sealed:
        raise NoWayBack(f"the release {name} was never proved", f"name one of those on the host: {there}")
    return name
