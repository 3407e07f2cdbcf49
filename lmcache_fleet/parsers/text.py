"""What every vendor's text has in common: clean lines, sizes, JSON inside of noise, and error texts with a name."""

from __future__ import annotations

import json
import re
from typing import Any

from lmcache_fleet.parsers import ascend_text
from lmcache_fleet.parsers.ascend_text import LONGEST, decimal, number

__all__ = [
    "ErrorTable",
    "absent",
    "clean_lines",
    "clean_number",
    "decimal",
    "error_table",
    "find_json",
    "indented",
    "known_error",
    "mib",
    "number",
    "unprefixed",
    "unread",
]

ErrorTable = tuple[tuple[str, re.Pattern[str]], ...]

_FEW = 200
# A line of 212 fields for a card has 8000 characters, and JSON of eight cards on one line has more.
_LONGEST_DATA = 4_000_000

# Tools print KB, MB and GB where they mean the powers of 1024 (amd-smi's 196592 MB are 206141652992 bytes).
_UNITS = {"b": 1 / 1024**2, "bytes": 1 / 1024**2, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(bytes|[KMGT]i?B?|B)?", re.IGNORECASE)
_ABSENT = re.compile(
    r"|-+|N/?A|none|unknown|\[?(?:N/A|not supported|not available|unknown error|insufficient permissions|not found"
    r"|gpu requires reset|requested functionality has been deprecated|deprecated)\]?|ERR!",
    re.IGNORECASE,
)

# In order, after the vendor's own: a loader's error must win over the "No such file" inside of it.
_COMMON: tuple[tuple[str, str], ...] = (
    ("library-incompatible", r"version [`'\"]?(?:GLIBC|GLIBCXX|CXXABI)_\S+ not found|undefined symbol"),
    (
        "library-missing",
        r"error while loading shared libraries|\.so[.\w]*: cannot open shared object file|ModuleNotFoundError"
        r"|\bImportError\b",
    ),
    (
        "permission-denied",
        r"permission denied|permissions? error|operation not permitted|insufficient permissions?"
        r"|suffi?cient permissions|must be (?:run as )?root|requires? (?:root|sudo)|run (?:as|with) (?:root|sudo)",
    ),
    ("timed-out", r"\btimed out\b|\btime-?out (?:expired|reached)\b"),
    (
        "driver-not-loaded",
        r"(?:driver|kernel module|module) (?:is |was |has )?not (?:been )?(?:loaded|installed|found|initiali[sz]ed"
        r"|running)"
        r"|(?:can ?not|can't|failed to|unable to) (?:find|load|open|init(?:ialize)?) (?:the )?(?:\w+ )?driver",
    ),
    (
        "no-devices",
        r"\bno (?:supported |\w+ )?(?:device|gpu|card|chip)s?\b(?: was| were| are| is)?"
        r" ?(?:found|available|detected|discovered|present|specified|attached)"
        r"|unable to (?:find|detect) any (?:gpu )?devices?|found 0 (?:device|gpu)s?",
    ),
    (
        "tool-crashed",
        r"segmentation fault|core dumped|bus error|\baborted\b|^killed$|cannot execute binary file|exec format error"
        r"|traceback \(most recent call last\)|^fatal python error",
    ),
    (
        "tool-missing",
        r"command not found|: not found$|未找到命令|executable file not found in \$?path|\bno \S+ in \("
        r"|is not recognized as an internal|^(?:\S+: )*(?:failed to run command )?\S+: no such file or directory$",
    ),
    (
        "usage-error",
        r"^usage:|invalid (?:parameter|option|argument|choice|combination)|unrecognized (?:option|argument)s?"
        r"|unknown (?:option|argument|command)|is not a valid field|the following arguments? (?:was|were) not expected",
    ),
)


def clean_lines(text: str, data: bool = False) -> list[str]:
    """The lines of an output without terminal codes, carriage returns, odd blanks and trailing spaces.

    Args:
        text: the output.
        data: whether lines may be very long: comma-separated values, JSON.
    """
    return ascend_text.clean_lines(text, _LONGEST_DATA if data else LONGEST)


def error_table(*vendors: tuple[str, str]) -> ErrorTable:
    """State and pattern of error texts: the vendor's own first, then those of every tool, shell and loader."""
    return tuple((state, re.compile(pattern, re.IGNORECASE)) for state, pattern in (*vendors, *_COMMON))


def known_error(lines: list[str], errors: ErrorTable) -> tuple[str, str] | None:
    """The named state of the first known error text and its line; None when no line is one."""
    # What a failing tool says is short; a long text is something else.
    lines = lines if len(lines) <= 2 * _FEW else lines[:_FEW] + lines[-_FEW:]
    for state, pattern in errors:
        for line in lines:
            if pattern.search(line[:LONGEST]):
                return state, line.strip()[:LONGEST]
    return None


def unread(lines: list[str], errors: ErrorTable) -> tuple[str, str]:
    """State and message of an output in which nothing was found: its error, `unrecognized`, or `empty`."""
    found = known_error(lines, errors)
    if found:
        return found
    first = next((line.strip()[:LONGEST] for line in lines if line.strip()), "")
    return ("unrecognized", first) if first else ("empty", "")


def absent(text: str | None) -> bool:
    """Whether a cell says that it has no value: `N/A`, `[Not Supported]`, `ERR!`, `-`, nothing."""
    return text is None or _ABSENT.fullmatch(text.strip()) is not None


def clean_number(text: object) -> int | None:
    """A non-negative number, as JSON's number or as text; None for anything else."""
    if isinstance(text, bool):
        return None
    if isinstance(text, int):
        return text if 0 <= text < 10**18 else None
    return number(text.strip()) if isinstance(text, str) else None


def mib(text: object, unit: str = "MiB") -> int | None:
    """A size in MiB, rounded down; None when it isn't one.

    Args:
        text: `81559 MiB`, `206141652992`, a JSON number, or an object of `value` and `unit`.
        unit: of a size that names none.
    """
    if isinstance(text, dict):
        return mib(f"{text.get('value')} {text.get('unit') or unit}", unit)
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        return None
    found = _SIZE.fullmatch(str(text).strip())
    if not found:
        return None
    word = (found[2] or unit).lower()
    return int(float(found[1]) * _UNITS.get(word, _UNITS[word[0]]))


def find_json(lines: list[str]) -> Any:
    """The first JSON object or array among the lines of an output; None when there is none.

    Warnings that a tool prints before it, or after, don't spoil it.
    """
    decoder = json.JSONDecoder()
    text = "\n".join(lines)
    tried = 0
    for found in re.finditer(r"^[ \t]*([{\[])", text, re.MULTILINE):
        # A log has many brackets; the answer is among the first, and each try may read to the end.
        tried += 1
        if tried > 50:
            break
        try:
            value, _ = decoder.raw_decode(text, found.start(1))
        except (ValueError, RecursionError):
            continue
        if (isinstance(value, dict) and value) or (
            isinstance(value, list) and (not value or isinstance(value[0], dict))
        ):
            return value
    return None


def unprefixed(lines: list[str], rule: re.Pattern[str]) -> list[str]:
    """Lines without what a log put before each, where the rules of a table tell how wide that is.

    Args:
        lines: cleaned lines.
        rule: matches a table's rule, from its first character on.
    """
    width = min((found.start() for line in lines if (found := rule.search(line))), default=0)
    return [line[width:] for line in lines] if width else lines


def indented(lines: list[str]) -> dict[str, Any]:
    """`KEY: value` lines as nested plain data by their indentation; a repeated key keeps its first value.

    A key without a value, colon or not, is the heading of what is indented under it.

    Keys are in lower case with underscores, so that the text of `amd-smi static` reads like its JSON.
    """
    root: dict[str, Any] = {}
    levels: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    for line in lines:
        key, colon, value = line.strip().partition(":")
        if not key.strip() or len(levels) > 40:
            continue
        depth = len(line) - len(line.lstrip())
        while len(levels) > 1 and levels[-1][0] >= depth:
            levels.pop()
        name = re.sub(r"[\s\-]+", "_", key.strip().lower())
        if colon and value.strip():
            levels[-1][1].setdefault(name, value.strip())
        else:
            inner = levels[-1][1].setdefault(name, {})
            if isinstance(inner, dict):
                levels.append((depth, inner))
    return root
