"""One host's run: what was read, what is wanted, and the way to run commands there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, TypeVar
from weakref import WeakKeyDictionary

import click
from paramiko import SSHException
from pyinfra import logger
from pyinfra.api import FactBase, FunctionCommand, Host, State, StringCommand
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.state import StateStage
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.util import CommandOutput, make_unix_command_for_host

from lmcache_fleet import survey
from lmcache_fleet.changes import Change
from lmcache_fleet.digest import canonical_json
from lmcache_fleet.failures import explain
from lmcache_fleet.layout import Layout
from lmcache_fleet.recording import recorder_of
from lmcache_fleet.shell import words
from operations import connection
from operations.channel import Channel, LocalChannel, SshChannel
from operations.failing import note_failure
from operations.host_fault import HostFault
from operations.run_lock import RunLock

T = TypeVar("T")
Part = tuple[type[FactBase[Any]], dict[str, Any]]

_SURVEY_TIMEOUT = 180
_ORPHAN_WAIT = 900


class Session:
    """One host in one run.

    All reading goes through `read`: the parts that the playbook's steps need are read in one remote command, kept for
    the phase, and read again only after `forget`.

    Args:
        state: pyinfra's state of the run.
        host: the host.
        layout: paths on the host.
    """

    def __init__(self, state: State, host: Host, layout: Layout) -> None:
        self.state = state
        self.host = host
        self.layout = layout
        self.step = "start"
        self.generation = 0
        self.rehearsing = False
        self._parts: dict[str, Part] = {}
        self._known: dict[str, Any] = {}
        self._phase = StateStage.Prepare
        self._lock: RunLock | None = None
        self.recorder = recorder_of(state)

    @property
    def executing(self) -> bool:
        """Whether commands are run now, rather than planned."""
        return bool(self.state.is_executing) or self.state.current_stage == StateStage.Execute

    # Reading

    def expect(self, parts: Iterable[Part]) -> None:
        """Name what will be read, so that the first `read` reads it all at once."""
        for cls, kwargs in parts:
            self._parts.setdefault(_key(cls, kwargs), (cls, kwargs))

    def read(self, cls: type[FactBase[T]], **kwargs: Any) -> T:
        """A fact of the host.

        Raises:
            HostFault: the fact could not be read. A fact that failed is not an empty fact.
        """
        # Between plan and apply somebody may have thought for an hour; with -y nobody did, and the survey of the
        # preparation still stands as long as nothing was changed.
        phase = self.state.current_stage
        if phase != self._phase:
            self._phase = phase
            if self.state.should_check_for_changes():
                self.forget()
        key = _key(cls, kwargs)
        if key not in self._known:
            self._parts.setdefault(key, (cls, kwargs))
            self._survey()
        value = self._known[key]
        if isinstance(value, HostFault):
            raise value
        return value  # type: ignore[no-any-return]

    def forget(self, *classes: type[FactBase[Any]]) -> None:
        """Drop what was read, because a command may have changed it; all of it when no class is named."""
        self.generation += 1
        if not classes:
            self._known.clear()
        for key in [key for key, (cls, _) in self._parts.items() if cls in classes]:
            self._known.pop(key, None)

    def _survey(self) -> None:
        wanted = {key: part for key, part in self._parts.items() if key not in self._known}
        commands = [_command(cls, kwargs) for cls, kwargs in wanted.values()]
        try:
            _, output = self.host.run_shell_command(
                StringCommand(survey.compose(commands)),
                print_output=self.state.print_fact_output,
                print_input=self.state.print_fact_input,
                _timeout=_SURVEY_TIMEOUT,
                **self._connector_arguments(),
            )
        except Exception as error:
            # Whatever the transport throws (timeouts, SSH and socket errors) is this host's trouble alone.
            raise HostFault(
                f"reading the host failed: {str(error) or type(error).__name__}", connection.REMEDY
            ) from error
        parts = survey.split(output.stdout_lines)
        if not parts:
            cause, remedy = explain(output.stderr_lines, "the host answered nothing")
            raise HostFault(f"reading the host failed: {cause}", remedy or connection.REMEDY)
        for index, (key, (cls, _)) in enumerate(wanted.items()):
            self._known[key] = _processed(cls, parts.get(index))

    # Telling

    def show(self, changes: Sequence[Change]) -> bool:
        """Write down what the step would change, and print it under --diff.

        Returns:
            Whether there is anything to change.
        """
        if self.recorder and not self.rehearsing:
            self.recorder.step(self.host.name, self.step, changes)
        if changes and self.state.config.DIFF and not self.rehearsing:
            kept = [change.what for change in changes if change.kept]
            if kept:
                self.host.log(f"{self.step}  put into the new release unchanged: {', '.join(kept)}")
            for change in changes:
                if change.kept:
                    continue
                self.host.log(f"{self.step}  {click.style(str(change), fg='yellow')}")
                for line in change.diff:
                    colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
                    self.host.log(f"    {click.style(line, fg=colour)}")
        return bool(changes)

    def fail(self, fault: HostFault) -> None:
        """Note the host's failure for the table at the end of the run."""
        note_failure(self.host, self.step, fault.cause, fault.remedy)

    def progress(self, message: str) -> None:
        """A line about long work."""
        if self.recorder:
            self.recorder.tell(self.host.name, self.step, message)
        self.host.log(f"{self.step}: {message}")

    # Changing

    def remote(
        self,
        script: str,
        *,
        stdin: str | None = None,
        timeout: int = 600,
        stream: bool = False,
        doing: str = "",
        then: Callable[[CommandOutput], None] | None = None,
        fetch: tuple[str, Callable[[str], None]] | None = None,
    ) -> FunctionCommand:
        """A command that changes the host, under the host's locks and a time limit.

        Args:
            script: shell script; every value in it is quoted by its maker.
            stdin: given to the script; for programs, archives and secrets.
            timeout: seconds after which it is ended on the host too.
            stream: print its lines as they come.
            doing: said before long work.
            then: called with the output when it succeeded.
            fetch: a file on the host, and what is called with its text, whether the command succeeded or not.
        """
        return FunctionCommand(self._run, (script, stdin, timeout, stream, doing, then, fetch), {})

    def feed(
        self, script: str, write: Callable[[BinaryIO], None], *, timeout: int = 7200, doing: str = ""
    ) -> FunctionCommand:
        """A command that changes the host and is given more than fits into memory, under the same locks and limits.

        Args:
            script: shell script that says `ready` on a line of its own and then reads its standard input to the end.
            write: called with the script's standard input.
            timeout: seconds after which it is ended on the host too.
            doing: said before.
        """
        return FunctionCommand(self._feed, (script, write, timeout, doing), {})

    def _feed(
        self,
        state: State,  # noqa: ARG002 - as pyinfra calls a function
        host: Host,  # noqa: ARG002
        script: str,
        write: Callable[[BinaryIO], None],
        timeout: int,
        doing: str,
    ) -> bool:
        def work() -> None:
            channel = self._open_channel(self._guarded(script, timeout))
            if channel.answer != "ready":
                raise HostFault(
                    *explain([channel.answer], channel.answer or "the host takes no files over this connection")
                )
            status, lines = _fed(channel, write)
            if status:
                raise HostFault(*explain(lines, f"the command failed or was ended after {timeout} s"))

        return self._succeeded(work, doing)

    def _succeeded(self, work: Callable[[], None], doing: str) -> bool:
        """Do what changes the host, under its run lock; a fault on the way is the host's failure."""
        try:
            self._hold_lock()
            if doing:
                self.progress(doing)
            work()
        except HostFault as fault:
            self.fail(HostFault(connection.BROKEN, connection.REMEDY) if connection.is_broken(self.host) else fault)
            return False
        except (SSHException, OSError, EOFError) as error:
            cause = f"the connection failed: {str(error) or type(error).__name__}"
            self.fail(HostFault(cause, connection.REMEDY))
            return False
        return True

    def _guarded(self, script: str, timeout: int) -> str:
        # The inner lock outlives a killed control process together with the command that it started, so that the
        # next run never works beside an orphan. `timeout` ends the work on the host: pyinfra's only stops waiting.
        guarded = words("flock", "-w", str(_ORPHAN_WAIT), "-E", "75", self.layout.step_lock, "timeout", "-k", "15")
        return f"{guarded} {timeout} {words('sh', '-c', script)}"

    def _run(
        self,
        state: State,
        host: Host,
        script: str,
        stdin: str | None,
        timeout: int,
        stream: bool,
        doing: str,
        then: Callable[[CommandOutput], None] | None,
        fetch: tuple[str, Callable[[str], None]] | None,
    ) -> bool:
        def work() -> None:
            status, output = host.run_shell_command(
                StringCommand(self._guarded(script, timeout)),
                print_output=stream or state.print_output,
                print_input=state.print_input,
                _timeout=timeout + _ORPHAN_WAIT + 30,
                **({"_stdin": stdin} if stdin is not None else {}),
                **self._connector_arguments(),
            )
            if fetch:
                found, text = host.run_shell_command(
                    StringCommand(words("cat", "--", fetch[0])), **self._connector_arguments()
                )
                if found:
                    fetch[1](text.stdout)
            if not status:
                if not (stream or state.print_output):
                    for line in output.output_lines[-40:]:
                        logger.error(f"{host.print_prefix}{line}")
                raise HostFault(*explain(output.output_lines, f"the command failed or was ended after {timeout} s"))
            if then:
                then(output)

        return self._succeeded(work, doing)

    def _hold_lock(self) -> None:
        """Take the host's run lock, once a run.

        Raises:
            HostFault: another run holds it, or this one no longer does.
        """
        if not self._lasting:
            # Connectors without a lasting channel (containers, test doubles) run in one process anyway.
            return
        if self._lock is None:
            self._lock = RunLock(self.layout, self._open_channel)
            if self.recorder:
                # A driver makes several runs in one process, and none may stand in the next one's way.
                self.recorder.at_end.append(self._release_lock)
        self._lock.hold()

    def _release_lock(self) -> None:
        held, self._lock = self._lock, None
        if held is not None:
            held.release()

    def _open_channel(self, script: str) -> Channel:
        command = make_unix_command_for_host(
            self.state, self.host, StringCommand(script), **self._connector_arguments()
        ).get_raw_value()
        if not self._lasting:
            raise HostFault("this connector can't hand large files to a running program", "reach the host by SSH")
        client = getattr(self.host.connector, "client", None)
        return LocalChannel(command) if client is None else SshChannel(client, command)

    @property
    def _lasting(self) -> bool:
        connector = self.host.connector
        return getattr(connector, "client", None) is not None or isinstance(connector, LocalConnector)

    def _connector_arguments(self) -> dict[str, Any]:
        arguments = self.host.current_op_global_arguments
        if arguments is None:
            config, data = self.state.config, self.host.data
            return {
                "_sudo": data.get("_sudo", config.SUDO),
                "_sudo_user": data.get("_sudo_user", config.SUDO_USER),
                "_sudo_password": data.get("_sudo_password", config.SUDO_PASSWORD),
                "_su_user": data.get("_su_user", config.SU_USER),
            }
        names = ("_sudo", "_sudo_user", "_sudo_password", "_use_sudo_login", "_preserve_sudo_env", "_su_user")
        return {name: arguments[name] for name in names if name in arguments}  # type: ignore[literal-required]


