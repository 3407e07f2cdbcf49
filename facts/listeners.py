"""TCP ports in use, and who listens there."""

from __future__ import annotations

from pyinfra.api import FactBase

from lmcache_fleet.parsers.listeners import Listener, parse_listeners


class Listeners(FactBase[tuple[Listener, ...]]):
    """Listening TCP sockets by `ss`."""

    default = tuple

    def command(self) -> str:
        """The shell command that reads it."""
        return "PATH=$PATH:/usr/sbin:/sbin ss -Hltnp"

    def process(self, output: list[str]) -> tuple[Listener, ...]:
        """Read the command's output."""
        return parse_listeners(output)
