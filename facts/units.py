"""systemd units: their file, their state, and what the running process was started with."""

from __future__ import annotations

import base64
import shlex
from dataclasses import dataclass, field

from pyinfra.api import FactBase

from lmcache_fleet.layout import STATE_DIRECTORY
from lmcache_fleet.plain import Plain

# Only these leave the host: an environment may hold secrets.
_SHOWN = "LMCACHE_FLEET_RELEASE LMCACHE_FLEET_UNIT LMCACHE_FLEET_SECRETS PYTHONHASHSEED"


@dataclass(frozen=True, slots=True)
class Unit(Plain):
    """One unit.

    Args:
        text: content of the unit file below /etc/systemd/system; None when there is none.
        properties: what `systemctl show` says, such as ActiveState, SubState, MainPID, UnitFileState, DropInPaths.
        environment: the variables of ours that the running main process was started with.
    """

    text: str | None
    properties: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether the main process is up."""
        return self.properties.get("ActiveState") == "active" and self.properties.get("SubState") == "running"


@dataclass(frozen=True, slots=True)
class SecretState(Plain):
    """A file with secrets, without the secrets.

    Args:
        digest: SHA-256 over the host's machine id and the file; None when there is no file.
        mode: its permission bits in octal.
    """

    digest: str | None = None
    mode: str | None = None


class SecretFile(FactBase[SecretState]):
    """What a file with secrets is like.

    + path: the file
    """

    def command(self, path: str) -> str:
        """The shell command that reads it."""
        file = shlex.quote(path)
        # Salted, so that a short secret can't be guessed from what a debug log shows of this answer.
        seen = f"cat /etc/machine-id {file} | sha256sum | cut -d' ' -f1"
        return f'[ -f {file} ] && printf \'%s %s\\n\' "$({seen})" "$(stat -c %a {file})"; true'

    def process(self, output: list[str]) -> SecretState:
        """Read the command's output."""
        fields = output[0].split() if output else []
        return SecretState(*fields) if len(fields) == 2 else SecretState()

    @staticmethod
    def default() -> SecretState:
        """No file."""
        return SecretState()


class Units(FactBase[dict[str, Unit]]):
    """Units by name.

    + names: unit names with suffix
    """

    default = dict

    def command(self, names: tuple[str, ...]) -> str:
        """The shell command that reads it."""
        wanted = "ActiveState,SubState,MainPID,UnitFileState,NeedDaemonReload,DropInPaths,Result,NRestarts"
        pattern = "|".join(_SHOWN.split())
        return (
            f"for u in {' '.join(shlex.quote(name) for name in names)}; do printf 'unit\\t%s\\n' \"$u\"; "
            '[ -f "/etc/systemd/system/$u" ] && printf \'text\\t%s\\n\' "$(base64 -w0 < "/etc/systemd/system/$u")"; '
            f"systemctl show -p {wanted} -- \"$u\" 2>/dev/null | sed 's/^/show\\t/'; "
            'p=$(systemctl show -p MainPID --value -- "$u" 2>/dev/null); '
            "[ -n \"$p\" ] && [ \"$p\" != 0 ] && tr '\\0' '\\n' < /proc/$p/environ 2>/dev/null "
            f"| grep -E '^({pattern})=' | sed 's/^/env\\t/'; done; true"
        )

    def process(self, output: list[str]) -> dict[str, Unit]:
        """Read the command's output."""
        units: dict[str, Unit] = {}
        name = ""
        for line in output:
            tag, _, rest = line.partition("\t")
            if tag == "unit":
                name = rest
                units[name] = Unit(None)
            elif tag == "text":
                units[name] = Unit(base64.b64decode(rest).decode(errors="replace"))
            elif tag in {"show", "env"} and name:
                key, _, value = rest.partition("=")
                (units[name].properties if tag == "show" else units[name].environment)[key] = value
        return units


@dataclass(frozen=True, slots=True)
class ServiceAccount(Plain):
    """The account that a service runs under.

    Args:
        exists: whether it is there.
        groups: groups that it is in.
        present_groups: those of the wanted groups that exist on the host.
        state_owner: owner of the service's state directory; None when it isn't there.
    """

    exists: bool
    groups: tuple[str, ...] = ()
    present_groups: tuple[str, ...] = ()
    state_owner: str | None = None


class Account(FactBase[ServiceAccount]):
    """The account that a service runs under.

    + user: its name
    + groups: groups to look for
    """

    def command(self, user: str, groups: tuple[str, ...] = ()) -> str:
        """The shell command that reads it."""
        names = " ".join(shlex.quote(name) for name in groups)
        member = f"id -Gn -- {shlex.quote(user)} 2>/dev/null | tr ' ' '\\n' | sed 's/^/member\\t/'"
        present = (
            f'for g in {names}; do getent group -- "$g" >/dev/null && printf \'group\\t%s\\n\' "$g"; done'
            if groups
            else "true"
        )
        owner = f"stat -c 'owner\t%U' {shlex.quote(STATE_DIRECTORY)} 2>/dev/null"
        return f"{member}; {present}; {owner}; true"

    def process(self, output: list[str]) -> ServiceAccount:
        """Read the command's output."""
        fields = [line.split("\t", 1) for line in output if "\t" in line]
        member = tuple(value for tag, value in fields if tag == "member" and value)
        return ServiceAccount(
            bool(member),
            member,
            tuple(value for tag, value in fields if tag == "group"),
            next((value for tag, value in fields if tag == "owner"), None),
        )

    @staticmethod
    def default() -> ServiceAccount:
        """No account."""
        return ServiceAccount(False)
