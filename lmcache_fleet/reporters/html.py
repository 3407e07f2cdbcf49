"""A fleet's report as one HTML file that asks for nothing else."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from lmcache_fleet.fleet_report import FleetReport, Timeline, Trouble
from lmcache_fleet.reporters.plan import host_list
from lmcache_fleet.repository import ROOT

# Phase of a proof → what people call it.
PHASES = {
    "cold": "cold",
    "hit": "hit",
    "after_restart": "hit in a new engine",
    "own_cache": "engine's own cache",
}


def html(report: FleetReport) -> str:
    """The report as a page; every text in it is escaped.

    Args:
        report: what is told.
    """
    times = [value for host in report.hosts for proof in host.proofs for value in proof.ttft_ms.values()]
    return _template().render(
        report=report,
        phases=PHASES,
        longest=max(times, default=0) or 1,
        rows=timeline_rows(report.timeline) if report.timeline else [],
        troubles=_troubles(report),
        drifted=[host for host in report.hosts if host.drift],
        counts=_counts(report),
    )


def timeline_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """Host by host what a timeline shows: bars in percent of the whole time.

    Args:
        timeline: a rollout's course.
    """
    whole = timeline.seconds or 1
    rows = []
    for number, wave in enumerate(timeline.waves, start=1):
        for host in wave:
            passages = [item for item in timeline.passages if item.host == host]
            bars = [
                {"stage": item.stage, "x": 100 * item.begin / whole, "width": 100 * (item.end - item.begin) / whole,
                 "seconds": item.end - item.begin}
                for item in passages if item.end > item.begin
            ]  # fmt: skip
            rows.append(
                {"host": host, "wave": number, "bars": bars, "end": passages[-1].stage if passages else "waiting"}
            )
    return rows


def _troubles(report: FleetReport) -> list[tuple[str, Trouble]]:
    """What is wrong, each with the hosts that share it, warnings last."""
    hosts: dict[Trouble, list[str]] = {}
    for host in report.hosts:
        for trouble in dict.fromkeys(host.troubles):
            hosts.setdefault(trouble, []).append(host.name)
    return sorted(
        ((host_list(names), trouble) for trouble, names in hosts.items()), key=lambda item: item[1].severity != "error"
    )


def _counts(report: FleetReport) -> list[tuple[str, int, str]]:
    """The figures at the top: name, number, and whether that is good."""
    hosts = report.hosts
    failed = sum(host.failed for host in hosts)
    proved = sum(host.proved is True for host in hosts)
    figures = [("hosts", len(hosts), ""), ("proved", proved, "good" if proved == len(hosts) else "warn")]
    if any(host.state != "not read" for host in hosts):
        serving = sum(host.serving is True for host in hosts)
        figures.append(("serving", serving, "good" if serving == len(hosts) else "warn"))
        drifted = sum(bool(host.drift) for host in hosts)
        figures.append(("with drift", drifted, "warn" if drifted else ""))
    figures.append(("in trouble", failed, "bad" if failed else ""))
    return figures


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(ROOT / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("report.html")
