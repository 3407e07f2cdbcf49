"""Faults of one host: named with cause and remedy, and never another host's trouble."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast

from pyinfra import logger
from pyinfra.api import FunctionCommand, operation
from pyinfra.api.command import PyinfraCommand

from operations.host_fault import HostFault
from operations.session import Session

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
        # Not the operation's shared names: hosts whose playbooks have other steps share its place in the order.
        arguments: dict[str, Any] = dict(session.host.current_op_global_arguments or {})
        session.step = arguments.get("name") or function.__name__
        try:
            yield from function(session, *args, **kwargs)
        except HostFault as fault:
            yield from _failed(session, fault)
        except Exception as error:
            # A slip of ours, met with one host's data, is still that host's failure and not the fleet's.
            logger.error(traceback.format_exc())
            yield from _failed(
                session, HostFault(f"internal error: {error!r}", "please report it with the trace above")
            )

    return cast(Any, contained)  # type: ignore[no-any-return]


def commands_of(step: Any) -> Callable[..., Commands]:
    """The bare generator of a step's operation, to ask what it would do without pyinfra's work around it."""
    return step._inner.__wrapped__  # type: ignore[no-any-return]


def _failed(session: Session, fault: HostFault) -> Commands:
    session.fail(fault)
    if session.executing:
        yield FunctionCommand(_refuse, (), {})
    else:
        session.state.fail_hosts({session.host})


def _refuse(state: Any, host: Any) -> bool:
    return False
