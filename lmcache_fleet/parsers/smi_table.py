"""Framed tables of the `…-smi` tools as header and blocks of rows, whatever a log put before the lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

# A line of nothing but frame, and what stands before it is a log's. Newer tools begin some rules with a bar.
_RULE = re.compile(r"[+|](?=[-=])[-=+|]{3,}$")
_BOX = str.maketrans("│║─━═╪┌┐└┘├┤┬┴┼╭╮╰╯╞╡╒╕╘╛╤╧", "||--=" + "+" * 22)
_ELISION = re.compile(r"[\s|]*(?:\.{3,}|…|⋮)[\s.…⋮|]*")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Args:
        inner: what stands between its outer bars.
        cells: the same, split at the inner bars.
        closed: whether the line ends with a bar; one that doesn't may be cut in the middle of a value.
    """

    inner: str
    cells: tuple[str, ...]
    closed: bool

    def cell(self, index: int) -> str:
        """A cell without its margins; empty when the row has no such cell."""
        return self.cells[index].strip() if 0 <= index < len(self.cells) else ""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows between two rules.

    Args:
        rows: in order.
        rule: the rule below: `rule`, `double` (of `=`), or empty where the output ends first.
        outer: whether the rule below has corners at both ends, as the table's last one has.
    """

    rows: tuple[Row, ...]
    rule: str
    outer: bool


@dataclass(frozen=True, slots=True)
class Table:
    """A header and what stands under it, up to the next header.

    Args:
        header: its lines of titles.
        blocks: what follows.
    """

    header: tuple[Row, ...]
    blocks: tuple[Block, ...]

    def find(self, title: str) -> tuple[int, int] | None:
        """Line and cell of the header in which a title stands (a pattern, case ignored); None when it has none."""
        pattern = re.compile(title, re.IGNORECASE)
        for line, row in enumerate(self.header):
            for index, cell in enumerate(row.cells):
                if pattern.search(" ".join(cell.split())):
                    return line, index
        return None

    def groups(self, first: int = 0) -> Iterator[tuple[Row, ...]]:
        """Rows that belong together: as many as the header has lines, from the one that `first` names on.

        Args:
            first: the header's line that a group's first row stands under.
        """
        size = len(self.header) - first
        for block in self.blocks:
            for start in range(0, len(block.rows), size):
                yield block.rows[start : start + size]

    @property
    def rows(self) -> Iterator[Row]:
        """All rows under the header."""
        return (row for block in self.blocks for row in block.rows)


@dataclass(frozen=True, slots=True)
class Frame:
    """All tables of an output.

    Args:
        tables: those that have a header.
        banner: rows before the first header.
        blocks: all blocks of rows, headers included.
        elided: whether somebody put `...` in place of rows.
    """

    tables: tuple[Table, ...]
    banner: tuple[Row, ...]
    blocks: tuple[Block, ...]
    elided: bool


def read_frame(lines: list[str]) -> Frame:
    """The tables of an output.

    Args:
        lines: cleaned lines.
    """
    blocks, elided = _blocks([line.translate(_BOX) for line in lines])
    tables: list[Table] = []
    banner: list[Row] = []
    header: tuple[Row, ...] | None = None
    under: list[Block] = []
    for block in blocks:
        if block.rule == "double" and block.rows:
            if header is not None:
                tables.append(Table(header, tuple(under)))
            header, under = block.rows, []
        elif header is None:
            banner += block.rows
        else:
            under.append(block)
    if header is not None:
        tables.append(Table(header, tuple(under)))
    return Frame(tuple(tables), tuple(banner), tuple(blocks), elided)


def _blocks(lines: list[str]) -> tuple[list[Block], bool]:
    rules = [_RULE.search(line) for line in lines]
    # A prefix may have bars of its own (`docker compose logs` prints `name | line`); the rules tell how many.
    bars = Counter(line.count("|", 0, rule.start()) for line, rule in zip(lines, rules, strict=True) if rule)
    skip = bars.most_common(1)[0][0] if bars else 0
    blocks: list[Block] = []
    rows: list[Row] = []
    elided = False
    for line, rule in zip(lines, rules, strict=True):
        if rule:
            blocks.append(Block(tuple(rows), "double" if "=" in rule[0] else "rule", rule[0][0] == "+" == rule[0][-1]))
            rows = []
        elif _ELISION.fullmatch(line):
            elided = True
        else:
            row = _row(line, skip)
            if row:
                rows.append(row)
    if rows:
        blocks.append(Block(tuple(rows), "", False))
    return blocks, elided


def _row(line: str, skip: int) -> Row | None:
    start = -1
    for _ in range(skip + 1):
        start = line.find("|", start + 1)
        if start < 0:
            return None
    inner = line[start + 1 :]
    closed = inner.endswith("|")
    inner = inner[:-1] if closed else inner
    return Row(inner, tuple(inner.split("|")), closed)