_sessions: WeakKeyDictionary[Host, Session] = WeakKeyDictionary()


def session_for(state: State, host: Host, layout: Layout) -> Session:
    """The host's session of this run."""
    session = _sessions.get(host)
    if session is None or session.state is not state or session.layout != layout:
        session = _sessions[host] = Session(state, host, layout)
    return session


def _fed(channel: Channel, write: Callable[[BinaryIO], None]) -> tuple[int, list[str]]:
    """Exit status and last words of a program that was given its input."""
    try:
        write(channel.input())
        channel.input().flush()
    except OSError:
        # It ended before it had read all; why, it says itself.
        pass
    return channel.finish()


def _key(cls: type[FactBase[Any]], kwargs: dict[str, Any]) -> str:
    return f"{cls.__module__}.{cls.__name__} {canonical_json(kwargs)}"


def _command(cls: type[FactBase[Any]], kwargs: dict[str, Any]) -> str:
    fact = cls()
    command = fact.command(**kwargs) if callable(fact.command) else fact.command
    return command.get_raw_value() if isinstance(command, StringCommand) else str(command)


def _processed(cls: type[FactBase[Any]], part: survey.PartOutput | None) -> Any:
    if part is None or part.exit_code is None:
        return HostFault(f"{cls.__name__}: the host's answer is cut off", connection.REMEDY)
    if part.exit_code != 0:
        return HostFault(f"{cls.__name__}: reading it ended with exit status {part.exit_code}")
    try:
        # pyinfra itself never hands an empty output to `process`; a fact says by its default what that means.
        default = cls().default()
        return default if not part.lines and default is not None else cls().process(list(part.lines))
    except FactProcessError as error:
        return HostFault(f"{cls.__name__}: {error}")
    except Exception as error:
        # pyinfra ends the run of every host at an exception of one host's fact.
        return HostFault(f"{cls.__name__}: its answer can't be read ({error})")
