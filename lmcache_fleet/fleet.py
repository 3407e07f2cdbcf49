"""An inventory and a deploy file, loaded and run through pyinfra as its own command does, with results as data."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
from gevent.local import local
from pyinfra.api import Config, Host, Inventory, State
from pyinfra.api.connect import connect_all
from pyinfra.api.exceptions import DeployError, PyinfraError
from pyinfra.api.operations import run_host_op
from pyinfra.api.state import MAX_PARALLEL, BaseStateCallback, StateStage
from pyinfra.context import ctx_config, ctx_host, ctx_inventory, ctx_state

from lmcache_fleet.failures import Failure
from lmcache_fleet.inventory import HostSettings, data_layers, host_settings, mark_part
from lmcache_fleet.problems import InputError, Problem, nearest
from lmcache_fleet.recording import Recorder, record, recorder_of

if TYPE_CHECKING:
    from lmcache_fleet.drain.fleet import FleetShell

Told = Callable[[str, str, str], None]

_SIDE_BY_SIDE = 200
_CONNECT_LIMIT = 60
_CLOSING_LIMIT = 10
_UNREACHED_REMEDY = "check that it is up, its address and its SSH service"
_HUNG_REMEDY = "look at the host: what it was doing goes on there until its own time limit; then run again"


class HostHung(BaseException):
    """A host took longer than a run may last. Not an Exception, so that no step mistakes it for a failed command."""


class Fleet:
    """Hosts and what is to be run on them.

    Each run is a fresh pyinfra inventory and state of the hosts that take part: a state can't be run twice, and a small
    one costs little however large the fleet is. Runs of different hosts may go on side by side, a greenlet each.

    Args:
        inventory: pyinfra's inventory of the whole fleet.
        deploy: what is run for each host, in its context.
        override: data laid over that of every host, as by `--data`.
        config: settings of pyinfra, such as those of config.py.
    """

    def __init__(
        self,
        inventory: Inventory,
        deploy: Callable[[], None],
        override: Mapping[str, Any] | None = None,
        config: Config | None = None,
    ) -> None:
        self.inventory = inventory
        self.deploy = deploy
        self.override = dict(override or {})
        self.config = config or Config()

    @property
    def names(self) -> list[str]:
        """The hosts, in the inventory's order."""
        return [host.name for host in self.inventory]

    def settings(self, name: str) -> HostSettings:
        """A host's settings.

        Args:
            name: the host.

        Raises:
            InputError: its data is wrong.
        """
        return host_settings(name, data_layers(self.inventory, self.inventory.get_host(name)))

    def running(self, deploy: Callable[[], None], **data: Any) -> Fleet:
        """The same hosts with something else to be run on them.

        Args:
            deploy: what is run for each host.
            data: laid over all other data.
        """
        return Fleet(self.inventory, deploy, {**self.override, **data}, self.config)

    def data(self, name: str) -> dict[str, Any]:
        """All data of a host, as pyinfra sees it.

        Args:
            name: the host.
        """
        merged: dict[str, Any] = {}
        for layer in data_layers(self.inventory, self.inventory.get_host(name)):
            merged.update(layer)
        return merged

    def shell(self) -> FleetShell:
        """Commands on hosts of the whole fleet, over connections of their own.

        Raises:
            InputError: a host's data is wrong.
        """
        from lmcache_fleet.drain.fleet import FleetShell

        state = State()
        _init(state, self._part(self.names, self.override), self.config.copy())
        return FleetShell(state)

    def check(self, names: Iterable[str]) -> None:
        """See that every host's data can be read.

        Raises:
            InputError: a host's data is wrong; all such hosts are named.
        """
        problems: list[Problem] = []
        for name in names:
            try:
                self.settings(name)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)

    def limited(self, patterns: Iterable[str]) -> list[str]:
        """The hosts that `--limit` names: by name, by pattern, or by group.

        Args:
            patterns: names, shell patterns, groups; each may be a comma-separated list. None means every host.

        Raises:
            InputError: a pattern matches nothing.
        """
        wanted = [item.strip() for text in patterns for item in text.split(",") if item.strip()]
        if not wanted:
            return self.names
        groups = {name: {host.name for host in hosts} for name, hosts in self.inventory.groups.items()}
        chosen: set[str] = set()
        problems = []
        for pattern in wanted:
            found = {name for name in self.names if fnmatch(name, pattern)} | groups.get(pattern, set())
            if not found:
                known = nearest(pattern, [*self.names, *groups])
                problems.append(Problem("--limit", 0, 0, "", f"'{pattern}' matches no host of the inventory{known}"))
            chosen |= found
        if problems:
            raise InputError(problems)
        return [name for name in self.names if name in chosen]

    def run(
        self,
        names: Collection[str],
        *,
        change: bool = False,
        data: Mapping[str, Any] | None = None,
        told: Told | None = None,
        measure: bool = False,
        host_limit: float | None = None,
    ) -> Recorder:
        """Run the deploy on hosts, side by side; one host's failure or slowness is no other's.

        Args:
            names: the hosts.
            change: carry out what is pending; else only find out.
            data: more data, laid over all other.
            told: called with host, step and text as the work goes on.
            measure: also measure the releases on disk.
            host_limit: seconds after which a host is given up; None means that only its steps' own limits count.

        Raises:
            InputError: the playbook or the inventory is wrong; no host was touched.
        """
        recorder = Recorder(told, measure)
        if not names:
            return recorder
        inventory = self._part(names, {**self.override, **(data or {})})
        # What operations find out when they carry something out is written down there and then; asking before as well
        # would read every host twice.
        state = State(check_for_changes=not change)
        record(state, recorder)
        _separate_runs()
        with _context(ctx_state, state), _context(ctx_inventory, inventory):
            config = self.config.copy()
            # pyinfra's own default grows with the processors here; hosts that hang must not keep others from theirs.
            config.PARALLEL = config.PARALLEL or max(1, min(len(names), _SIDE_BY_SIDE, MAX_PARALLEL))
            _init(state, inventory, config)
            state.add_callback_handler(_Telling())
            try:
                self._connect(state, recorder)
                state.set_stage(StateStage.Prepare)
                self._prepare(state, recorder, host_limit)
                if change:
                    state.set_stage(StateStage.Execute)
                    state.is_executing = True
                    self._side_by_side(state, recorder, self._execute, host_limit)
            finally:
                _close(state, recorder)
        return recorder

    def _part(self, names: Collection[str], override: dict[str, Any]) -> Inventory:
        hosts = [host for host in self.inventory if host.name in names]
        members: dict[str, list[str]] = {}
        for host in hosts:
            for group in host.groups:
                members.setdefault(group, []).append(host.name)
        groups = {name: (found, self.inventory.get_group_data(name)) for name, found in members.items()}
        data = [(host.name, dict(self.inventory.get_host_data(host.name))) for host in hosts]
        made = Inventory((data, self.inventory.get_data()), override_data=override, **groups)
        mark_part(made, self.names)
        return made

    def _connect(self, state: State, recorder: Recorder) -> None:
        state.set_stage(StateStage.Connect)
        # pyinfra raises once no host is left; who could not be reached is written down already.
        try:
            with gevent.Timeout(_CONNECT_LIMIT):
                connect_all(state)
        except PyinfraError:
            pass
        except gevent.Timeout:
            for host in state.inventory:
                if host.connected:
                    state.activate_host(host)
        for host in state.inventory:
            if host not in state.active_hosts:
                recorder.fail(Failure(host.name, "connect", f"none within {_CONNECT_LIMIT} s", _UNREACHED_REMEDY))

    def _prepare(self, state: State, recorder: Recorder, limit: float | None) -> None:
        wrong: list[DeployError] = []

        def prepare(host: Host) -> None:
            with _context(ctx_config, state.config.copy()):
                try:
                    self.deploy()
                except DeployError as error:
                    wrong.append(error)
                except PyinfraError as error:
                    # pyinfra's word that no host is left comes up in whichever host was the last to fail.
                    if host not in state.failed_hosts:
                        raise InputError([Problem("deploy", 0, 0, "", str(error))]) from error

        self._side_by_side(state, recorder, prepare, limit)
        if wrong:
            raise InputError([Problem("deploy", 0, 0, "", str(wrong[0]))])

    def _side_by_side(
        self, state: State, recorder: Recorder, work: Callable[[Host], None], limit: float | None
    ) -> None:
        def contained(host: Host) -> Exception | None:
            with (
                _context(ctx_state, state),
                _context(ctx_inventory, state.inventory),
                _context(ctx_host, host),
            ):
                try:
                    with gevent.Timeout(limit, HostHung):
                        work(host)
                except HostHung:
                    cause = f"took longer than {limit:.0f} s and was given up"
                    _fail(state, recorder, host, Failure(host.name, "time limit", cause, _HUNG_REMEDY))
                except Exception as error:
                    return error
            return None

        greenlets = [state.pool.spawn(contained, host) for host in list(state.active_hosts)]
        try:
            gevent.joinall(greenlets)
        except BaseException:
            gevent.killall(greenlets, block=True, timeout=_CLOSING_LIMIT)
            raise
        for greenlet in greenlets:
            if greenlet.value is not None:
                raise greenlet.value

    @staticmethod
    def _execute(host: Host) -> None:
        state = host.state
        # Not pyinfra's `run_ops`, which has every host wait for the slowest one after each step.
        for op_hash in list(host.op_hash_order):
            if not run_host_op(state, host, op_hash):
                with suppress(PyinfraError):
                    state.fail_hosts({host})
                return


