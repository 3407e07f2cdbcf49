"""`lmcache-fleet report`: where a fleet stands, as one HTML file, as JSON and as metrics."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lmcache_fleet.cli_fleet import Texts, fleet_options, input_errors, load, waiting
from lmcache_fleet.problems import InputError, Problem

if TYPE_CHECKING:
    from lmcache_fleet.fleet_report import FleetReport


@click.command()
@click.argument("inventory", required=False)
@click.argument("deploy", required=False)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="The HTML file.")
@click.option(
    "--prometheus", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Also write metrics, *.prom."
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on standard output, without an HTML file.")
@fleet_options
@input_errors
def report(
    inventory: str | None,
    deploy: str | None,
    output: Path | None,
    prometheus: Path | None,
    as_json: bool,
    limit: Texts,
    data: Texts,
    group_data: Texts,
) -> None:
    """Report on a fleet: hosts, versions, evidence, drift, failures, the last rollout.

    With INVENTORY and DEPLOY the hosts are asked; without, the report is of the evidence kept on this machine. Writes
    report.html unless told otherwise. Ends with 0 when it was written, whatever it says; 1 when it could not be.
    """
    made = _made(inventory, deploy, limit, data, group_data)
    from lmcache_fleet.reporters.html import html
    from lmcache_fleet.reporters.prometheus import metrics

    if prometheus:
        _write(prometheus, metrics(made))
    if as_json:
        click.echo(json.dumps(made.as_json(), indent=1, ensure_ascii=False))
    if output or not (as_json or prometheus):
        target = output or Path("report.html")
        _write(target, html(made))
        click.echo(f"written: {target}", err=True)
    sys.exit(0)


def _made(inventory: str | None, deploy: str | None, limit: Texts, data: Texts, group_data: Texts) -> FleetReport:
    if inventory is None or deploy is None:
        if inventory is not None or limit or data or group_data:
            raise InputError([Problem("report", 0, 0, "", "asking hosts needs an inventory and a deploy file")])
        from lmcache_fleet.fleet_report import gather
        from lmcache_fleet.rollout.journal import now

        return gather("evidence on this machine", now())
    fleet = load(inventory, deploy, data, group_data)
    from lmcache_fleet.fleet_report import gather
    from lmcache_fleet.grouping import plan_of
    from lmcache_fleet.reporters.status import status_json
    from lmcache_fleet.rollout.journal import fleet_folder, last_history, now

    names = fleet.limited(limit)
    with waiting(f"reading {len(names)} hosts"):
        recorder = fleet.run(names, measure=True)
    status = status_json(names, recorder, plan_of(names, recorder))
    return gather(inventory, now(), status, last_history(fleet_folder(inventory)))


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all: whoever reads it meanwhile sees the old one."""
    try:
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            # mkstemp's own mode keeps it from everybody else, such as the exporter that is to read it.
            Path(part).chmod(0o644)
            Path(part).replace(path)
        except OSError:
            Path(part).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError([Problem(str(path), 0, 0, "", f"can't be written: {error.strerror}")]) from error
