"""Sandboxed Jinja2 over plain data: strict about undefined names, and keeping types where a value is one expression."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined, UndefinedError
from jinja2.sandbox import SandboxedEnvironment

from lmcache_fleet.playbook.source import Document, Location
from lmcache_fleet.problems import InputError, Problem, nearest

_WHOLE_EXPRESSION = re.compile(r"^\s*\{\{((?:(?!\}\}).)*)\}\}\s*$", re.DOTALL)
_UNDEFINED_NAME = re.compile(r"'([^']+)' is undefined")
_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)


def render(value: Any, variables: Mapping[str, Any], document: Document, location: Location = ()) -> Any:
    """Render every string inside plain data, and pick the branch of every `by_arch` mapping.

    A string that is one `{{ expression }}` keeps the expression's type; any other becomes a string.

    Args:
        value: plain data from the document.
        variables: what templates may name; `arch` picks `by_arch` branches.
        document: where the value stands, for errors.
        location: path of the value in the document.

    Raises:
        InputError: a name is undefined, an expression is invalid, or an architecture has no branch.
    """
    problems: list[Problem] = []
    rendered = _render(value, variables, document, location, problems)
    if problems:
        raise InputError(problems)
    return rendered


def _render(
    value: Any, variables: Mapping[str, Any], document: Document, location: Location, problems: list[Problem]
) -> Any:
    if isinstance(value, str):
        return _render_string(value, variables, document, location, problems)
    if isinstance(value, list):
        items: list[Any] = []
        for index, item in enumerate(value):
            rendered = _render(item, variables, document, (*location, index), problems)
            # A by_arch branch that is a list, inside a list, is spliced: this arch's extra items.
            if isinstance(item, dict) and set(item) == {"by_arch"} and isinstance(rendered, list):
                items.extend(rendered)
            else:
                items.append(rendered)
        return items
    if isinstance(value, dict):
        if set(value) == {"by_arch"} and isinstance(value["by_arch"], dict):
            branches, arch = value["by_arch"], variables["arch"]
            if arch not in branches:
                message = f"no branch for the architecture '{arch}'{nearest(str(arch), map(str, branches))}"
                problems.append(document.problem((*location, "by_arch"), message))
                return None
            return _render(branches[arch], variables, document, (*location, "by_arch", arch), problems)
        return {key: _render(item, variables, document, (*location, key), problems) for key, item in value.items()}
    return value


def _render_string(
    text: str, variables: Mapping[str, Any], document: Document, location: Location, problems: list[Problem]
) -> Any:
    if "{{" not in text and "{%" not in text:
        return text
    try:
        whole = _WHOLE_EXPRESSION.match(text)
        if whole:
            result = _ENVIRONMENT.compile_expression(whole[1], undefined_to_none=False)(**variables)
            if isinstance(result, Undefined):
                # StrictUndefined raises on use; asking for its text is a use.
                str(result)
            return result
        return _ENVIRONMENT.from_string(text).render(**variables)
    except UndefinedError as error:
        found = _UNDEFINED_NAME.search(str(error))
        hint = nearest(found[1], variables) if found else ""
        problems.append(document.problem(location, f"{error}{hint}"))
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        problems.append(document.problem(location, f"the template can't be rendered: {error}"))
    return None


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
