"""Whether the way to a host is still there."""

from __future__ import annotations

from pyinfra.api import Host

REMEDY = "check that the host is up and that `ssh` reaches it, then run again"
BROKEN = "the connection to the host broke off"


def is_broken(host: Host) -> bool:
    """Whether the connection to a host was there and is gone.

    pyinfra can't tell a command that failed from one whose end nobody heard of.
    """
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client is not None else None
    return client is not None and (transport is None or not transport.is_active())
