"""Dataclasses that turn into plain data: for `--json` output, and for pyinfra's own `fact` command."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


class Plain:
    """Mixed into a dataclass: its fields, all the way down, as dicts, lists, texts and numbers."""

    __slots__ = ()

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def to_json(self) -> dict[str, Any]:
        """The same, under the name that pyinfra's command line looks for when it prints a fact."""
        return self.as_json()
