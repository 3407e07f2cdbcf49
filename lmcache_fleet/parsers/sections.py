"""Several answers in one output: how a fact's shell script frames them, and how they are told apart again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Other words than the survey's frames: a fact's script runs inside one of those.
_BEGIN = re.compile(r"@@section (\S.*)")
_STATUS = re.compile(r"@@status (\d+)")

#: Shell function `section NAME COMMAND…`: runs the command with a limit and without input, and frames what it says.
#: What was said stays in `$said`, for a script that goes on by it.
SHELL_FUNCTION = """\
section() {
  printf '@@section %s\\n' "$1"; shift
  said=$("$@" 2>&1 </dev/null); set -- "$?"
  printf '%s\\n@@status %s\\n' "$said" "$1"
}
"""


@dataclass(frozen=True, slots=True)
class Section:
    """One framed answer.

    Args:
        name: as the script named it.
        lines: what was printed.
        status: exit status; None when the output ends before the section does.
    """

    name: str
    lines: tuple[str, ...]
    status: int | None

    @property
    def text(self) -> str:
        """What was printed, as one text."""
        return "\n".join(self.lines)


def read_sections(output: Iterable[str]) -> list[Section]:
    """The sections of an output, in order; lines outside of sections are left out."""
    sections: list[Section] = []
    name: str | None = None
    lines: list[str] = []
    for line in output:
        begin = _BEGIN.fullmatch(line)
        status = _STATUS.fullmatch(line)
        if begin:
            if name is not None:
                sections.append(Section(name, tuple(lines), None))
            name, lines = begin[1], []
        elif status and name is not None:
            sections.append(Section(name, tuple(lines), int(status[1][:9])))
            name = None
        else:
            lines.append(line)
    if name is not None:
        sections.append(Section(name, tuple(lines), None))
    return sections


def judged(state: str, message: str, section: Section) -> tuple[str, str]:
    """State and message of an answer, with what the exit status adds to what the parser said."""
    if section.status is None:
        return "truncated", "the answer is cut off"
    if section.status == 124:
        return "timed-out", f"{section.name}: no answer within the limit"
    if section.status != 0 and state in {"ok", "empty", "unrecognized"}:
        return "tool-failed", message or f"{section.name}: exit status {section.status}"
    return state, message
