"""A host's way through a rollout, as a pure state machine; the journal is its history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from lmcache_fleet.plain import Plain


class Stage(str, Enum):
    """Where a host is on its way."""

    WAITING = "waiting"
    PREPARING = "preparing"
    PREPARED = "prepared"
    DRAINING = "draining"
    SWITCHING = "switching"
    UNDRAINING = "undraining"
    DONE = "done"
    BACK = "back"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing more happens to the host in this rollout."""
        return self in {Stage.DONE, Stage.BACK, Stage.FAILED}

    @property
    def out(self) -> bool:
        """Whether the host may be out of service, and what spreads requests told so."""
        return self in {Stage.DRAINING, Stage.SWITCHING, Stage.UNDRAINING}


# What may follow. `failed` may follow anything that isn't over; a resumed rollout takes a host up again from anywhere.
_NEXT: Mapping[Stage, frozenset[Stage]] = {
    Stage.WAITING: frozenset({Stage.PREPARING, Stage.DONE, Stage.FAILED}),
    Stage.PREPARING: frozenset({Stage.PREPARED, Stage.DONE, Stage.FAILED}),
    Stage.PREPARED: frozenset({Stage.DRAINING, Stage.FAILED}),
    Stage.DRAINING: frozenset({Stage.SWITCHING, Stage.FAILED}),
    Stage.SWITCHING: frozenset({Stage.UNDRAINING, Stage.BACK, Stage.FAILED}),
    Stage.UNDRAINING: frozenset({Stage.DONE, Stage.FAILED}),
    Stage.DONE: frozenset(),
    Stage.BACK: frozenset(),
    Stage.FAILED: frozenset(),
}


class WrongTurn(Exception):
    """A host can't go from the one stage to the other; a slip of ours."""


@dataclass(frozen=True, slots=True)
class Journey(Plain):
    """One host's way.

    Args:
        host: its name.
        wave: number of its wave, from 1.
        stage: where it is.
        release: the release that it serves, as far as known.
        cause: why it failed or went back.
        remedy: what to do about it.
        drained: whether what spreads requests was told to leave it out, and not yet told otherwise.
    """

    host: str
    wave: int
    stage: Stage = Stage.WAITING
    release: str | None = None
    cause: str = ""
    remedy: str = ""
    drained: bool = False

    def to(self, stage: Stage, *, release: str | None = None, cause: str = "", remedy: str = "") -> Journey:
        """The way after one more step.

        Args:
            stage: where the host is now.
            release: the release that it serves; None leaves what was known.
            cause: why it failed or went back.
            remedy: what to do about it.

        Raises:
            WrongTurn: the stage can't follow.
        """
        if stage not in _NEXT[self.stage]:
            raise WrongTurn(f"{self.host}: {self.stage.value} can't be followed by {stage.value}")
        drained = self.drained or stage is Stage.DRAINING
        if stage is Stage.DONE:
            drained = False
        return replace(self, stage=stage, release=release or self.release, cause=cause, remedy=remedy, drained=drained)

    def undrained(self) -> Journey:
        """The same with the host back among those that get requests."""
        return replace(self, drained=False)

    def resumed(self) -> Journey:
        """Where a resumed rollout takes the host up: what is done stays done, all else is gone through again.

        Every part of the way is safe to repeat: a prepared release is found prepared, a drained host is drained
        already, a switch that ended is not made twice.
        """
        return self if self.stage is Stage.DONE else replace(self, stage=Stage.WAITING, cause="", remedy="")


@dataclass(frozen=True, slots=True)
class Progress:
    """All hosts' ways.

    Args:
        journeys: by host, in the order of the waves.
        budget: so many hosts may fail; the next one stops the rollout.
    """

    journeys: Mapping[str, Journey] = field(default_factory=dict)
    budget: int = 0

    @classmethod
    def start(cls, waves: Iterable[Iterable[str]], budget: int) -> Progress:
        """No host has set out yet."""
        journeys = {name: Journey(name, number) for number, wave in enumerate(waves, start=1) for name in wave}
        return cls(journeys, budget)

    def step(self, journey: Journey) -> Progress:
        """The same with one host's way brought up to date."""
        return replace(self, journeys={**self.journeys, journey.host: journey})

    def at(self, *stages: Stage) -> list[str]:
        """Hosts that are at one of these stages."""
        return [name for name, journey in self.journeys.items() if journey.stage in stages]

    @property
    def failures(self) -> list[Journey]:
        """Hosts that failed or went back to their last release."""
        return [self.journeys[name] for name in self.at(Stage.FAILED, Stage.BACK)]

    @property
    def over_budget(self) -> bool:
        """Whether more hosts failed than may."""
        return len(self.failures) > self.budget

    @property
    def complete(self) -> bool:
        """Whether every host got where it was to get."""
        return all(journey.stage is Stage.DONE for journey in self.journeys.values())

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: {**journey.as_json(), "stage": journey.stage.value} for name, journey in self.journeys.items()}
