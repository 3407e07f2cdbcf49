"""A host with nothing to do is one operation: judged by the steps' own generators, and again when it is applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from operations.converged import converged, unfinished
from operations.faults import commands_of, step_operation
from operations.host_fault import HostFault
from operations.session import Session


class FakeSession:
    """As much of a session as steps use; remembers what was shown."""

    def __init__(self) -> None:
        self.executing = False
        self.rehearsing = False
        self.said: list[str] = []
        self.host = SimpleNamespace(noop=self.said.append)


def step(generator: Callable[[FakeSession], Iterator[Any]]) -> tuple[str, Any]:
    """A named call of an operation, as a playbook makes them."""
    return generator.__name__, partial(step_operation(cast(Any, generator)), cast(Session, SESSION))


SESSION = FakeSession()


def settled(session: FakeSession) -> Iterator[Any]:
    yield from ()


def pending(session: FakeSession) -> Iterator[Any]:
    session.said.append(f"rehearsing {session.rehearsing}")
    yield "a command"


def faulty(session: FakeSession) -> Iterator[Any]:
    raise HostFault("no such thing")
    yield


def slip(session: FakeSession) -> Iterator[Any]:
    raise KeyError("a slip of ours")
    yield


@pytest.mark.parametrize(
    ("steps", "first"),
    [
        ((settled, settled), None),
        ((settled, pending, settled), "pending"),
        ((faulty, pending), "faulty"),
        ((settled, slip), "slip"),
    ],
)
def test_the_first_step_that_is_not_as_wanted_is_found(steps: Any, first: str | None) -> None:
    session = FakeSession()
    assert unfinished(cast(Session, SESSION), [step(item) for item in steps]) == first
    assert not SESSION.rehearsing and not session.rehearsing


def test_asking_shows_nothing() -> None:
    SESSION.said.clear()
    unfinished(cast(Session, SESSION), [step(pending)])
    assert SESSION.said == ["rehearsing True"]


def test_a_converged_host_gets_no_command_and_a_changed_one_is_refused() -> None:
    run = commands_of(converged)
    SESSION.executing = True
    try:
        assert list(run(cast(Session, SESSION), [step(settled)])) == []
        with pytest.raises(HostFault, match="pending: the host changed after the plan"):
            list(run(cast(Session, SESSION), [step(settled), step(pending)]))
    finally:
        SESSION.executing = False
