"""Commands on hosts of an inventory, over pyinfra's own connections: same keys, same sudo, host keys checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmcache_fleet.drain import DrainError
from lmcache_fleet.failures import explain
from lmcache_fleet.inventory import HostSettings, data_layers, host_settings
from lmcache_fleet.problems import nearest

if TYPE_CHECKING:
    from pyinfra.api import Host, State

_TIMEOUT = 90
_SUDO = {"_sudo": "SUDO", "_sudo_user": "SUDO_USER", "_sudo_password": "SUDO_PASSWORD", "_su_user": "SU_USER"}


class FleetShell:
    """Connects to a host at the first command for it.

    Args:
        state: pyinfra's, of a run of its own: a host belongs to one state.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._inventory = state.inventory

    def address(self, host: str) -> str:
        """The address of a host: that of its SSH service, or its name."""
        found = self._host(host)
        return str(found.data.get("ssh_hostname", found.name))

    def settings(self, host: str) -> HostSettings:
        """A host's settings.

        Args:
            host: its name in the inventory.

        Raises:
            DrainError: it isn't there.
        """
        return host_settings(host, data_layers(self._inventory, self._host(host)))

    def run(self, host: str, command: str) -> str:
        """What a short command of root's prints on a host.

        Args:
            host: its name in the inventory.
            command: for a shell; every value in it is quoted.

        Raises:
            DrainError: the host isn't there or can't be reached, or the command failed.
        """
        from pyinfra.api import StringCommand
        from pyinfra.api.exceptions import ConnectError

        found = self._host(host)
        try:
            found.connect(show_errors=False, raise_exceptions=True)
            status, output = found.run_shell_command(StringCommand(command), _timeout=_TIMEOUT, **self._sudo(found))
        except ConnectError as error:
            cause = f"{host} can't be reached: {error.args[0]}"
            raise DrainError(cause, "check the host and its SSH service") from error
        except Exception as error:
            # Whatever the transport throws. The next command connects anew.
            self.close(host)
            raise DrainError(f"the connection to {host} failed: {str(error) or type(error).__name__}") from error
        if not status:
            cause, remedy = explain(output.output_lines)
            raise DrainError(f"{host}: {cause}", remedy)
        return str(output.stdout)

    def close(self, host: str) -> None:
        """End the connection to a host."""
        found = self._host(host)
        client = getattr(found.connector, "client", None)
        if client is not None:
            # pyinfra's own disconnect leaves it open.
            client.close()
        found.connected = False

    def _host(self, name: str) -> Host:
        found = self._inventory.get_host(name, None)
        if found is None:
            names = [host.name for host in self._inventory]
            raise DrainError(f"the inventory has no host '{name}'{nearest(name, names)}", "correct the hosts' `drain`")
        return found

    def _sudo(self, host: Host) -> dict[str, Any]:
        config = self._state.config
        return {name: host.data.get(name, getattr(config, default)) for name, default in _SUDO.items()}
