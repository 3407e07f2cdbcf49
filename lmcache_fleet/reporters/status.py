"""Where a fleet stands, told to people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmcache_fleet.grouping import Plan
from lmcache_fleet.recording import HostReport, Recorder
from lmcache_fleet.reporters.plan import show_failures
from lmcache_fleet.sizes import readable


def status_json(names: Sequence[str], recorder: Recorder, plan: Plan) -> dict[str, Any]:
    """Where a fleet stands, as plain data.

    Args:
        names: the hosts.
        recorder: of a run that only found out.
        plan: made of it.
    """
    answer = plan.as_json()
    for name in names:
        report = recorder.reports.get(name)
        answer["hosts"][name]["report"] = {**report.as_json(), "serving": report.serving} if report else None
    return answer


def show_status(
    out: Console, names: Sequence[str], recorder: Recorder, plan: Plan, now: datetime | None = None
) -> None:
    """Print where a fleet stands.

    Args:
        out: where to.
        names: the hosts.
        recorder: of a run that only found out.
        plan: made of it.
        now: the time against which evidence has its age.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("host", "release", "service", "evidence", "on disk", "drift"):
        table.add_column(column, overflow="fold", no_wrap=column in {"host", "service"})
    for name in names:
        report = recorder.reports.get(name)
        if report is None:
            table.add_row(name, *(Text("?", style="red") for _ in range(4)), Text("failed, see below", style="red"))
            continue
        drift = ", ".join(recorder.pending(name))
        table.add_row(
            name,
            _release(report),
            _service(report),
            _evidence(report, now or datetime.now(timezone.utc)),
            _disk(report),
            Text(drift, style="yellow") if drift else Text("none", style="green"),
        )
    out.print(table)
    for name, note in plan.notes.items():
        out.print(Text(f"{name}: {note}", style="yellow"))
    show_failures(out, plan.failures)


def age(finished: str | None, now: datetime) -> str:
    """How old something is, in its largest unit; `?` when its time can't be read.

    Args:
        finished: when it was made, ISO 8601.
        now: the time.
    """
    try:
        then = datetime.fromisoformat((finished or "").replace("Z", "+00:00"))
    except ValueError:
        return "?"
    if then.tzinfo is None:
        then = then.replace(tzinfo=timezone.utc)
    seconds = max(0, int((now - then).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _release(report: HostReport) -> Text:
    if report.current is None:
        return Text("none", style="red")
    if report.interrupted:
        return Text(f"{report.current} (switch cut off)", style="red")
    if report.current != report.target:
        return Text(f"{report.current} (wanted {report.target})", style="yellow")
    return Text(report.current)


def _service(report: HostReport) -> Text:
    if not report.service:
        return Text("-")
    if report.serving:
        return Text("serving", style="green")
    down = {state for state in report.service.values() if state != "active"}
    return Text(", ".join(sorted(down)) or f"runs {', '.join(report.running) or 'nothing of ours'}", style="red")


def _evidence(report: HostReport, now: datetime) -> Text:
    found = Text()
    for stage in ("offline", "online"):
        item = report.evidence.get(stage)
        if item:
            style = "green" if item["ok"] else "red"
            found.append(
                f"{' ' if found else ''}{stage} {'' if item['ok'] else 'FAILED '}{age(item['finished'], now)}", style
            )
    return found or Text("none", style="red" if report.service else "")


def _disk(report: HostReport) -> Text:
    sizes = [item.size for item in report.releases if item.size is not None]
    text = f"{len(report.releases)} releases"
    if sizes:
        others = [item.freed or 0 for item in report.releases if item.name not in {report.current, report.target}]
        text += f", serving {readable(_size(report))}"
        text += f", others hold {readable(sum(others))}" if others else ""
    if report.images:
        text += f"; {report.images} images"
        text += f" of {readable(report.image_bytes)}" if report.image_bytes is not None else ""
    return Text(text)


def _size(report: HostReport) -> int:
    return next((item.size or 0 for item in report.releases if item.name == report.current), 0)
