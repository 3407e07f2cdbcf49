"""YAML with the place of every value kept, so that errors can name line and column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from lmcache_fleet.problems import InputError, Problem
from lmcache_fleet.yaml_rules import FAST_LOADER

Location = tuple[str | int, ...]

_DIGITS = re.compile(r"[0-9][0-9._:]*")


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document as plain data, and where each value stands.

    Args:
        file: path as the user gave it.
        data: plain data.
        marks: (line, column), both 1-based, of each value's path; for mapping entries the place of the key.
    """

    file: str
    data: Any
    marks: dict[Location, tuple[int, int]]

    def problem(self, location: Location, message: str) -> Problem:
        """A problem at a path, or at its nearest ancestor that has a place."""
        for length in range(len(location), -1, -1):
            mark = self.marks.get(location[:length])
            if mark:
                return Problem(self.file, mark[0], mark[1], dotted(location), message)
        return Problem(self.file, 0, 0, dotted(location), message)


def dotted(location: Location) -> str:
    """`("steps", 2, "venv", "python")` as `steps[2].venv.python`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read_document(path: Path) -> Document:
    """Read one YAML file.

    Raises:
        InputError: the file can't be read, isn't YAML, or has a key twice in one mapping.
    """
    file = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError([Problem(file, 0, 0, "", f"can't read the file: {reason}")]) from error
    return parse_document(text, file)


def parse_document(text: str, file: str) -> Document:
    """Like `read_document`, from text at hand."""
    try:
        return _parsed(FAST_LOADER, text, file)
    except (yaml.YAMLError, RecursionError):
        # Once more, by PyYAML's own parser: its errors say more than libyaml's.
        return _parse_carefully(text, file)


def _parsed(loader: type[yaml.SafeLoader], text: str, file: str) -> Document:
    reader = _Reader(loader(text), file)
    data = reader.read()
    if reader.problems:
        raise InputError(reader.problems)
    return Document(file, data, reader.marks)


def _parse_carefully(text: str, file: str) -> Document:
    try:
        return _parsed(yaml.SafeLoader, text, file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise InputError([Problem(file, line, column, "", f"not valid YAML: {error.problem}")]) from error
    except ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        message = f"not valid YAML: the character {error.character!r} is not allowed"
        raise InputError([Problem(file, line, column, "", message)]) from error
    except RecursionError as error:
        raise InputError([Problem(file, 0, 0, "", "not valid: nested too deeply")]) from error


class _Reader:
    """One document on its way from YAML's nodes to plain data, with the places and problems met.

    Args:
        loader: holds the text.
        file: path as the user gave it.
    """

    def __init__(self, loader: yaml.SafeLoader, file: str) -> None:
        self.loader = loader
        self.file = file
        self.marks: dict[Location, tuple[int, int]] = {}
        self.problems: list[Problem] = []
        self._open: set[int] = set()

    def read(self) -> Any:
        """The document's data."""
        try:
            node = self.loader.get_single_node()
            if node is None:
                raise InputError([Problem(self.file, 1, 1, "", "the file is empty; expected a mapping")])
            return self._value(node, ())
        finally:
            self.loader.dispose()

    def _problem(self, node: yaml.Node, location: Location, message: str) -> None:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        self.problems.append(Problem(self.file, line, column, dotted(location), message))

    def _value(self, node: yaml.Node, location: Location) -> Any:
        self.marks.setdefault(location, (node.start_mark.line + 1, node.start_mark.column + 1))
        if id(node) in self._open:
            self._problem(node, location, "a value holds itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, location)
            if isinstance(node, yaml.SequenceNode):
                return [self._value(item, (*location, index)) for index, item in enumerate(node.value)]
            return self._scalar(node, location)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[Any, Any]:
        self.loader.flatten_mapping(node)
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, location, "a key must be a plain text")
                continue
            key = self._scalar(key_node, location)
            place: Location = (*location, key)
            if key in mapping:
                self._problem(key_node, place, f"the key '{key}' stands twice")
            self.marks[place] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            mapping[key] = self._value(value_node, place)
        return mapping

    def _scalar(self, node: yaml.Node, location: Location) -> Any:
        try:
            value = self.loader.construct_object(node, deep=True)
        except (ValueError, TypeError, OverflowError) as error:
            kind = node.tag.rpartition(":")[2]
            self._problem(node, location, f"'{node.value}' is no {kind}: {error}; put it in quotes if it is a text")
            return None
        # A version such as 0.10 is a number to YAML, and would go on as 0.1.
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and _DIGITS.fullmatch(node.value) and str(value) != node.value:
            message = (
                f"YAML reads {node.value} as the number {value}: put it in quotes if it is a text, such as a version"
            )
            self._problem(node, location, f"{message}; else write {value}")
        return value