def _init(state: State, inventory: Inventory, config: Config) -> None:
    try:
        state.init(inventory, config)
    except PyinfraError as error:
        # config.py has pyinfra check hosts' data first: it may know more of it than the engine does.
        raise InputError([Problem("inventory", 0, 0, "", str(error))]) from error


def _fail(state: State, recorder: Recorder, host: Host, failure: Failure) -> None:
    recorder.fail(failure)
    with suppress(PyinfraError):
        state.fail_hosts({host})


def _close(state: State, recorder: Recorder) -> None:
    """Let go of locks and connections, of hosts that don't answer too."""

    def quietly(work: Callable[[], Any]) -> None:
        with suppress(Exception), gevent.Timeout(_CLOSING_LIMIT, False):
            work()

    def leave(host: Host) -> None:
        quietly(host.disconnect)
        # pyinfra's SSH connector leaves the connection itself open.
        client = getattr(host.connector, "client", None)
        if client is not None:
            quietly(client.close)

    gevent.joinall([gevent.spawn(quietly, work) for work in recorder.at_end], timeout=_CLOSING_LIMIT)
    # Hosts that were reached too late to take part have a connection as well.
    reached = [host for host in state.inventory if host.connected]
    gevent.joinall([gevent.spawn(leave, host) for host in reached], timeout=2 * _CLOSING_LIMIT)


