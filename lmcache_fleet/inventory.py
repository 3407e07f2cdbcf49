"""Hosts' own data: its schema, merged over groups and checked before any connection."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from lmcache_fleet.drain.settings import DrainSettings
from lmcache_fleet.layout import DEFAULT_PREFIX
from lmcache_fleet.model_keys import unknown_key
from lmcache_fleet.playbook.model import Role, StrictModel
from lmcache_fleet.problems import InputError, Problem, nearest


def _check_variables(variables: dict[str, Any]) -> dict[str, Any]:
    for name in variables:
        if not name.isidentifier():
            raise ValueError(f"'{name}' can't be a variable's name")
    return variables


class SecretSource(StrictModel):
    """Where the control machine takes a secret's value from; the value itself never stands in an inventory."""

    env: str | None = Field(default=None, description="variable of the control machine's environment")
    file: str | None = Field(default=None, description="file on the control machine; a last line break is dropped")
    command: list[str] | None = Field(default=None, min_length=1, description="command that prints it, as of a vault")

    @model_validator(mode="after")
    def _one_place(self) -> SecretSource:
        if sum(item is not None for item in (self.env, self.file, self.command)) != 1:
            raise ValueError("give exactly one of env, file and command")
        return self

    def value(self) -> str:
        """The secret.

        Raises:
            LookupError: it can't be had; the message names the place, never a value.
        """
        try:
            if self.env is not None:
                return os.environ[self.env]
            if self.file is not None:
                return Path(self.file).expanduser().read_text(encoding="utf-8").rstrip("\n")
            done = subprocess.run(self.command or [], capture_output=True, text=True, timeout=60, check=True)
        except KeyError:
            raise LookupError(f"the variable {self.env} is not set on the control machine") from None
        except OSError as error:
            raise LookupError(f"{self.file or self.command}: {error.strerror}") from None
        except subprocess.SubprocessError:
            raise LookupError(f"the command {(self.command or [''])[0]} failed") from None
        return done.stdout.rstrip("\n")


class HostSettings(StrictModel):
    """What lmcache-fleet reads of a host's data; all else belongs to pyinfra or to the user."""

    vars: Annotated[dict[str, Any], AfterValidator(_check_variables)] = {}
    prefix: str = Field(default=DEFAULT_PREFIX, pattern=r"^/[^\n\r\x00]+$")
    failure_domain: str = ""
    secrets: dict[str, SecretSource] = {}
    keep_releases: int = Field(default=3, ge=2)
    drain: DrainSettings | None = None
    bundle: str | None = Field(
        default=None,
        min_length=1,
        description="directory that `lmcache-fleet bundle` made; all is taken from it and nothing is fetched",
    )
    until: Literal["prepared", "served"] = Field(
        default="served", description="`prepared` stops before the switch: the new release is made and proved off-line"
    )
    rollback_to: str | None = Field(
        default=None, min_length=1, description="release that deploys/rollback.py goes to; the last one if not given"
    )
    roles: list[Role] = Field(default=["engine"], min_length=1)


# Spellings that are surely meant for us, so that a slip is an error instead of being ignored.
_LOOKALIKE_CUTOFF_KEYS = ("variables", "var", "keep_release", "failure_domains", "prefixes", "drains", "role")


def _message(detail: ErrorDetails) -> str:
    location, value = detail["loc"], detail["input"]
    if detail["type"] == "extra_forbidden":
        return unknown_key(HostSettings, location)
    message = detail["msg"].removeprefix("Value error, ")
    # A secret put where its source belongs must not be shown back.
    return message if location[:1] == ("secrets",) else f"{message}; got {value!r}"


def data_layers(inventory: Any, host: Any) -> list[Mapping[str, Any]]:
    """A host's data as pyinfra holds it, from the most general to the most special.

    Args:
        inventory: pyinfra's inventory.
        host: pyinfra's host.
    """
    groups = [inventory.get_group_data(group) for group in host.groups]
    return [inventory.get_data(), *groups, inventory.get_host_data(host.name), inventory.get_override_data()]


def host_settings(name: str, layers: Iterable[Mapping[str, Any]]) -> HostSettings:
    """A host's settings, from its data in all layers.

    Args:
        name: the host's name, for errors.
        layers: data from the most general (all) to the most special (command line); `vars` of all of them are merged,
            of anything else the last one counts.

    Raises:
        InputError: a value has the wrong type, or a key is misspelt.
    """
    merged: dict[str, Any] = {}
    variables: dict[str, Any] = {}
    problems = []
    where = f"inventory data of {name}"
    for layer in layers:
        for key in layer:
            if key in _LOOKALIKE_CUTOFF_KEYS:
                problems.append(Problem(where, 0, 0, key, f"unknown key{nearest(key, HostSettings.model_fields)}"))
            elif key in HostSettings.model_fields and key != "vars":
                merged[key] = layer[key]
        given = layer.get("vars", {})
        if isinstance(given, Mapping):
            variables.update(given)
        else:
            problems.append(Problem(where, 0, 0, "vars", f"expected a mapping of variables, got {given!r}"))
    if problems:
        raise InputError(problems)
    try:
        return HostSettings.model_validate({**merged, "vars": variables})
    except ValidationError as error:
        raise InputError(
            [
                Problem(
                    where,
                    0,
                    0,
                    ".".join(str(part) for part in detail["loc"]),
                    _message(detail),
                )
                for detail in error.errors(include_url=False)
            ]
        ) from error


def mark_part(inventory: Any, names: Iterable[str]) -> None:
    """Have an inventory know that it is a part of another one.

    Args:
        inventory: pyinfra's inventory.
        names: the hosts of the whole.
    """
    inventory.lmcache_fleet_whole = tuple(names)


def whole(inventory: Any) -> tuple[str, ...]:
    """The hosts of an inventory, or of the one that it is a part of.

    Args:
        inventory: pyinfra's inventory.
    """
    marked: tuple[str, ...] | None = getattr(inventory, "lmcache_fleet_whole", None)
    return tuple(host.name for host in inventory) if marked is None else marked


def balancer_problems(settings: Mapping[str, HostSettings], names: Iterable[str]) -> list[Problem]:
    """Load balancers that hosts name and the inventory doesn't have.

    Args:
        settings: of hosts, by name.
        names: all hosts of the inventory: a load balancer need not take part where its hosts do.
    """
    known = set(names)
    message = "the inventory has no host "
    return [
        Problem(f"inventory data of {host}", 0, 0, "drain", f"{message}'{name}'{nearest(name, known)}")
        for host, mine in settings.items()
        for name in (mine.drain.balancers if mine.drain else ())
        if name not in known
    ]
