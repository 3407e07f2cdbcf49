"""Taking a host out of service and back: the seam between a rollout and whatever spreads requests over the hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from lmcache_fleet.problems import Trouble

if TYPE_CHECKING:
    # The settings themselves hold what is told here.
    from lmcache_fleet.inventory import HostSettings

Say = Callable[[str], None]
"""Told about waits of more than some seconds, and about what was left as it was found."""


class DrainError(Trouble):
    """A host can't be taken out of service, or not be put back."""


class Drain(Protocol):
    """Takes a host out of service and puts it back; each may be called again for what is already so.

    A rollout calls them for several hosts at once, from greenlets: wait by `time.sleep`, which lets the others go on.
    """

    def drain(self, host: str) -> None:
        """No new requests reach the host, and those that it has are through, when this returns.

        Args:
            host: its name in the inventory.

        Raises:
            DrainError: it can't be, or not in time. The host is put back as it was.
        """

    def undrain(self, host: str) -> None:
        """Requests reach the host again when this returns.

        Args:
            host: its name in the inventory.

        Raises:
            DrainError: it can't be.
        """


class NoDrain:
    """Nothing stands before the hosts: requests in flight end with the restart."""

    def drain(self, host: str) -> None:
        """Nothing to do."""

    def undrain(self, host: str) -> None:
        """Nothing to do."""


class Shell(Protocol):
    """Runs commands on hosts of the inventory."""

    def address(self, host: str) -> str:
        """The address of a host.

        Args:
            host: its name in the inventory.
        """

    def run(self, host: str, command: str) -> str:
        """What a short command of root's prints on a host.

        Args:
            host: its name in the inventory.
            command: for a shell; every value in it is quoted.

        Raises:
            DrainError: the host isn't there or can't be reached, or the command failed.
        """


def drain_of(settings: HostSettings, shell: Shell, say: Say) -> Drain:
    """What drains a host, as its inventory data says.

    Args:
        settings: the host's settings.
        shell: runs commands on the load balancers and on the host.
        say: told about long waits.
    """
    if settings.drain is None:
        return NoDrain()
    from lmcache_fleet.drain.hook import BalancerDrain

    return BalancerDrain(settings.drain, shell, say)
