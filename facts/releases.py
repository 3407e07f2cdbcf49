"""What stands under the prefix: releases, their state, models, tools, the switch in progress."""

from __future__ import annotations

import json
from typing import Any

from pyinfra.api import FactBase
from pyinfra.api.exceptions import FactProcessError

from lmcache_fleet.release import HostReleases
from lmcache_fleet.shell import run_program, words


class Releases(FactBase[HostReleases]):
    """Releases on the host, read by one program in one go.

    + prefix: directory that holds everything versioned
    + request: which owners, wheel tags and native modules to look at; see `templates/programs/probe_releases.py`
    """

    def command(self, prefix: str = "/opt/lmcache-fleet", request: dict[str, Any] | None = None) -> str:
        """The shell command that reads it."""
        return run_program("probe_releases.py", {**(request or {}), "prefix": prefix})

    def process(self, output: list[str]) -> HostReleases:
        """Read the command's output."""
        try:
            return HostReleases.from_json(json.loads("\n".join(output)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FactProcessError(f"the release probe's answer can't be read: {error}") from error


class ReleaseSizes(FactBase[dict[str, tuple[int, int]]]):
    """Release → bytes on disk, and bytes that its removal frees; reads every file's size.

    + prefix: directory that holds everything versioned
    """

    def command(self, prefix: str = "/opt/lmcache-fleet") -> str:
        """The shell command that reads it."""
        return run_program("release_sizes.py", {"prefix": prefix})

    def process(self, output: list[str]) -> dict[str, tuple[int, int]]:
        """Read the command's output."""
        try:
            return {name: (int(size), int(freed)) for name, (size, freed) in json.loads("\n".join(output)).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise FactProcessError(f"the sizes of releases can't be read: {error}") from error


class ServiceRecords(FactBase[dict[str, dict[str, Any]]]):
    """Release → how it was put into service, for those that were.

    + prefix: directory that holds everything versioned
    """

    default = dict

    def command(self, prefix: str = "/opt/lmcache-fleet") -> str:
        """The shell command that reads it."""
        folder = words(f"{prefix}/releases")
        return (
            f'for f in {folder}/*/service.json; do [ -f "$f" ] || continue; n="${{f%/service.json}}"; '
            "printf '%s\\t' \"${n##*/}\"; tr -d '\\n' < \"$f\"; echo; done"
        )

    def process(self, output: list[str]) -> dict[str, dict[str, Any]]:
        """Read the command's output."""
        try:
            return {name: json.loads(text) for name, _, text in (line.partition("\t") for line in output)}
        except ValueError as error:
            raise FactProcessError(f"the releases' service records can't be read: {error}") from error
