"""A host's session: one remote command for all that is read, none for what is known, and failed is never empty."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyinfra.api import FactBase, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.state import StateStage
from pyinfra.connectors.util import CommandOutput, OutputLine

from lmcache_fleet import survey
from lmcache_fleet.layout import Layout
from operations.host_fault import HostFault
from operations.session import Session


class Echo(FactBase[list[str]]):
    def command(self, text: str = "x") -> str:
        return f"echo {text}"

    def process(self, output: list[str]) -> list[str]:
        return list(output)


class Joined(FactBase[str]):
    def command(self) -> StringCommand:
        return StringCommand("echo", "joined")

    def process(self, output: list[str]) -> str:
        return " ".join(output)


class Failing(Echo):
    def command(self, text: str = "x") -> str:
        return "echo half; exit 3"


class Silent(FactBase[list[str]]):
    def command(self) -> str:
        return "true"

    @staticmethod
    def default() -> list[str]:
        return ["nothing there"]

    def process(self, output: list[str]) -> list[str]:
        raise AssertionError("an empty output is not handed on where a default says what it means")


class Raising(Echo):
    error: type[Exception] = ValueError

    def process(self, output: list[str]) -> list[str]:
        raise self.error("no such column")


class RaisingKey(Raising):
    error = KeyError


class RaisingProcess(Raising):
    error = FactProcessError


class RaisingAttribute(Raising):
    error = AttributeError


class RaisingOther(Raising):
    error = ZeroDivisionError


class Host:
    """Runs in a real shell and counts; the transport may be told to fail or to cut the output off."""

    name = "h1"
    current_op_global_arguments = None

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.scripts: list[str] = []
        self.arguments: list[dict[str, Any]] = []
        self.alter: Callable[[list[str]], list[str]] = lambda lines: lines
        self.error: Exception | None = None
        self.stderr: list[str] = []

    def run_shell_command(self, command: StringCommand, **arguments: Any) -> tuple[bool, CommandOutput]:
        script = command.get_raw_value()
        self.scripts.append(script)
        self.arguments.append(arguments)
        if self.error:
            raise self.error
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        lines = self.alter(done.stdout.split("\n")[:-1])
        output = [OutputLine("stdout", line) for line in lines] + [OutputLine("stderr", line) for line in self.stderr]
        return True, CommandOutput(output)

    @property
    def parts(self) -> list[int]:
        """How many facts each remote command read."""
        return [script.count("@@lmcache-fleet-begin ") for script in self.scripts]


class State(SimpleNamespace):
    def should_check_for_changes(self) -> bool:
        return bool(self.checks)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def session(host: Host) -> Session:
    config = SimpleNamespace(SUDO=True, SUDO_USER=None, SUDO_PASSWORD=None, SU_USER=None, DIFF=False)
    state = State(
        is_executing=False, current_stage=StateStage.Prepare, print_fact_output=False, print_fact_input=False,
        print_output=False, print_input=False, config=config, checks=True,
    )  # fmt: skip
    return Session(cast(Any, state), cast(Any, host), Layout("/opt/x"))


EXPECTED: list[tuple[type[FactBase[Any]], dict[str, Any]]] = [
    (Echo, {"text": "a"}),
    (Echo, {"text": "b"}),
    (Joined, {}),
    (Silent, {}),
]


def test_all_that_is_expected_is_read_in_one_command_and_once(session: Session, host: Host) -> None:
    session.expect(EXPECTED)
    session.expect(EXPECTED)
    assert host.scripts == []
    for _ in range(3):
        assert session.read(Echo, text="b") == ["b"]
        assert session.read(Echo, text="a") == ["a"]
        assert session.read(Joined) == "joined"
        assert session.read(Silent) == ["nothing there"]
    assert host.parts == [4]
    assert host.arguments[0]["_timeout"]
    assert host.arguments[0]["_sudo"] is True


def test_what_was_not_expected_is_read_alone_and_then_known(session: Session, host: Host) -> None:
    session.expect(EXPECTED)
    session.read(Joined)
    assert session.read(Echo, text="late") == ["late"]
    assert session.read(Echo, text="late") == ["late"]
    assert host.parts == [4, 1]


def test_only_what_was_forgotten_is_read_again(session: Session, host: Host) -> None:
    session.expect(EXPECTED)
    session.read(Joined)
    generation = session.generation
    session.forget(Joined)
    assert session.generation > generation
    session.read(Echo, text="a")
    assert host.parts == [4]
    session.read(Joined)
    session.read(Echo, text="b")
    assert host.parts == [4, 1]
    session.forget(Echo)
    session.read(Echo, text="a")
    session.read(Echo, text="b")
    assert host.parts == [4, 1, 2]
    session.forget()
    session.read(Silent)
    assert host.parts == [4, 1, 2, 4]


def test_between_plan_and_apply_all_is_read_again_where_somebody_may_have_waited(session: Session, host: Host) -> None:
    session.expect(EXPECTED)
    session.read(Joined)
    cast(Any, session.state).current_stage = StateStage.Execute
    session.read(Joined)
    session.read(Joined)
    assert host.parts == [4, 4]


def test_with_yes_the_survey_of_the_plan_still_stands(session: Session, host: Host) -> None:
    cast(Any, session.state).checks = False
    session.expect(EXPECTED)
    session.read(Joined)
    cast(Any, session.state).current_stage = StateStage.Execute
    session.read(Joined)
    assert host.parts == [4]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Failing, "Failing: reading it ended with exit status 3"),
        (Raising, "Raising: its answer can't be read (no such column)"),
        (RaisingKey, "RaisingKey: its answer can't be read"),
        (RaisingProcess, "RaisingProcess: no such column"),
        pytest.param(
            RaisingAttribute,
            "RaisingAttribute",
        ),
        pytest.param(
            RaisingOther,
            "RaisingOther",
        ),
    ],
)
def test_a_part_that_fails_is_a_fault_and_fails_alone(session: Session, host: Host, bad: type[Echo], says: str) -> None:
    session.expect([(Echo, {"text": "a"}), (bad, {}), (Joined, {})])
    assert session.read(Echo, text="a") == ["a"]
    assert session.read(Joined) == "joined"
    for _ in range(2):
        with pytest.raises(HostFault) as caught:
            session.read(bad)
        assert says in caught.value.cause
    assert host.parts == [3]


def test_an_answer_cut_off_is_a_fault_of_the_parts_that_are_missing(session: Session, host: Host) -> None:
    session.expect([(Echo, {"text": "a"}), (Echo, {"text": "b"}), (Joined, {})])
    whole = survey.compose(["echo a", "echo b", "echo joined"])
    end_of_first = next(i for i, line in enumerate(whole.splitlines()) if "-end 0" in line)
    assert end_of_first
    host.alter = lambda lines: lines[
        : next(i for i, line in enumerate(lines) if line.startswith("@@lmcache-fleet-end 0")) + 3
    ]
    assert session.read(Echo, text="a") == ["a"]
    for kwargs in ({"text": "b"},):
        with pytest.raises(HostFault, match="cut off"):
            session.read(Echo, **kwargs)
    with pytest.raises(HostFault, match="cut off") as caught:
        session.read(Joined)
    assert caught.value.remedy


@pytest.mark.parametrize("error", [TimeoutError(), EOFError()])
def test_a_transport_that_breaks_without_a_word_is_still_named(session: Session, host: Host, error: Exception) -> None:
    host.error = error
    with pytest.raises(HostFault, match=type(error).__name__):
        session.read(Joined)


@pytest.mark.parametrize("error", [OSError("No route"), RuntimeError("SSH session not active")])
def test_a_broken_transport_is_this_hosts_fault(session: Session, host: Host, error: Exception) -> None:
    session.expect(EXPECTED)
    host.error = error
    with pytest.raises(HostFault, match=r"reading the host failed: .+") as caught:
        session.read(Joined)
    assert caught.value.remedy
    # Nothing was learnt, so nothing is remembered.
    host.error = None
    assert session.read(Joined) == "joined"


def test_a_host_that_answers_nothing_tells_why(session: Session, host: Host) -> None:
    host.alter = lambda lines: []
    host.stderr = ["sudo: a password is required"]
    with pytest.raises(HostFault, match="sudo refused") as caught:
        session.read(Joined)
    assert "NOPASSWD" in caught.value.remedy