class _Telling(BaseStateCallback):
    """Passes on which step a host is at, and which host can't be reached."""

    @staticmethod
    def operation_host_start(state: State, host: Host, op_hash: str) -> None:
        recorder = recorder_of(state)
        if recorder and op_hash in state.ops[host]:
            recorder.tell(host.name, str(state.ops[host][op_hash].global_arguments.get("name") or ""), "")

    @staticmethod
    def host_connect_error(state: State, host: Host, error: Exception) -> None:
        # Ours of operations/transport.py says more, when config.py has put it there; the first word counts.
        recorder = recorder_of(state)
        if recorder:
            recorder.fail(Failure(host.name, "connect", str(error), _UNREACHED_REMEDY))


class _OfGreenlet(local):  # type: ignore[misc]
    """Where one of pyinfra's contexts keeps its value: each greenlet its own, none to begin with."""

    module = None


def _separate_runs() -> None:
    """Let runs go on side by side: pyinfra keeps the state and the inventory once a process, the host by greenlet."""
    for manager in (ctx_state, ctx_inventory):
        if not isinstance(manager.context._container, _OfGreenlet):
            kept = manager.get()
            manager.context._container = _OfGreenlet()
            manager.set(kept)


@contextmanager
def _context(manager: Any, value: Any) -> Iterator[None]:
    """As pyinfra's own `use`, but put back after an exception too."""
    before = manager.get()
    manager.set(value)
    try:
        yield
    finally:
        manager.set(before)


