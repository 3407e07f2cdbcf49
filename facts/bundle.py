"""What of bundles a host already has."""

from __future__ import annotations

import shlex

from pyinfra.api import FactBase


class BundleFiles(FactBase[frozenset[str]]):
    """SHA-256 of every file that came with a bundle; each was checked when it arrived.

    + folder: where such files are kept
    """

    @staticmethod
    def default() -> frozenset[str]:
        """None."""
        return frozenset()

    def command(self, folder: str) -> str:
        """The shell command that reads it."""
        return f"ls -1 -- {shlex.quote(folder)} 2>/dev/null || true"

    def process(self, output: list[str]) -> frozenset[str]:
        """Read the command's output."""
        return frozenset(line.strip() for line in output if line.strip())
