"""What pyinfra's command line needs to be quick and careful: no Nagle, one sudo try, checked data, no prompts."""

from __future__ import annotations

import signal
import socket
import sys
from functools import lru_cache
from typing import Any

import click
import pyinfra
from pyinfra.api import Host, State
from pyinfra.api import inventory as inventory_module
from pyinfra.api.exceptions import InventoryError
from pyinfra.api.state import BaseStateCallback
from pyinfra.connectors import util
from pyinfra.connectors.ssh import SSHConnector

from lmcache_fleet.inventory import balancer_problems, data_layers, host_settings, whole
from lmcache_fleet.playbook.load import declared_variables
from lmcache_fleet.problems import InputError, Problem, nearest
from lmcache_fleet.repository import ROOT
from operations import connection
from operations.failing import has_failed, note_failure

_PLAYBOOKS = ROOT / "playbooks"
# Seconds between signs of life, and without an answer to them until a connection is given up.
_ALIVE_EVERY = 15
_SILENT_FOR = 60


def prepare_pyinfra() -> None:
    """Prepare pyinfra for our deploys; calling it again changes nothing."""
    if getattr(SSHConnector, "_lmcache_fleet", False):
        return
    SSHConnector._lmcache_fleet = True  # type: ignore[attr-defined]
    _switch_nagle_off()
    _ask_sudo_once()
    _check_data_first()
    _look_for_connectors_once()
    if pyinfra.is_cli:
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(signum: int, frame: object) -> None:
    # pyinfra's own handler ends with 0, which says that all went well.
    click.echo("interrupted: the release that serves is untouched; run again to go on", err=True)
    sys.exit(128 + signum)


def _switch_nagle_off() -> None:
    connect = SSHConnector._connect

    def connect_without_nagle(self: SSHConnector) -> None:
        connect(self)
        transport = self.client.get_transport() if self.client else None
        # Opening a channel waits for a delayed ACK otherwise: 43 ms a command instead of 2. Proxies have no socket.
        if transport is not None and isinstance(transport.sock, socket.socket):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A host that lost its power says nothing, and TCP would wait a quarter of an hour for it.
            transport.set_keepalive(_ALIVE_EVERY)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_FOR * 1000)

    SSHConnector._connect = connect_without_nagle  # type: ignore[method-assign]


def _ask_sudo_once() -> None:
    # sudo asks its helper three times; with a wrong password that is three failures, and many sites lock the account
    # then. The second time in the life of one sudo process the helper answers nothing, and sudo gives up.
    # noclobber: the mark is made by whoever comes first, and never through a link that somebody else put there.
    once = (
        "d=/tmp/.lmcache-fleet-askpass-$(id -u); mkdir -p -m 700 $d; [ -O $d ] || exit 1; set -C; "
        ": > $d/$PPID-$(cut -d' ' -f22 /proc/$PPID/stat) || exit 1; find $d -type f -mmin +5 -delete 2>/dev/null"
    )
    util.ASKPASS_COMMAND = util.ASKPASS_COMMAND.replace("#!/bin/sh\n", f"#!/bin/sh\n{once}\n", 1)


class _Unreached(BaseStateCallback):
    """Hosts that can't be reached are failures like any other: named, with cause and remedy."""

    @staticmethod
    def host_connect_error(state: State, host: Host, error: Exception) -> None:
        text = str(error)
        remedy = "check that it is up, its address and its SSH service"
        if "host key" in text.lower() or "not found in known_hosts" in text:
            remedy = (
                "was it reimaged? Read its fingerprint on its console, then: "
                f"lmcache-fleet adopt {host.name} INVENTORY --fingerprint SHA256:…"
            )
        elif "authentication" in text.lower():
            remedy = "check ssh_user and ssh_key of the host, and the key's place in authorized_keys"
        note_failure(host, "connect", text, remedy)

    @staticmethod
    def operation_host_error(
        state: State, host: Host, op_hash: str, retry_count: int = 0, max_retries: int = 0
    ) -> None:
        # Files that pyinfra itself carries fail past our steps.
        if not has_failed(host):
            step = ", ".join(state.get_op_meta(op_hash).names)
            broken = connection.is_broken(host)
            note_failure(host, step, *((connection.BROKEN, connection.REMEDY) if broken else ("the step failed", "")))


def _look_for_connectors_once() -> None:
    # pyinfra reads the metadata of every installed distribution anew for each host of an inventory: 2 ms or more.
    inventory_module.get_all_connectors = lru_cache(maxsize=1)(inventory_module.get_all_connectors)


def _check_data_first() -> None:
    init = State.init

    def checked_init(self: State, inventory: Any, *args: Any, **kwargs: Any) -> None:
        problems = []
        known = {}
        for host in inventory:
            try:
                layers = data_layers(inventory, host)
                settings = known[host.name] = host_settings(host.name, layers)
                named = [ROOT / layer["playbook"] for layer in layers if isinstance(layer.get("playbook"), str)]
                declared = declared_variables(_PLAYBOOKS).union(*map(declared_variables, named))
                unknown = [name for name in settings.vars if name not in declared]
                message = "a variable that no playbook has"
                where = f"inventory data of {host.name}"
                problems += [
                    Problem(where, 0, 0, f"vars.{name}", message + nearest(name, declared)) for name in unknown
                ]
            except InputError as error:
                problems += error.problems
        if not problems:
            problems = balancer_problems(known, whole(inventory))
        if problems:
            raise InventoryError(str(InputError(problems)))
        if kwargs.get("initial_limit") == []:
            # pyinfra would do nothing and say that all went well.
            raise InventoryError("--limit matches no host of the inventory")
        init(self, inventory, *args, **kwargs)
        self.add_callback_handler(_Unreached())
        # pyinfra asks at the terminal whether to go on without a failed host. Where there is none, the others go on,
        # the failed one is named, and the exit status tells.
        if not sys.stdin.isatty():
            self.should_raise_failed_hosts = lambda _: False

    State.init = checked_init  # type: ignore[method-assign]
