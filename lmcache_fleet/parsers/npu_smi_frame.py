"""The framed tables of `npu-smi info` as rows of cells, whatever a log or a narrow terminal did to the lines."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_FRAME_ONLY = re.compile(r"[-=+|]+")
# The line that is nothing but frame; what stands before it is a log's prefix. A time zone's + has no dashes after it.
_RULE = re.compile(r"\+(?=[-=]{4})[-=+|]*$")
_ELISION = re.compile(r"(?:\.{3,}|…|⋮|\[\.\.\.\]|<(?:snip|truncated)[^>]*>)+")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, or of the text around it.

    Args:
        kind: `rule`, `double-rule` (the one of `=`), `cells`, `elision` (`...` in place of rows) or `text`.
        text: the line, without what a log put before it.
        cells: the cells, unstripped, so that their columns still line up with the header's.
        closed: whether the line ends with the frame; one that doesn't may be cut in the middle of a number.
    """

    kind: str
    text: str
    cells: tuple[str, ...] = ()
    closed: bool = False


def read_rows(lines: list[str]) -> list[Row]:
    """Rows of all tables in an output, and the lines of text between them.

    Args:
        lines: cleaned lines.
    """
    joined = _unwrap(_dedent(lines))
    # A prefix may have bars of its own (`docker compose logs` prints `name | line`). How many is told by the rules,
    # and holds where the prefix' width doesn't.
    bars = Counter(line.count("|", 0, rule.start()) for line in joined if (rule := _RULE.search(line)))
    skip = bars.most_common(1)[0][0] if bars else 0
    return [_row(line, skip) for line in joined if line.strip()]


def _dedent(lines: list[str]) -> list[str]:
    """Lines without the indentation that the table as a whole has."""
    frame = next((line for line in lines if line.lstrip().startswith("+") and _FRAME_ONLY.fullmatch(line.lstrip())), "")
    depth = len(frame) - len(frame.lstrip())
    return [line[depth:] if not line[:depth].strip() else line for line in lines]


def _row(line: str, skip: int) -> Row:
    rule = _RULE.search(line)
    if rule:
        return Row("double-rule" if "=" in rule[0] else "rule", rule[0])
    start = -1
    for _ in range(skip + 1):
        start = line.find("|", start + 1)
        if start < 0:
            text = line.rsplit("|", 1)[-1].strip()
            return Row("elision" if _ELISION.fullmatch(text) else "text", line)
    inner = line[start + 1 :]
    cells = tuple((inner[:-1] if inner.endswith("|") else inner).split("|"))
    if _ELISION.fullmatch("".join(cells).replace(" ", "") or "-"):
        return Row("elision", line)
    return Row("cells", line[start:], cells, inner.endswith("|"))


def _unwrap(lines: list[str]) -> list[str]:
    """Lines that a terminal folded, put together again."""
    width, pieces = _fold(lines)
    out: list[str] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        taken = 1
        if line[:1] == "+" and _FRAME_ONLY.fullmatch(line):
            while width and index < len(lines) and _same_rule(line, lines[index], width * taken):
                line += lines[index]
                index, taken = index + 1, taken + 1
            # The rows below have as many pieces as this rule: two tables need not be equally wide.
            pieces = taken
        elif line[:1] == "|":
            while index < len(lines) and _same_row(line, lines[index], width * taken if taken < pieces else 0):
                # A folded piece may have lost the spaces at its end, which the columns need.
                line = line.ljust(width * taken) + (lines[index] if width else " " + lines[index])
                index, taken = index + 1, taken + 1
        out.append(line)
    return out


def _same_rule(line: str, following: str, full: int) -> bool:
    """Whether the following line is the rest of this rule, of which so many characters fit."""
    if len(line) != full or not _FRAME_ONLY.fullmatch(following) or following[0] == "|":
        return False
    # A corner after a corner, or a whole rule, is the next rule.
    return following[0] != "+" or not (
        line.endswith("+") or (_RULE.fullmatch(following) and len(following) >= len(line))
    )


def _same_row(line: str, following: str, full: int) -> bool:
    """Whether the following line is the rest of this row.

    Args:
        line: what there is of the row.
        following: the next line.
        full: characters of the pieces so far when the table's rule says that there is more; 0 otherwise.
    """
    if not following or _RULE.match(following):
        return False
    if full:
        # The fold may be where a cell ends, or in blanks that are lost; two edges don't stand side by side.
        return not (len(line) == full and line.endswith("|") and following[0] in "|+")
    return not line.endswith("|") and (following == "|" or (following[0] not in "|+" and following.endswith("|")))


def _fold(lines: list[str]) -> tuple[int, int]:
    """Terminal width by which the first folded rule was folded, and into how many pieces; (0, 1) when none was."""
    for index, line in enumerate(lines):
        if len(line) < 20 or line[0] != "+" or not _FRAME_ONLY.fullmatch(line):
            continue
        width, taken = len(line), 1
        whole = line
        for piece in lines[index + 1 :]:
            if len(piece) > width or not _same_rule(whole, piece, width * taken):
                break
            whole, taken = whole + piece, taken + 1
        if taken > 1:
            return width, taken
    return 0, 1
