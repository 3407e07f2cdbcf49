"""`lmcache-fleet plan` and the other commands that reach hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from lmcache_fleet.problems import InputError

if TYPE_CHECKING:
    from lmcache_fleet.fleet import Fleet

P = ParamSpec("P")
R = TypeVar("R")
Texts = tuple[str, ...]

_LIMIT = click.option("--limit", multiple=True, metavar="HOSTS", help="Names, patterns, groups; repeat or use commas.")
_DATA = click.option("--data", multiple=True, metavar="NAME=VALUE", help="Host data laid over all other, as pyinfra's.")
_GROUP_DATA = click.option("--group-data", multiple=True, metavar="DIR", help="A further directory with group data.")
_JSON = click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options of every command that reaches hosts."""
    for decorate in (_GROUP_DATA, _DATA, _LIMIT):
        command = decorate(command)
    return command


def input_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Input that is wrong ends a command with status 1, before any host is touched, and says what to mend."""

    @wraps(command)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except InputError as error:
            for problem in error.problems:
                click.secho(str(problem), fg="red", err=True)
            sys.exit(1)

    return checked


def load(inventory: str, deploy: str | Path | None, data: Texts, group_data: Texts) -> Fleet:
    """Load a fleet, with many hosts' waiting made to overlap."""
    from gevent import monkey

    monkey.patch_all()
    from lmcache_fleet.fleet import load_fleet, log_to

    log_to(None)
    return load_fleet(inventory, deploy, data, group_data)


def progress(quiet: bool = False) -> Callable[[str, str, str], None] | None:
    """A line on standard error for each host that begins long work or fails; None when not wanted."""

    def tell(host: str, step: str, text: str) -> None:
        if text:
            click.echo(f"{host}: {step}: {text}", err=True)

    return None if quiet else tell


@click.command()
@click.argument("inventory")
@click.argument("deploy")
@fleet_options
@_JSON
@input_errors
def plan(inventory: str, deploy: str, limit: Texts, data: Texts, group_data: Texts, as_json: bool) -> None:
    """Say everything that a run of DEPLOY would do on the hosts of INVENTORY; hosts that agree are shown together.

    Ends with 0 when there is nothing to do, 2 when changes are pending, 1 when a host failed.
    """
    fleet = load(inventory, deploy, data, group_data)
    from lmcache_fleet.grouping import plan_of
    from lmcache_fleet.reporters.plan import console, show_plan

    names = fleet.limited(limit)
    with waiting(f"reading {len(names)} hosts"):
        found = plan_of(names, fleet.run(names))
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    else:
        show_plan(console(), found)
    sys.exit(found.status)


@click.command()
@click.argument("inventory")
@click.argument("deploy")
@fleet_options
@_JSON
@input_errors
def status(inventory: str, deploy: str, limit: Texts, data: Texts, group_data: Texts, as_json: bool) -> None:
    """Say where each host of INVENTORY stands: release, service, age of its evidence, disk, and drift from DEPLOY.

    Ends with 0 when nothing drifted, 2 when something did, 1 when a host failed.
    """
    fleet = load(inventory, deploy, data, group_data)
    from lmcache_fleet.grouping import plan_of
    from lmcache_fleet.reporters.plan import console
    from lmcache_fleet.reporters.status import show_status, status_json

    names = fleet.limited(limit)
    with waiting(f"reading {len(names)} hosts"):
        recorder = fleet.run(names, measure=True)
    found = plan_of(names, recorder)
    if as_json:
        click.echo(json.dumps(status_json(names, recorder, found), indent=1))
    else:
        show_status(console(), names, recorder, found)
    sys.exit(found.status)


def waiting(text: str) -> Any:
    """Shows on a terminal that something goes on; a context manager."""
    from rich.console import Console

    return Console(stderr=True).status(text)
