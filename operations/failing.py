"""The failures of a run, and the table that names them at its end."""

from __future__ import annotations

import atexit

import click
from pyinfra.api import Host

from lmcache_fleet.failures import Failure, failure_table
from lmcache_fleet.recording import recorder_of

_failures: dict[str, Failure] = {}


def note_failure(host: Host, step: str, cause: str, remedy: str) -> None:
    """Note why a host failed, and say it now; the first failure of a host is the one that counts.

    Args:
        host: the host.
        step: what was being done.
        cause: what went wrong.
        remedy: what to do about it; empty when nobody knows.
    """
    failure = Failure(host.name, step, cause, remedy)
    recorder = recorder_of(host.state)
    if recorder:
        # Whoever has the run written down also tells about it.
        recorder.fail(failure)
    else:
        _failures.setdefault(host.name, failure)
    host.log_styled(f"{step}: {cause}", fg="red")
    if remedy:
        host.log_styled(f"remedy: {remedy}", fg="yellow")


def has_failed(host: Host) -> bool:
    """Whether it was noted why a host failed."""
    recorder = recorder_of(host.state)
    return host.name in (recorder.failures if recorder else _failures)


@atexit.register
def _report() -> None:
    # At exit, because pyinfra prints nothing more once a run was broken off, and a failure must not be lost then.
    if _failures:
        click.echo(failure_table(list(_failures.values())), err=True)
