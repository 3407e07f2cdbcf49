"""Sandboxed Jinja2 over plain data: strict about undefined names, and keeping types where a value is one expression."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, Undefined, UndefinedError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import SandboxedEnvironment

from lmcache_fleet.playbook.source import Document, Location
from lmcache_fleet.problems import InputError, Problem, nearest

_WHOLE_EXPRESSION = re.compile(r"^\s*\{\{((?:(?!\}\}).)*)\}\}\s*$", re.DOTALL)
_UNDEFINED_NAME = re.compile(r"'([^']+)' is undefined")
_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)


def render(
    value: Any,
    variables: Mapping[str, Any],
    document: Document,
    location: Location = (),
    origins: dict[Location, Location] | None = None,
) -> Any:
    """Render every string inside plain data, and pick the branch of every `by_arch` mapping.

    A string that is one `{{ expression }}` keeps the expression's type; any other becomes a string.

    Args:
        value: plain data from the document.
        variables: what templates may name; `arch` picks `by_arch` branches.
        document: where the value stands, for errors.
        location: path of the value in the document.
        origins: is given the path in the document of every value whose path in the result is another one.

    Raises:
        InputError: a name is undefined, an expression is invalid, or an architecture has no branch.
    """
    rendering = _Rendering(variables, document, [], {} if origins is None else origins)
    rendered = rendering.value(value, location, location)
    if rendering.problems:
        raise InputError(rendering.problems)
    return rendered


def origin(location: Location, origins: Mapping[Location, Location]) -> Location:
    """The path in the document of a path in what was rendered.

    Args:
        location: path in the result.
        origins: as `render` filled them.
    """
    for length in range(len(location), 0, -1):
        if location[:length] in origins:
            return origins[location[:length]] + location[length:]
    return location


@dataclass(frozen=True, slots=True)
class _Rendering:
    variables: Mapping[str, Any]
    document: Document
    problems: list[Problem]
    origins: dict[Location, Location]

    def value(self, value: Any, location: Location, result: Location) -> Any:
        """Render a value that stands at `location` in the document and will stand at `result`."""
        if location != result:
            self.origins[result] = location
        if isinstance(value, str):
            return _render_string(value, self.variables, self.document, location, self.problems)
        if isinstance(value, list):
            return self._items(value, location, result)
        if isinstance(value, dict):
            if _is_branches(value):
                return self._branch(value["by_arch"], location, result)
            return {key: self.value(item, (*location, key), (*result, key)) for key, item in value.items()}
        return value

    def _items(self, value: list[Any], location: Location, result: Location) -> list[Any]:
        items: list[Any] = []
        for index, item in enumerate(value):
            where = (*location, index)
            rendered = self.value(item, where, (*result, len(items)))
            # A by_arch branch that is a list, inside a list, is spliced: this arch's extra items.
            if isinstance(item, dict) and _is_branches(item) and isinstance(rendered, list):
                branch = (*where, "by_arch", self.variables["arch"])
                places = ((*result, len(items) + number) for number in range(len(rendered)))
                self.origins.update({place: (*branch, number) for number, place in enumerate(places)})
                items.extend(rendered)
            else:
                items.append(rendered)
        return items

    def _branch(self, branches: dict[Any, Any], location: Location, result: Location) -> Any:
        arch = self.variables["arch"]
        if arch not in branches:
            message = f"no branch for the architecture '{arch}'{nearest(str(arch), map(str, branches))}"
            self.problems.append(self.document.problem((*location, "by_arch"), message))
            return None
        return self.value(branches[arch], (*location, "by_arch", arch), result)


def _is_branches(value: dict[Any, Any]) -> bool:
    return set(value) == {"by_arch"} and isinstance(value["by_arch"], dict)


def _render_string(
    text: str, variables: Mapping[str, Any], document: Document, location: Location, problems: list[Problem]
) -> Any:
    if "{{" not in text and "{%" not in text:
        return text
    try:
        whole = _WHOLE_EXPRESSION.match(text)
        if whole:
            result = _expression(whole[1])(**variables)
            if isinstance(result, Undefined):
                # StrictUndefined raises on use; asking for its text is a use.
                str(result)
            return result
        return _template(text).render(**variables)
    except UndefinedError as error:
        found = _UNDEFINED_NAME.search(str(error))
        hint = nearest(found[1], variables) if found else ""
        problems.append(document.problem(location, f"{error}{hint}"))
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        problems.append(document.problem(location, f"the template can't be rendered: {error}"))
    return None


def names_used(value: Any) -> set[str]:
    """Every variable that the templates inside plain data name; what can't be parsed names nothing."""
    if isinstance(value, str):
        if "{{" not in value and "{%" not in value:
            return set()
        try:
            return find_undeclared_variables(_ENVIRONMENT.parse(value))
        except TemplateError:
            return set()
    if isinstance(value, Mapping):
        return set().union(*map(names_used, value.values()))
    return set().union(*map(names_used, value)) if isinstance(value, list) else set()


@lru_cache(maxsize=4096)
def _expression(text: str) -> Any:
    return _ENVIRONMENT.compile_expression(text, undefined_to_none=False)


@lru_cache(maxsize=4096)
def _template(text: str) -> Template:
    return _ENVIRONMENT.from_string(text)


def render_variables(raw: Mapping[str, Any], given: Mapping[str, Any], document: Document) -> dict[str, Any]:
    """The playbook's `vars` with overrides applied; a variable may use those written above it.

    Args:
        raw: the `vars` mapping of the document.
        given: overrides from inventory data, and built-in names (`arch`, `prefix`, `host`).
        document: where they stand, for errors.
    """
    variables: dict[str, Any] = dict(given)
    for name, value in raw.items():
        if name not in given:
            variables[name] = render(value, variables, document, ("vars", name))
    return variables
