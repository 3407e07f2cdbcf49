"""`lmcache-fleet bundle`: all that a playbook fetches, for a site without a network."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import click

from lmcache_fleet.cli_fleet import input_errors
from lmcache_fleet.problems import InputError


@click.command()
@click.argument("playbook", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), help="The bundle's directory.")
@click.option("--arch", type=click.Choice(["x86_64", "aarch64"]), help="The hosts' architecture; this machine's.")
@click.option("--python", "minor", metavar="3.X", help="Their Python; sets the playbook's variable `python`.")
@click.option("--data", multiple=True, metavar="NAME=VALUE", help='Host data laid over all other: vars={"model": …}.')
@click.option("--inventory", help="Take the variables of this inventory's hosts.")
@click.option("--limit", multiple=True, metavar="HOSTS", help="Only these hosts of the inventory.")
@click.option("--verify", type=click.Path(path_type=Path), metavar="DIR", help="Check a bundle's files instead.")
@input_errors
def bundle(
    playbook: Path | None,
    output: Path | None,
    arch: str | None,
    minor: str | None,
    data: tuple[str, ...],
    inventory: str | None,
    limit: tuple[str, ...],
    verify: Path | None,
) -> None:
    """Put all that PLAYBOOK fetches into one directory: packages, uv, sources, model, built extensions, by hash.

    Runs with `--data bundle=DIR` then take everything from there, and make no connection but SSH to their hosts.
    What an earlier call put there is not fetched again.
    """
    if verify is not None:
        _verify(verify)
        return
    if playbook is None or output is None:
        raise click.UsageError("give a PLAYBOOK and -o DIR, or --verify DIR")
    from lmcache_fleet.bundle.collect import NoBundle, make_bundle
    from lmcache_fleet.bundle.manifest import NAME
    from lmcache_fleet.playbook.load import read_playbook
    from lmcache_fleet.playbook.model import VenvStep
    from lmcache_fleet.resolution import Unresolved
    from lmcache_fleet.sizes import readable
    from lmcache_fleet.store import file_sha256

    machine = arch or {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
    document = read_playbook(playbook.resolve())
    playbooks = _rendered(document, machine, _variables(inventory, limit, data), minor)
    for item in playbooks:
        wrong = [venv.python for venv in item.of_kind(VenvStep) if minor and venv.python != minor]
        if wrong:
            raise click.UsageError(f"the playbook wants Python {wrong[0]} whatever --python says")
        if item.requires.architectures and machine not in item.requires.architectures:
            raise click.UsageError(f"the playbook is for {', '.join(item.requires.architectures)}, not for {machine}")
    try:
        manifest = make_bundle(playbooks, machine, output, lambda text: click.echo(text, err=True))
    except NoBundle as error:
        _end(error.cause, error.remedy)
    except Unresolved as error:
        _end(f"packages {error.step}: {error.cause}", error.remedy)
    total = sum(file.size for file in manifest.files.values())
    click.echo(f"{output}: {len(manifest.files)} files, {readable(total)}")
    click.echo(f"manifest sha256 {file_sha256(output / NAME)}")


def _verify(root: Path) -> None:
    from lmcache_fleet.bundle.manifest import NAME, damage, read_bundle
    from lmcache_fleet.sizes import readable
    from lmcache_fleet.store import file_sha256

    found = read_bundle(root)
    manifest = found.manifest
    click.echo(f"checking {len(manifest.files)} files, {readable(found.size(manifest.files))}", err=True)
    problems = damage(found)
    if problems:
        raise InputError(problems)
    click.echo(f"{root}: whole; {manifest.playbook} for {manifest.arch} and Python {manifest.python}")
    click.echo(f"manifest sha256 {file_sha256(root / NAME)}")


def _end(cause: str, remedy: str) -> None:
    click.secho(cause, fg="red", err=True)
    click.secho(f"remedy: {remedy}", fg="yellow", err=True)
    sys.exit(1)


def _variables(inventory: str | None, limit: tuple[str, ...], data: tuple[str, ...]) -> list[dict[str, Any]]:
    """The distinct sets of variables that the hosts have; one set without an inventory."""
    if inventory is None:
        from lmcache_fleet.cli_settings import setting
        from lmcache_fleet.inventory import host_settings

        return [host_settings("--data", [dict(setting(item) for item in data)]).vars]
    from lmcache_fleet.cli_fleet import load

    fleet = load(inventory, None, data, ())
    found = {json.dumps(fleet.settings(name).vars, sort_keys=True) for name in fleet.limited(limit)}
    return [json.loads(item) for item in sorted(found)]


def _rendered(document: Any, arch: str, variables: list[dict[str, Any]], minor: str | None) -> list[Any]:
    from lmcache_fleet.playbook.load import resolve

    given = {"python": minor} if minor and "python" in (document.data.get("vars") or {}) else {}
    return [
        resolve(document, {**item, **given}, arch=arch, prefix="/opt/lmcache-fleet", host="example")
        for item in variables
    ]
