"""The `server` lines of an nginx upstream: read them, and mark one as down without touching anything else."""

from __future__ import annotations

import re
from dataclasses import dataclass

# By this a `down` of ours is told from one that an operator wrote.
MARK = "# drained by lmcache-fleet"
_LINE = re.compile(r"^(?P<lead>[ \t]*server[ \t]+(?P<address>[^\s;#{}]+))(?P<rest>[^;#{}\n]*);(?P<tail>[^\n]*)$", re.M)


@dataclass(frozen=True, slots=True)
class Upstream:
    """One `server` line.

    Args:
        address: as it stands in the line.
        down: it gets no requests.
        ours: it is down because we drained it.
    """

    address: str
    down: bool
    ours: bool


def servers(text: str) -> list[Upstream]:
    """The `server` lines of a file, in order; comments are none."""
    return [
        Upstream(match["address"], "down" in match["rest"].split(), MARK in match["tail"])
        for match in _LINE.finditer(text)
    ]


def drained(text: str, address: str) -> str:
    """The text with a server marked as down; one that is down already stays as it is.

    Args:
        text: the file's.
        address: the server's, as in its line.
    """

    def mark(match: re.Match[str]) -> str:
        if match["address"] != address or "down" in match["rest"].split():
            return match[0]
        return f"{match['lead']}{match['rest'].rstrip()} down;{match['tail'].rstrip()} {MARK}"

    return _LINE.sub(mark, text)


def restored(text: str, address: str) -> str:
    """The text with our mark taken from a server; a `down` of somebody else stays.

    Args:
        text: the file's.
        address: the server's, as in its line.
    """

    def unmark(match: re.Match[str]) -> str:
        if match["address"] != address or MARK not in match["tail"]:
            return match[0]
        rest = re.sub(r"[ \t]+down(?=[ \t]|$)", "", match["rest"])
        return f"{match['lead']}{rest};{match['tail'].replace(' ' + MARK, '')}"

    return _LINE.sub(unmark, text)
