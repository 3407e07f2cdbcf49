"""Comma-separated answers with a header, as `nvidia-smi`, `xpu-smi` and `rocm-smi` print them."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from lmcache_fleet.parsers.text import absent

_TITLE = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")
# A longer cell is no name of a field.
_LONGEST = 200

# Commas that a name may have; a row with more values than that is of another answer.
_COMMAS = 8


@dataclass(frozen=True, slots=True)
class Record:
    """One row.

    Args:
        values: field → value as printed, unit included.
        units: field → unit by the header; absent where the header names none.
        whole: whether the row has a value for every field.
    """

    values: dict[str, str]
    units: dict[str, str]
    whole: bool

    def get(self, *fields: str) -> str | None:
        """The first field that has a value; None when none has."""
        return next((value for field in fields if not absent(value := self.values.get(field))), None)

    def sized(self, *fields: str) -> str | None:
        """The same with its unit, where only the header names it (`--format=csv,nounits`)."""
        for field in fields:
            value = self.values.get(field)
            if value is not None and not absent(value):
                return f"{value} {self.units[field]}" if value.isdigit() and field in self.units else value
        return None


Answer = tuple[tuple[str, ...], list[Record]]


def read_csv(lines: list[str], known: frozenset[str], free: str = "", spaced: bool = False) -> Answer | None:
    """Fields and rows of an answer; None when no line is a header.

    Args:
        lines: cleaned lines; those before the header are left out.
        known: names of fields, of which a header has one at least. Compared in lower case.
        free: the field whose values may have commas of their own, unquoted.
        spaced: whether names of fields have blanks.
    """
    place = next((place for place, line in enumerate(lines) if _header(line, known, spaced)[0]), None)
    if place is None:
        return None
    fields, units, lead = _header(lines[place], known, spaced)
    spot = fields.index(free) if free in fields else None
    rows = []
    for line in lines[place + 1 :]:
        values = _cells(line[lead:] if len(line) > lead else line)
        # A line of a log, or of the tool's warnings, has no commas; a row of one field has none either.
        if not line.strip() or (len(fields) > 1 and len(values) == 1):
            continue
        extra = len(values) - len(fields)
        if 0 < extra <= _COMMAS and spot is not None:
            values[spot : spot + extra + 1] = [", ".join(values[spot : spot + extra + 1])]
        whole = len(values) == len(fields) and values[-1] != ""
        rows.append(Record(dict(zip(fields, values, strict=False)), units, whole))
    return fields, rows


def _header(line: str, known: frozenset[str], spaced: bool) -> tuple[tuple[str, ...], dict[str, str], int]:
    """Fields, units and the width of a log's prefix; no fields when the line is no header."""
    lower = line.lower()
    titles = _cells(line) if any(name in lower for name in known) else []
    if any(len(title) > _LONGEST for title in titles):
        return (), {}, 0
    fields, units = [], {}
    lead = 0
    for index, title in enumerate(titles):
        found = _TITLE.fullmatch(title)
        name = (found[1] if found else title).strip().lower()
        if index == 0 and name not in known and " " in name and name.rsplit(" ", 1)[1] in known:
            name = name.rsplit(" ", 1)[1]
            lead = lower.find(name)
        fields.append(name)
        if found:
            units[name] = found[2]
    prose = not spaced and any(" " in field and field not in known for field in fields)
    if prose or not known.intersection(fields):
        return (), {}, 0
    return tuple(fields), units, lead


def _cells(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return line.split(",")
