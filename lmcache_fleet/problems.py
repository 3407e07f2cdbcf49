"""What is wrong, said so that the reader can mend it: in an input file with its place and the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input.

    Args:
        file: path as the user gave it.
        line: 1-based line; 0 when the problem has no place in the file.
        column: 1-based column; 0 likewise.
        where: dotted path of the value inside the document, such as `steps[2].packages.pins`.
        message: what is wrong and what was expected.
    """

    file: str
    line: int
    column: int
    where: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        where = f" {self.where}:" if self.where else ""
        return f"{place}:{where} {self.message}"


class Trouble(Exception):
    """Something that can't be done, said so that it can be helped.

    Args:
        cause: what is wrong.
        remedy: what to do about it; empty when nobody knows.
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy


class InputError(Exception):
    """One or more problems in an input file; raised before any host is touched.

    Args:
        problems: what is wrong, in document order.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: (problem.file, problem.line, problem.column))
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(name: str, known: Iterable[str]) -> str:
    """A suffix such as ` (did you mean 'pins'?)`, or the list of known names when none is near."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f" (did you mean '{close[0]}'?)"
    return f" (known: {', '.join(known)})" if known else ""
