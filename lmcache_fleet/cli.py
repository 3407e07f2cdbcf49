"""`lmcache-fleet`: what pyinfra's own command can't do."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from lmcache_fleet import __version__
from lmcache_fleet.cli_adopt import adopt
from lmcache_fleet.cli_bundle import bundle
from lmcache_fleet.cli_drain import drain, undrain
from lmcache_fleet.cli_fleet import plan, status
from lmcache_fleet.cli_lab import lab
from lmcache_fleet.cli_lock import lock
from lmcache_fleet.cli_preflight import explain, preflight
from lmcache_fleet.cli_report import report
from lmcache_fleet.cli_rollout import rollback, rollout
from lmcache_fleet.cli_settings import setting
from lmcache_fleet.cli_systems import systems
from lmcache_fleet.problems import InputError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Playbooks for vLLM + LMCache on fleets of accelerator hosts.

    Fleets are converged by pyinfra: `pyinfra inventories/prod.py deploys/ascend.py --dry --diff`.
    """


main.add_command(lab)
main.add_command(lock)
main.add_command(systems)
main.add_command(bundle)
main.add_command(drain)
main.add_command(undrain)
main.add_command(plan)
main.add_command(status)
main.add_command(rollout)
main.add_command(rollback)
main.add_command(adopt)
main.add_command(preflight)
main.add_command(explain)
main.add_command(report)


@main.command()
@click.argument("playbooks", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Override a variable (JSON, else text).")
@click.option("--json", "as_json", is_flag=True, help="Problems as JSON.")
def check(playbooks: tuple[Path, ...], settings: tuple[str, ...], as_json: bool) -> None:
    """Check playbooks without any host: schema, templates, references, known-bad combinations."""
    from lmcache_fleet.compatibility import findings, notes
    from lmcache_fleet.playbook.load import check_document, read_playbook

    given = dict(setting(item) for item in settings)
    problems: list[str] = []
    worth_knowing: list[str] = []
    for path in playbooks:
        try:
            document = read_playbook(path)
            playbook = check_document(document, given)
            found = [f"{path}: {finding}" for finding in findings(playbook)]
            known = [f"{path}: note: {note}" for note in notes(playbook)]
        except InputError as error:
            found, known = [str(problem) for problem in error.problems], []
        problems += found
        worth_knowing += known
        if not as_json:
            for text in found:
                click.secho(text, fg="red", err=True)
            for text in known:
                click.secho(text, fg="yellow", err=True)
            if not found:
                click.echo(f"{path}: ok")
    if as_json:
        click.echo(json.dumps({"ok": not problems, "problems": problems, "notes": worth_knowing}, indent=1))
    sys.exit(1 if problems else 0)


@main.command()
@click.option("--markdown", is_flag=True, help="The reference for people instead.")
def schema(markdown: bool) -> None:
    """Print the playbook's JSON Schema, for editors."""
    from lmcache_fleet.playbook.schema import playbook_schema, reference

    if markdown:
        click.echo(reference())
        return
    click.echo(json.dumps(playbook_schema(), indent=1, sort_keys=True))


@main.command()
@click.argument("name", required=False)
def parse(name: str | None) -> None:
    """Read a tool's output from standard input and print what our facts make of it, as JSON.

    Without a NAME, the names are listed.
    """
    from lmcache_fleet.parsers.registry import parser, parsers

    if name is None:
        click.echo("\n".join(parsers()))
        return
    try:
        read = parser(name)
    except KeyError as error:
        raise click.ClickException(str(error.args[0])) from None
    result = read(sys.stdin.buffer.read().decode(errors="replace"))
    click.echo(json.dumps(_plain(result), indent=1, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if hasattr(value, "as_json"):
        return value.as_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


if __name__ == "__main__":
    main()
