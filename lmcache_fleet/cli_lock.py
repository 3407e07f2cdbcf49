"""`lmcache-fleet lock`: write down by version and hash all that a playbook installs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lmcache_fleet.cli_settings import setting
from lmcache_fleet.problems import InputError


@click.command()
@click.argument("playbook", type=click.Path(path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Override a variable (JSON, else text).")
@click.option("--arch", "arches", multiple=True, metavar="ARCH", help="Only this architecture; may be repeated.")
def lock(playbook: Path, settings: tuple[str, ...], arches: tuple[str, ...]) -> None:
    """Resolve a PLAYBOOK's pins and write its lock beside it, with hashes for each architecture.

    Runs of the playbook then install what the lock says and nothing else; one that doesn't fit the playbook any more is
    refused. Delete the file to go without.
    """
    from lmcache_fleet.lock import lock_path, lock_text, make_lock
    from lmcache_fleet.playbook.load import read_playbook, resolve_all
    from lmcache_fleet.resolution import Unresolved

    try:
        document = read_playbook(playbook)
        found = resolve_all(document, dict(setting(item) for item in settings), locked=False)
    except InputError as error:
        raise click.ClickException(str(error)) from None
    unknown = [arch for arch in arches if arch not in found]
    if unknown:
        raise click.BadParameter(f"{unknown[0]} is none of the playbook's architectures ({', '.join(found)})")
    wanted = {arch: item for arch, item in found.items() if not arches or arch in arches}
    try:
        made = make_lock(wanted, lambda text: click.echo(text, err=True))
    except Unresolved as error:
        click.secho(f"packages {error.step}: {error.cause}", fg="red", err=True)
        click.secho(f"remedy: {error.remedy}", fg="yellow", err=True)
        sys.exit(1)
    target = lock_path(playbook)
    command = " ".join(["lmcache-fleet lock", str(playbook), *(f"--arch {arch}" for arch in arches)])
    part = target.with_suffix(".part")
    part.write_text(lock_text(made, command), encoding="utf-8")
    part.replace(target)
    click.echo(target)
