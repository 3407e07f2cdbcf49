"""A host on which no step has anything to do: one operation instead of one a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from operations.faults import Commands, commands_of, step_operation
from operations.host_fault import HostFault
from operations.session import Session

Call = tuple[str, "partial[Any]"]


@step_operation
def converged(session: Session, calls: list[Call]) -> Commands:
    """Every step is as wanted.

    + calls: each step's name and operation

    pyinfra's own work is some milliseconds for each operation and host; a fleet in which nothing is to be done should
    not pay it twenty times over. When the plan was made some time ago, everything is judged again.
    """
    if session.executing:
        step = unfinished(session, calls)
        if step is not None:
            raise HostFault(f"{step}: the host changed after the plan was made", "run again")
    session.host.noop("every step is as wanted")
    yield from ()


def unfinished(session: Session, calls: list[Call]) -> str | None:
    """The first step that has something to do, or can't be judged; None when there is no such step.

    Args:
        session: the host's session.
        calls: each step's name and operation.
    """
    with _rehearsal(session):
        for name, call in calls:
            try:
                if next(commands_of(call.func)(*call.args, **call.keywords), None) is not None:
                    return name
            except Exception:
                # Whatever it is, the operation itself meets it again, and says it as this host's failure.
                return name
    return None


@contextmanager
def _rehearsal(session: Session) -> Iterator[None]:
    session.rehearsing = True
    try:
        yield
    finally:
        session.rehearsing = False
