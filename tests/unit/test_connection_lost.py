"""A host whose connection broke off is named so, whatever the last command had printed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from paramiko import SSHException
from pyinfra.api import Host, State
from pyinfra.api.state import StateStage
from pyinfra.connectors.util import CommandOutput, OutputLine

from lmcache_fleet.layout import Layout
from lmcache_fleet.recording import Recorder, record
from operations import connection
from operations.session import Session
from operations.transport import _Unreached


class Transport:
    active = True

    def is_active(self) -> bool:
        return self.active


class Connected:
    """A host with a connection that may break off while a command runs."""

    name = "h1"
    current_op_global_arguments = None

    def __init__(self, command: Callable[[Connected], tuple[bool, list[str]]]) -> None:
        self.transport: Transport | None = Transport()
        self.connector = SimpleNamespace(client=SimpleNamespace(get_transport=lambda: self.transport))
        self.data: dict[str, Any] = {}
        self.print_prefix = "[h1] "
        self.state = SimpleNamespace()
        self._command = command

    def run_shell_command(self, *_: Any, **__: Any) -> tuple[bool, CommandOutput]:
        done, lines = self._command(self)
        return done, CommandOutput([OutputLine("stdout", line) for line in lines])

    def log(self, *_: Any, **__: Any) -> None: ...

    log_styled = log


def failed(host: Connected) -> tuple[str, str]:
    """Cause and remedy of a command's failure."""
    recorder = Recorder()
    config = SimpleNamespace(SUDO=True, SUDO_USER=None, SUDO_PASSWORD=None, SU_USER=None, DIFF=False)
    host.state = SimpleNamespace(
        is_executing=True, current_stage=StateStage.Execute, print_output=False, print_input=False, config=config
    )
    record(host.state, recorder)
    session = Session(cast(State, host.state), cast(Host, host), Layout("/opt/x"))
    session._hold_lock = lambda: None  # type: ignore[method-assign]
    command = session.remote("true")
    assert not command.function(host.state, host, *command.args)
    failure = recorder.failures["h1"]
    return failure.cause, failure.remedy


def breaks(host: Connected) -> tuple[bool, list[str]]:
    assert host.transport
    host.transport.active = False
    return False, ["Using Python 3.11.2 environment at: venv"]


def gone(host: Connected) -> tuple[bool, list[str]]:
    host.transport = None
    return False, ["error: no such file"]


def refuses(host: Connected) -> tuple[bool, list[str]]:
    raise SSHException("SSH session not active")


def fails(host: Connected) -> tuple[bool, list[str]]:
    return False, ["error: no such file"]


@pytest.mark.parametrize("command", [breaks, gone])
def test_a_command_whose_connection_broke_off_is_not_explained_by_what_it_printed(
    command: Callable[[Connected], tuple[bool, list[str]]],
) -> None:
    assert failed(Connected(command)) == (connection.BROKEN, connection.REMEDY)


def test_a_dead_connection_is_the_hosts_failure_and_no_trace() -> None:
    assert failed(Connected(refuses)) == ("the connection failed: SSH session not active", connection.REMEDY)


def test_a_command_that_failed_is_explained_by_what_it_printed() -> None:
    assert failed(Connected(fails))[0] == "no such file"


@pytest.mark.parametrize(("command", "cause"), [(breaks, connection.BROKEN), (fails, "the step failed")])
def test_what_fails_past_our_steps_is_named_too(
    command: Callable[[Connected], tuple[bool, list[str]]], cause: str
) -> None:
    host, recorder = Connected(command), Recorder()
    command(host)
    host.state = SimpleNamespace(get_op_meta=lambda _: SimpleNamespace(names={"11 native_build"}))
    record(host.state, recorder)
    for _ in range(2):
        _Unreached.operation_host_error(cast(State, host.state), cast(Host, host), "hash")
    assert [(item.step, item.cause) for item in recorder.failures.values()] == [("11 native_build", cause)]


def test_a_host_without_an_ssh_connection_has_none_that_broke() -> None:
    assert not connection.is_broken(cast(Host, SimpleNamespace(connector=SimpleNamespace())))
