"""A plan, told to people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from lmcache_fleet.changes import Change
from lmcache_fleet.failures import Failure
from lmcache_fleet.grouping import Group, Plan

_COLOURS = {"+": "green", "-": "red", "~": "yellow", "@": "cyan"}


def console(stderr: bool = False) -> Console:
    """Where reports go; a pipe has no width to fold lines to."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=4096, soft_wrap=True)


def host_list(names: Sequence[str], limit: int = 8) -> str:
    """Names in a line; of many, the first and the number of the others."""
    shown = " ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def show_plan(out: Console, plan: Plan) -> None:
    """Print a plan.

    Args:
        out: where to.
        plan: what a run would do.
    """
    for group in plan.groups:
        _show_group(out, group)
    for name, note in plan.notes.items():
        out.print(Text(f"{name}: {note}", style="yellow"))
    show_failures(out, plan.failures)
    parts = []
    if plan.groups:
        changing = sum(len(group.hosts) for group in plan.groups)
        parts.append(f"{_number(changing, 'host')} with changes pending")
    if plan.settled:
        parts.append(f"{_number(len(plan.settled), 'host')} as wanted")
    if plan.failures:
        parts.append(f"{len(plan.failures)} failed")
    out.print(Text(f"==> {', '.join(parts) or 'no hosts'}", style="bold"))


def show_failures(out: Console, failures: Sequence[Failure]) -> None:
    """Print who failed, at which step, why, and what to do.

    Args:
        out: where to.
        failures: one a host.
    """
    for failure in failures:
        out.print(Text(f"{failure.host}: failed at {failure.step}: {failure.cause}", style="red"))
        if failure.remedy:
            out.print(Text(f"  remedy: {failure.remedy}", style="yellow"))


def _show_group(out: Console, group: Group) -> None:
    each = " each" if len(group.hosts) > 1 else ""
    out.print(Text(f"{host_list(group.hosts)}  ({_number(group.count, 'change')}{each})", style="bold"))
    for step, changes in group.steps.items():
        shown = [change for change in changes if not change.kept]
        kept = [change.what for change in changes if change.kept]
        if kept:
            out.print(Text(f"  {step}  put into the new release unchanged: {', '.join(kept)}", style="dim"))
        for change in shown:
            _show_change(out, step, change)
    out.print()


def _show_change(out: Console, step: str, change: Change) -> None:
    text = str(change)
    out.print(Text(f"  {step}  ") + Text(text, style=_COLOURS.get(text[:1], "")))
    for line in change.diff:
        out.print(Text(f"      {line}", style=_COLOURS.get(line[:1], "")))


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
