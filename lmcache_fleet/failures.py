"""Failures of hosts: what a remote command's output means, and the table at the end of a run."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmcache_fleet.evidence_log import strip_ansi
from lmcache_fleet.yaml_rules import read_rules

_TELLING = re.compile(
    r"error|fatal|failed|denied|no such|cannot|can't|unable|not found|refused|timed out", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a host failed.

    Args:
        host: its name.
        step: what was being done.
        cause: what went wrong.
        remedy: what to do; empty when nobody knows.
    """

    host: str
    step: str
    cause: str
    remedy: str


@lru_cache(maxsize=1)
def _known() -> list[tuple[re.Pattern[str], str, str]]:
    rules = read_rules("failures.yaml")
    return [(re.compile(rule["match"], re.IGNORECASE | re.MULTILINE), rule["cause"], rule["remedy"]) for rule in rules]


def explain(output: Iterable[str], exit_hint: str = "") -> tuple[str, str]:
    """Cause and remedy from a failed command's output.

    Args:
        output: its lines, standard error included.
        exit_hint: said when the output tells nothing.
    """
    lines = [strip_ansi(line).strip() for line in output]
    lines = [line for line in lines if line]
    text = "\n".join(lines)
    for pattern, cause, remedy in _known():
        found = pattern.search(text)
        if found:
            return f"{cause} [{_line_at(text, found.start())}]", remedy
    said = [line for line in lines if line.lower().startswith("error:")]
    if said:
        # What went wrong first brought the rest about.
        return said[0].split(":", 1)[1].strip(), ""
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return (telling[-1] if telling else exit_hint or "the command failed and said nothing"), ""


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line = text[start : end if end >= 0 else None]
    return line if len(line) <= 160 else line[:157] + "..."


def failure_table(failures: Sequence[Failure]) -> str:
    """Who failed, at which step, cause and remedy, as a table."""
    table = Table(title=f"{len(failures)} failed", title_justify="left")
    for column in ("host", "step", "cause", "remedy"):
        table.add_column(column, overflow="fold")
    # What stopped several hosts alike, such as an index that is down, is one row.
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for failure in sorted(failures, key=lambda item: item.host):
        hosts.setdefault((failure.step, failure.cause, failure.remedy), []).append(failure.host)
    for (step, cause, remedy), names in hosts.items():
        cells = (", ".join(names), step, cause, remedy or "see the output above")
        # Text, not markup: outputs are full of brackets.
        table.add_row(*(Text(cell) for cell in cells))
    console = Console(file=io.StringIO(), width=140)
    console.print(table)
    file = console.file
    return file.getvalue() if isinstance(file, io.StringIO) else ""
