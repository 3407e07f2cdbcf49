"""Whether a host reaches URLs."""

from __future__ import annotations

import json

from pyinfra.api import FactBase

from lmcache_fleet.shell import run_program


class UrlAccess(FactBase[dict[str, str | None]]):
    """URL → what went wrong when the host asked for it; None when it was answered.

    + urls: what to ask for
    + seconds: limit of each question; all are asked at once
    """

    default = dict

    def command(self, urls: tuple[str, ...], seconds: int = 8) -> str:
        """The shell command that reads it."""
        return run_program("probe_urls.py", {"urls": list(urls), "seconds": seconds}) if urls else "true"

    def process(self, output: list[str]) -> dict[str, str | None]:
        """Read the command's output."""
        found: dict[str, str | None] = json.loads("".join(output))
        return found