# Loading


def load_fleet(
    inventory: str, deploy: str | Path | None, data: Iterable[str] = (), group_data: Iterable[str] = ()
) -> Fleet:
    """Load config.py, an inventory and a deploy file, as pyinfra's own command does.

    Args:
        inventory: as pyinfra's command takes it: a file, names, connectors.
        deploy: the deploy file; None when nothing is to be run.
        data: `key=value` texts, as of pyinfra's `--data`.
        group_data: further directories with group data.

    Raises:
        InputError: one of them can't be loaded, or a host's data is wrong.
    """
    # Importing it makes blocking calls yield to other hosts; hence here, and not with this module.
    from pyinfra_cli.exceptions import CliError, UnexpectedExternalError
    from pyinfra_cli.inventory import make_inventory
    from pyinfra_cli.util import exec_file, parse_cli_arg

    override: dict[str, Any] = {}
    for text in data:
        name, separator, value = text.partition("=")
        if not separator:
            raise InputError([Problem("--data", 0, 0, "", f"expected name=value, got '{text}'")])
        override[name] = parse_cli_arg(value)
    path = str(deploy)
    if deploy is not None and not Path(path).is_file():
        raise InputError([Problem(path, 0, 0, "", "no such deploy file")])
    cwd = str(Path.cwd())
    if cwd not in sys.path:
        sys.path.append(cwd)
    os.environ.setdefault("PYINFRA_PROGRESS", "off")
    sys.dont_write_bytecode = True
    config, state = Config(), State()
    state.cwd = cwd
    file = inventory
    try:
        # The file is read for a state of its own: config.py and inventories may look at pyinfra's context.
        with _context(ctx_state, state), _context(ctx_config, config):
            if Path("config.py").exists():
                file = "config.py"
                exec_file("config.py")
            file = inventory
            if inventory.endswith(".py") and not Path(inventory).exists():
                raise InputError([Problem(inventory, 0, 0, "", "no such inventory file")])
            made = make_inventory(inventory, override, cwd=cwd, group_data_directories=list(group_data))
    except (CliError, UnexpectedExternalError, PyinfraError) as error:
        message = getattr(error, "message", None) or str(error)
        raise InputError([Problem(file, 0, 0, "", f"can't be loaded: {message}")]) from error
    if not len(made):
        raise InputError([Problem(inventory, 0, 0, "", "has no hosts")])

    fleet = Fleet(made, deploy_file(path), override, config)
    fleet.check(fleet.names)
    return fleet


def deploy_file(path: str | Path) -> Callable[[], None]:
    """What runs a deploy file for the host in context.

    Args:
        path: the file.
    """
    from pyinfra_cli.exceptions import UnexpectedExternalError
    from pyinfra_cli.util import exec_file

    def run() -> None:
        try:
            exec_file(str(path))
        except UnexpectedExternalError as error:
            raise DeployError(f"{path}: {getattr(error, 'message', error)}") from error

    return run


def log_to(path: Path | None) -> None:
    """Send what pyinfra and the steps say to a file; to nowhere without one.

    Args:
        path: the file, which is added to.
    """
    logger = logging.getLogger("pyinfra")
    handler: logging.Handler
    if path is None:
        handler = logging.NullHandler()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path)
        handler.setFormatter(_Plain("%(asctime)s %(message)s"))
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _Plain(logging.Formatter):
    """Lines for a file: UTC, without terminal codes."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        from lmcache_fleet.evidence_log import strip_ansi

        return strip_ansi(super().format(record))
