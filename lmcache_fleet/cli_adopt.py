"""`lmcache-fleet adopt`: accept the key of a new or reimaged host, knowingly."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lmcache_fleet.cli_fleet import Texts, input_errors, load
from lmcache_fleet.problems import InputError, Problem, nearest


@click.command()
@click.argument("host")
@click.argument("inventory")
@click.option("--fingerprint", required=True, metavar="SHA256:…", help="Read on the host itself, not over the network.")
@click.option("--data", multiple=True, metavar="NAME=VALUE", help="Host data laid over all other, as pyinfra's.")
@input_errors
def adopt(host: str, inventory: str, fingerprint: str, data: Texts) -> None:
    """Accept the SSH key of HOST, a host of INVENTORY that is new or was reimaged, when it has this fingerprint.

    On its console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub. The old key is removed from the fleet's
    known_hosts file, and who accepted what and when is written to the audit log in the artifact store.
    """
    fleet = load(inventory, None, data, ())
    from lmcache_fleet.audit import audit
    from lmcache_fleet.host_keys import NoKeys, Place, known_keys, put_key, shown_keys
    from lmcache_fleet.host_keys import fingerprint as fingerprint_of

    if host not in fleet.names:
        raise InputError([Problem(inventory, 0, 0, "", f"has no host '{host}'{nearest(host, fleet.names)}")])
    about = fleet.data(host)
    file = about.get("ssh_known_hosts_file")
    if not file:
        text = f"{host} has no ssh_known_hosts_file: give the fleet a file of its own, as inventories/prod.py does"
        raise InputError([Problem(inventory, 0, 0, "", text)])
    path, place = (
        Path(file).expanduser(),
        Place(str(about.get("ssh_hostname") or host), int(about.get("ssh_port") or 22)),
    )
    old = known_keys(path.read_text(encoding="utf-8"), place) if path.exists() else []
    try:
        shown = shown_keys(place)
    except NoKeys as error:
        raise click.ClickException(f"{host} shows no key: {error}") from error
    facts = {
        "host": host,
        "address": place.known_as,
        "inventory": inventory,
        "known_hosts": str(path.resolve()),
        "old": [fingerprint_of(key) for key in old],
        "shown": [fingerprint_of(key) for key in shown],
    }
    matching = next((key for key in shown if fingerprint_of(key) == fingerprint), None)
    if matching is None:
        audit("adopt refused", {**facts, "given": fingerprint})
        click.secho(
            f"{host} ({place.known_as}) shows no key with the fingerprint {fingerprint}; it shows", err=True, fg="red"
        )
        for key in shown:
            click.echo(f"  {fingerprint_of(key)} ({key.get_name()})", err=True)
        click.echo("either the fingerprint was read elsewhere, or this is not the host that you mean", err=True)
        sys.exit(1)
    if matching in old:
        click.echo(f"{host}: this key is known already")
        return
    log = audit("adopt", {**facts, "new": fingerprint})
    put_key(path, place, matching)
    click.echo(f"{host}: {', '.join(facts['old']) or 'no key'} → {fingerprint} in {path}; written to {log}")
