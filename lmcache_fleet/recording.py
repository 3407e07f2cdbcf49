"""What a run found and did, as data: operations write it down, reporters and the rollout read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmcache_fleet.changes import Change
from lmcache_fleet.failures import Failure
from lmcache_fleet.plain import Plain

if TYPE_CHECKING:
    from lmcache_fleet.preflight.catalogue import Finding


@dataclass(frozen=True, slots=True)
class ReleaseBrief(Plain):
    """One release on a host, in short.

    Args:
        name: its name.
        sealed: whether it was verified off-line.
        size: bytes on disk; None when not measured.
        freed: bytes that go when it alone is removed: files shared with another release stay.
    """

    name: str
    sealed: bool
    size: int | None = None
    freed: int | None = None


@dataclass(frozen=True, slots=True)
class HostReport(Plain):
    """Where a host stands.

    Args:
        target: the release that the playbook wants; it need not be there yet.
        current: the release that `current` points to.
        previous: the one before it.
        interrupted: whether a switch didn't end.
        rolled_back: who took the host back from which release and when; None when nobody did.
        machine_id: identity of the installed system: another one is another installation.
        known_machine_id: the one with which this control machine saw the host last; None when it never did.
        service: unit → its state, such as `active`.
        running: the releases that the running processes were started from.
        evidence: stage → {ok, finished} of the serving release.
        releases: those on disk.
        images: container images on the host that we brought there.
        image_bytes: what they hold, layers that they share counted once; None when not measured.
        playbook: the file that says what is wanted; None when a release is asked for instead.
    """

    target: str
    current: str | None = None
    previous: str | None = None
    interrupted: bool = False
    rolled_back: dict[str, Any] | None = None
    machine_id: str | None = None
    known_machine_id: str | None = None
    service: dict[str, str] = field(default_factory=dict)
    running: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    releases: tuple[ReleaseBrief, ...] = ()
    images: int = 0
    image_bytes: int | None = None
    playbook: str | None = None

    @property
    def serving(self) -> bool:
        """Whether every unit is up, with processes of the current release."""
        up = all(state == "active" for state in self.service.values())
        return self.current is not None and up and not set(self.running) - {self.current}

    @property
    def reimaged(self) -> bool:
        """Whether it is another installation than the one seen last."""
        return self.known_machine_id is not None and self.known_machine_id != self.machine_id


class Recorder:
    """What one run found and did on its hosts.

    Args:
        told: called with host, step and text whenever a host begins long work or fails.
        measure: also measure the releases on disk, which reads every file's size.
    """

    def __init__(self, told: Callable[[str, str, str], None] | None = None, measure: bool = False) -> None:
        self.told = told
        self.measure = measure
        self.steps: dict[str, dict[str, tuple[Change, ...]]] = {}
        self.failures: dict[str, Failure] = {}
        self.reports: dict[str, HostReport] = {}
        self.findings: dict[str, list[Finding]] = {}
        self.at_end: list[Callable[[], None]] = []

    def step(self, host: str, step: str, changes: Sequence[Change]) -> None:
        """Write down what a step would change, or changes, on a host; the last word counts."""
        self.steps.setdefault(host, {})[step] = tuple(changes)

    def fail(self, failure: Failure) -> None:
        """Write down why a host failed; its first failure counts."""
        if self.failures.setdefault(failure.host, failure) is failure:
            self.tell(failure.host, failure.step, failure.cause)

    def tell(self, host: str, step: str, text: str) -> None:
        """Pass on what a host is at."""
        if self.told:
            self.told(host, step, text)

    def pending(self, host: str) -> dict[str, tuple[Change, ...]]:
        """The steps that have something to change on a host."""
        return {step: changes for step, changes in self.steps.get(host, {}).items() if changes}


def record(state: Any, recorder: Recorder) -> None:
    """Have a run write down what it finds and does.

    Args:
        state: pyinfra's state of the run.
        recorder: where to.
    """
    state.lmcache_fleet_recorder = recorder


def recorder_of(state: Any) -> Recorder | None:
    """Where a run writes down what it finds and does; None when nobody asked for it.

    Args:
        state: pyinfra's state of the run.
    """
    return getattr(state, "lmcache_fleet_recorder", None)
