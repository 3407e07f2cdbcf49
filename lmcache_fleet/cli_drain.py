"""`lmcache-fleet drain` and `undrain`: take hosts out of their load balancers by hand, and put them back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from lmcache_fleet.cli_fleet import input_errors, load

if TYPE_CHECKING:
    from lmcache_fleet.drain.fleet import FleetShell


def _run(inventory: str, hosts: tuple[str, ...], data: tuple[str, ...], back: bool) -> None:
    from lmcache_fleet.drain import DrainError

    shell = load(inventory, None, data, ()).shell()
    failed = 0
    for host in hosts:
        try:
            _one(shell, host, back)
        except DrainError as error:
            failed += 1
            click.secho(f"{host}: {error.cause}", fg="red", err=True)
            if error.remedy:
                click.secho(f"  remedy: {error.remedy}", fg="yellow", err=True)
    sys.exit(1 if failed else 0)


def _one(shell: FleetShell, host: str, back: bool) -> None:
    from lmcache_fleet.drain import DrainError, drain_of

    settings = shell.settings(host)
    if settings.drain is None:
        raise DrainError("it has no `drain` in its inventory data", "docs/drain.md shows what to put there")
    hook = drain_of(settings, shell, lambda text: click.echo(f"  {text}", err=True))
    click.echo(f"{host}: {'undraining' if back else 'draining'} …", err=True)
    if back:
        hook.undrain(host)
    else:
        hook.drain(host)
    click.echo(f"{host}: {'undrained' if back else 'drained'}")


_inventory = click.argument("inventory")
_hosts = click.argument("hosts", nargs=-1, required=True)
_overlay = click.option("--data", multiple=True, metavar="NAME=VALUE", help="Host data laid over the inventory's.")


@click.command()
@_inventory
@_hosts
@_overlay
@input_errors
def drain(inventory: str, hosts: tuple[str, ...], data: tuple[str, ...]) -> None:
    """Take HOSTS out of service at their load balancers, one after another, and wait for their requests to end.

    A host whose requests don't end in time is put back. Nothing else about it is changed.
    """
    _run(inventory, hosts, data, back=False)


@click.command()
@_inventory
@_hosts
@_overlay
@input_errors
def undrain(inventory: str, hosts: tuple[str, ...], data: tuple[str, ...]) -> None:
    """Put HOSTS back in service, each when the load balancers' health checks see it up."""
    _run(inventory, hosts, data, back=True)
