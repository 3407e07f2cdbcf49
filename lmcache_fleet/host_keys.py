"""The fleet's own known_hosts: what key a host shows, and a file in which a reimaged host's key is replaced."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from paramiko import PKey, SSHException, Transport
from paramiko.hostkeys import HostKeyEntry, HostKeys

# One connection a kind: a server shows one key, of the first kind that the client would take.
_KINDS = (("ssh-ed25519",), ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384"), ("rsa-sha2-512", "rsa-sha2-256"))


class NoKeys(Exception):
    """A host shows no key."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host's SSH service is.

    Args:
        address: name or address.
        port: its port.
    """

    address: str
    port: int = 22

    @property
    def known_as(self) -> str:
        """The name under which known_hosts files have it."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"


def shown_keys(place: Place, timeout: float = 10) -> list[PKey]:
    """The keys that a host shows to whoever connects; nothing is sent but the handshake.

    Args:
        place: where its SSH service is.
        timeout: seconds for each connection.

    Raises:
        NoKeys: it can't be reached, or shows none of a kind that we take.
    """
    keys: list[PKey] = []
    reason = "it shows no key of a kind that is taken"
    for kinds in _KINDS:
        try:
            with socket.create_connection((place.address, place.port), timeout) as connection:
                transport = Transport(connection)
                try:
                    transport.get_security_options().key_types = kinds
                    transport.start_client(timeout=timeout)
                    keys.append(transport.get_remote_server_key())
                finally:
                    transport.close()
        except OSError as error:
            raise NoKeys(f"{place.address} port {place.port}: {error.strerror or error}") from error
        except (SSHException, EOFError) as error:
            # No key of this kind; or not an SSH service at all.
            reason = str(error) or reason
    if not keys:
        raise NoKeys(f"{place.address} port {place.port}: {reason}")
    return keys


def fingerprint(key: PKey) -> str:
    """A key's fingerprint as `ssh-keygen -l` writes it: `SHA256:…`."""
    return str(key.fingerprint)


def known_keys(text: str, place: Place) -> list[PKey]:
    """The keys under which a known_hosts file has a host.

    Args:
        text: the file's text.
        place: the host.
    """
    return [entry.key for line in text.splitlines() if (entry := _entry(line)) and entry.key and _names(entry, place)]


def with_key(text: str, place: Place, key: PKey) -> str:
    """A known_hosts file in which a host has this key and no other; every other line stays as it is.

    Args:
        text: the file's text.
        place: the host.
        key: its key.
    """
    kept, names = [], [place.known_as]
    for line in text.splitlines():
        entry = _entry(line)
        if entry and _names(entry, place):
            # Its other names go with it: they were names of the same key.
            names += [name for name in entry.hostnames or [] if name not in names and not name.startswith("|")]
            continue
        kept.append(line)
    return "\n".join([*kept, f"{','.join(names)} {key.get_name()} {key.get_base64()}"]) + "\n"


def put_key(path: Path, place: Place, key: PKey) -> None:
    """Have a known_hosts file accept this key of a host, and no other.

    Args:
        path: the file; made when it isn't there.
        place: the host.
        key: its key.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    staged = path.with_name(f".{path.name}.new")
    with staged.open("w", encoding="utf-8") as handle:
        handle.write(with_key(text, place, key))
        handle.flush()
        os.fsync(handle.fileno())
    staged.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
    staged.replace(path)


def _entry(line: str) -> HostKeyEntry | None:
    if not line.strip() or line.lstrip().startswith(("#", "@")):
        return None
    try:
        return HostKeyEntry.from_line(line)
    except Exception:
        # A line that paramiko can't read is one that it will not go by either.
        return None


def _names(entry: HostKeyEntry, place: Place) -> bool:
    return any(
        name == place.known_as or (name.startswith("|1|") and HostKeys.hash_host(place.known_as, name) == name)
        for name in entry.hostnames or []
    )
