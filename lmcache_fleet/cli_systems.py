"""`lmcache-fleet systems`: which playbook is for which system."""

from __future__ import annotations

import json
import sys

import click


@click.command()
@click.option("--markdown", is_flag=True, help="The page docs/systems.md instead.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def systems(markdown: bool, as_json: bool) -> None:
    """List the systems of LMCache's guide: playbook, channel, tested how."""
    from lmcache_fleet import systems as known

    if markdown:
        click.echo(known.markdown())
    elif as_json:
        click.echo(json.dumps([item.model_dump(mode="json") for item in known.systems()], indent=1))
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table("playbook", "system", "channel", "tested how")
        for item in known.systems():
            table.add_row(item.playbook, item.system, item.channel.replace("`", ""), item.tested_how)
        Console().print(table)
    else:
        for item in known.systems():
            click.echo(f"{item.playbook}\t{item.system}\t{item.channel}\t{item.tested_how}")
