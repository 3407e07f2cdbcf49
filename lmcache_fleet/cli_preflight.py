"""`lmcache-fleet preflight` and `explain`: what stands in the way of a playbook, and what a check means."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from lmcache_fleet.cli_fleet import Texts, fleet_options, input_errors, load, waiting

_LANGUAGE = click.option(
    "--lang",
    "language",
    type=click.Choice(["en", "zh"]),
    default=None,
    help="Language of texts; LANG decides if not given.",
)


def chosen_language(given: str | None) -> str:
    """The language asked for, else the terminal's."""
    return given or ("zh" if os.environ.get("LC_ALL", os.environ.get("LANG", "")).startswith("zh") else "en")


@click.command()
@click.argument("inventory")
@click.argument("playbook", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@fleet_options
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")
@click.option("--strict", is_flag=True, help="End with 2 when there are warnings.")
@_LANGUAGE
@input_errors
def preflight(
    inventory: str,
    playbook: Path | None,
    limit: Texts,
    data: Texts,
    group_data: Texts,
    as_json: bool,
    strict: bool,
    language: str | None,
) -> None:
    """Say what stands in the way of PLAYBOOK on the hosts of INVENTORY. Nothing is changed.

    Without PLAYBOOK each host's data decides (`playbook`), else playbooks/ascend.yaml. Ends with 0 when nothing surely
    stands in the way of any host, 1 when something does or a host can't be reached, 2 with --strict for warnings.
    """
    from lmcache_fleet.repository import ROOT

    language = chosen_language(language)
    given = (*data, f"playbook={playbook.resolve()}") if playbook else data
    fleet = load(inventory, str(ROOT / "deploys" / "preflight.py"), given, group_data)
    from lmcache_fleet.preflight.report import Report
    from lmcache_fleet.reporters.plan import console
    from lmcache_fleet.reporters.preflight import show_report

    names = fleet.limited(limit)
    with waiting(f"reading {len(names)} hosts"):
        run = fleet.run(names)
    report = Report.of(names, run)
    if as_json:
        click.echo(json.dumps(report.as_json(language), indent=1, ensure_ascii=False))
    else:
        show_report(console(), report, language)
    sys.exit(report.status(strict))


@click.command()
@click.argument("check", required=False)
@_LANGUAGE
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--markdown", is_flag=True, help="The whole catalogue as a page.")
def explain(check: str | None, language: str | None, as_json: bool, markdown: bool) -> None:
    """Explain a CHECK of the preflight: when it fires, what it means, what to do. Without CHECK, list them all."""
    from lmcache_fleet.preflight.catalogue import catalogue
    from lmcache_fleet.problems import nearest
    from lmcache_fleet.reporters.plan import console
    from lmcache_fleet.reporters.preflight import catalogue_page, show_catalogue, show_entry

    language = chosen_language(language)
    entries = catalogue()
    if check is not None and check not in entries:
        near = nearest(check, entries)
        hint = near if "did you mean" in near else " (`lmcache-fleet explain` lists them)"
        raise click.ClickException(f"there is no check '{check}'{hint}")
    chosen = {check: entries[check]} if check is not None else entries
    if markdown:
        click.echo(catalogue_page(entries, language), nl=False)
    elif as_json:
        plain: dict[str, Any] = {name: entry.model_dump(mode="json") for name, entry in chosen.items()}
        click.echo(json.dumps(plain, indent=1, ensure_ascii=False))
    elif check is not None:
        show_entry(console(), check, entries[check], language)
    else:
        show_catalogue(console(), entries, language)
