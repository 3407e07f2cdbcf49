"""From a playbook file to a validated playbook for one host."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from lmcache_fleet.lock import with_lock
from lmcache_fleet.model_keys import unknown_key
from lmcache_fleet.playbook.model import STEP_KINDS, Playbook
from lmcache_fleet.playbook.source import Document, Location, read_document
from lmcache_fleet.playbook.template import origin, render, render_variables
from lmcache_fleet.problems import InputError, nearest

ARCHITECTURES = ("x86_64", "aarch64")


@lru_cache(maxsize=16)
def read_playbook(path: Path) -> Document:
    """The playbook's document, read once a process.

    Raises:
        InputError: the file can't be read, or is no mapping with steps of known kinds.
    """
    document = read_document(path)
    problems = []
    if not isinstance(document.data, dict):
        raise InputError([document.problem((), "expected a mapping with apiVersion, name and steps")])
    for key in document.data:
        if key not in Playbook.model_fields:
            problems.append(document.problem((key,), f"unknown key '{key}'{nearest(str(key), Playbook.model_fields)}"))
    variables = {} if document.data.get("vars") is None else document.data["vars"]
    if not isinstance(variables, dict):
        problems.append(document.problem(("vars",), "expected a mapping of variables"))
        variables = {}
    for name in variables:
        if not (isinstance(name, str) and name.isidentifier()):
            problems.append(document.problem(("vars", name), f"'{name}' can't be a variable's name"))
    steps = document.data.get("steps")
    for index, step in enumerate(steps if isinstance(steps, list) else []):
        where: Location = ("steps", index)
        if not isinstance(step, dict) or len(step) != 1:
            message = f"a step is a mapping with one key, its kind{nearest('', STEP_KINDS)}"
            problems.append(document.problem(where, message))
            continue
        (kind,) = step
        if kind not in STEP_KINDS:
            problems.append(document.problem((*where, kind), f"unknown step '{kind}'{nearest(str(kind), STEP_KINDS)}"))
    if problems:
        raise InputError(problems)
    return document


def resolve(
    document: Document, given: Mapping[str, Any], *, arch: str, prefix: str, host: str, locked: bool = True
) -> Playbook:
    """Render and validate a playbook for one host.

    Args:
        document: as `read_playbook` gave it.
        given: the host's overrides of `vars`.
        arch: machine name as `uname -m` prints it.
        prefix: directory on the host that holds everything versioned.
        host: the host's name in the inventory.
        locked: put in what the playbook's lock says, when it has one.

    Raises:
        InputError: an override names no variable, a template fails, a value is not of the schema, or the lock is stale.
    """
    raw_vars = document.data.get("vars") or {}
    unknown = [
        name for name in given if name not in raw_vars and name not in declared_variables(Path(document.file).parent)
    ]
    if unknown:
        raise InputError(
            [
                document.problem(
                    ("vars",),
                    f"an override names '{name}', a variable that the playbook has not{nearest(name, raw_vars)}",
                )
                for name in unknown
            ]
        )
    built_in = {"arch": arch, "prefix": prefix, "host": host}
    relevant = {name: value for name, value in given.items() if name in raw_vars}
    variables = render_variables(raw_vars, {**built_in, **relevant}, document)
    body = {key: value for key, value in document.data.items() if key != "vars"}
    origins: dict[Location, Location] = {}
    rendered = render(body, variables, document, origins=origins)
    try:
        playbook = Playbook.model_validate({**rendered, "vars": {name: variables[name] for name in raw_vars}})
    except ValidationError as error:
        raise InputError([_problem(document, detail, origins) for detail in error.errors(include_url=False)]) from error
    return with_lock(playbook, Path(document.file), arch) if locked else playbook


@lru_cache(maxsize=16)
def declared_variables(place: Path) -> frozenset[str]:
    """Variables of one playbook, or of all in a folder: an inventory serves several, so what any has is no slip.

    Args:
        place: a playbook's file, or a folder of them.
    """
    names: set[str] = set()
    for path in sorted(place.glob("*.yaml")) if place.is_dir() else [place]:
        try:
            data = read_document(path).data
        except InputError:
            continue
        variables = data.get("vars") if isinstance(data, dict) else None
        names |= set(variables) if isinstance(variables, dict) else set()
    return frozenset(names)


def check_document(document: Document, given: Mapping[str, Any] | None = None) -> Playbook:
    """Resolve for every architecture that the playbook admits, as `lmcache-fleet check` does without a host.

    Raises:
        InputError: as `resolve`.
    """
    return next(iter(resolve_all(document, given or {}).values()))


def resolve_all(document: Document, given: Mapping[str, Any], *, locked: bool = True) -> dict[str, Playbook]:
    """Architecture → the playbook for an example host of it, for all architectures that the playbook admits.

    Args:
        document: as `read_playbook` gave it.
        given: overrides of `vars`.
        locked: as for `resolve`.

    Raises:
        InputError: as `resolve`.
    """
    requires = document.data.get("requires")
    listed = requires.get("architectures") if isinstance(requires, dict) else None
    # Whatever else stands there is refused by the schema, on any architecture.
    admitted = [arch for arch in ARCHITECTURES if not isinstance(listed, list) or arch in listed] or ARCHITECTURES
    return {
        arch: resolve(document, given, arch=arch, prefix="/opt/lmcache-fleet", host="example", locked=locked)
        for arch in admitted
    }


def _problem(document: Document, detail: ErrorDetails, origins: Mapping[Location, Location]) -> Any:
    location = tuple(part for part in detail["loc"] if not str(part).startswith("function-"))
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        # Which of the kinds a step is of stands in its path, and not in the model's field.
        in_step = location[:1] == ("steps",) and len(location) > 3
        model, inside = (STEP_KINDS[str(location[2])], location[3:]) if in_step else (Playbook, location)
        message = unknown_key(model, inside)
    elif detail["type"] == "missing":
        message = f"the key '{location[-1]}' is missing"
    elif detail["type"] not in {"value_error"} and detail.get("input") is not None:
        shown = repr(detail["input"])
        message = f"{message}; got {shown if len(shown) <= 60 else shown[:57] + '...'}"
    return document.problem(origin(location, origins), message)
