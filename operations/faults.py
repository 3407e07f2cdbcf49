"""Faults of one host: named with cause and remedy, and never another host's trouble."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast

from pyinfra.api import FunctionCommand, operation
from pyinfra.api.command import PyinfraCommand

from operations.session import HostFault, Session

P = ParamSpec("P")
Commands = Generator[PyinfraCommand, None, None]


def step_operation(
    function: Callable[Concatenate[Session, P], Commands],
) -> Callable[Concatenate[Session, P], Any]:
    """A pyinfra operation whose faults fail its own host only.

    pyinfra lets an exception of one host's code end the run for every host; here it becomes that host's failure.
    """

    @operation()
    @wraps(function)
    def contained(session: Session, *args: P.args, **kwargs: P.kwargs) -> Commands:
        try:
            yield from function(session, *args, **kwargs)
        except HostFault as fault:
            session.fail(fault)
            if session.executing:
                yield FunctionCommand(_refuse, (), {})
            else:
                session.state.fail_hosts({session.host})

    return cast(Any, contained)  # type: ignore[no-any-return]


def _refuse(state: Any, host: Any) -> bool:  # noqa: ARG001 - pyinfra calls it with these
    return False
