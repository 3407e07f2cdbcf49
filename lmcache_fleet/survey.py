"""Many reads in one remote command: compose the parts into one shell script, and split its output again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BEGIN = "@@lmcache-fleet-begin"
_END = "@@lmcache-fleet-end"
_END_LINE = re.compile(rf"^{re.escape(_END)} (\d+) (\d+)$")


@dataclass(frozen=True, slots=True)
class PartOutput:
    """What one part printed.

    Args:
        lines: its standard output.
        exit_code: of the part; None when the output ends before the part does (a dropped connection, a timeout).
    """

    lines: tuple[str, ...]
    exit_code: int | None


def compose(commands: Iterable[str]) -> str:
    """One POSIX shell script that runs every command in a subshell of its own and frames its output.

    A part that fails, or that prints no final newline, can't reach into the next one's frame.
    """
    script = []
    for index, command in enumerate(commands):
        script.append(f"printf '%s\\n' '{BEGIN} {index}'")
        script.append(f"( {command}\n) </dev/null")
        script.append(f"printf '\\n%s %s\\n' '{_END} {index}' \"$?\"")
    return "\n".join(script)


def split(lines: Iterable[str]) -> Mapping[int, PartOutput]:
    """The parts' outputs by index. A part whose end frame is missing is there with `exit_code=None`."""
    parts: dict[int, PartOutput] = {}
    current: int | None = None
    collected: list[str] = []
    for line in lines:
        if current is None:
            if line.startswith(f"{BEGIN} "):
                current, collected = int(line.rsplit(" ", 1)[1]), []
            continue
        end = _END_LINE.match(line)
        if end and int(end[1]) == current:
            if collected and collected[-1] == "":
                collected.pop()
            parts[current] = PartOutput(tuple(collected), int(end[2]))
            current = None
        else:
            collected.append(line)
    if current is not None:
        parts[current] = PartOutput(tuple(collected), None)
    return parts
