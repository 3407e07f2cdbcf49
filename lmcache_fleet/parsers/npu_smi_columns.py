"""Header-driven reading of a table row: which value stands under which title."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lmcache_fleet.parsers.ascend_text import number

# Titles of more than one word; every other title is one word.
_TITLE = re.compile(
    r"NPU ID|NPU Util\(%\)|Process id in container|Process id|Process name|Process memory\(MB\)|\S+", re.IGNORECASE
)
_VALUE = re.compile(r"(?:-?\d+|NA|-)\s*/\s*(?:\d+|NA|-)(?!\S)|\S+")
_PAIR = re.compile(r"(\S+?)\s*/\s*(\S+)")


@dataclass(frozen=True, slots=True)
class Title:
    """One title of a header.

    Args:
        name: in lower case.
        start: where it stands in its cell.
    """

    name: str
    start: int

    @property
    def takes_pair(self) -> bool:
        """Whether its values are `used / total`."""
        return "usage" in self.name and "%" not in self.name


Header = tuple[tuple[Title, ...], ...]


def read_header(cells: tuple[str, ...]) -> Header:
    """The titles of each cell of a header line."""
    return tuple(
        tuple(Title(found[0].lower(), found.start()) for found in _TITLE.finditer(cell.expandtabs())) for cell in cells
    )


def names(header: Header) -> set[str]:
    """All titles of a header line, in lower case."""
    return {title.name for cell in header for title in cell}


def cell_of(header: Header, *wanted: str) -> int | None:
    """Index of the first cell that has one of the titles."""
    for index, cell in enumerate(header):
        if any(title.name in wanted for title in cell):
            return index
    return None


def read_values(header: Header, cells: tuple[str, ...]) -> dict[str, str]:
    """Values by title. A title without a value is absent.

    Args:
        header: titles of each cell.
        cells: a row with as many cells; missing ones are empty.
    """
    values: dict[str, str] = {}
    for titles, cell in zip(header, cells, strict=False):
        found = [(match[0].strip(), match.start()) for match in _VALUE.finditer(cell)]
        pairs = [item for item in found if _PAIR.fullmatch(item[0])]
        if not any(title.takes_pair for title in titles):
            pairs = []
        plain = [item for item in found if item not in pairs]
        values |= _match([title for title in titles if title.takes_pair], pairs)
        values |= _match([title for title in titles if not title.takes_pair], plain)
    return values


def read_pair(text: str | None) -> tuple[int | None, int | None]:
    """Both sides of `used / total`."""
    found = _PAIR.fullmatch(text.strip()) if text else None
    return (number(found[1]), number(found[2])) if found else (None, None)


def _match(titles: list[Title], found: list[tuple[str, int]]) -> dict[str, str]:
    if not titles:
        return {}
    if len(found) >= len(titles):
        # In the order of the titles; words left over belong to the last title (a name with a space in it).
        values = {title.name: text for title, (text, _) in zip(titles, found, strict=False)}
        if len(found) > len(titles):
            values[titles[-1].name] = " ".join(text for text, _ in found[len(titles) - 1 :])
        return values
    # Fewer values than titles: only where they stand tells which are missing.
    values = {}
    for text, start in found:
        free = [title for title in titles if title.name not in values]
        values[min(free, key=lambda title: abs(title.start - start)).name] = text
    return values
