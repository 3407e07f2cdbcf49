"""YAML with the place of every value kept, so that errors can name line and column."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lmcache_fleet.problems import InputError, Problem

Location = tuple[str | int, ...]


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
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
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
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise InputError([Problem(file, 1, 1, "", "the file is empty; expected a mapping")])
        marks: dict[Location, tuple[int, int]] = {}
        problems: list[Problem] = []
        data = _construct(loader, node, (), marks, problems, file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise InputError([Problem(file, line, column, "", f"not valid YAML: {error.problem}")]) from error
    finally:
        loader.dispose()
    if problems:
        raise InputError(problems)
    return Document(file, data, marks)


def _construct(
    loader: yaml.SafeLoader,
    node: yaml.Node,
    location: Location,
    marks: dict[Location, tuple[int, int]],
    problems: list[Problem],
    file: str,
) -> Any:
    marks.setdefault(location, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
            if key in mapping:
                problems.append(Problem(file, line, column, dotted((*location, key)), f"the key '{key}' stands twice"))
            place: Location = (*location, key)
            marks[place] = (line, column)
            mapping[key] = _construct(loader, value_node, (*location, key), marks, problems, file)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [
            _construct(loader, item, (*location, index), marks, problems, file) for index, item in enumerate(node.value)
        ]
    return loader.construct_object(node, deep=True)
