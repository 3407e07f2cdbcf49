"""The stack (torch, HIP, C++ ABI, vendor packages) that the host's interpreters bring, without importing it."""

from __future__ import annotations

import shlex

from pyinfra.api import FactBase

from lmcache_fleet.runtimes import Runtime, parse_runtimes
from lmcache_fleet.shell import run_program


class Runtimes(FactBase[list[Runtime]]):
    """One stack an interpreter of a minor version, in the order in which `Interpreters` tries them.

    + minor: such as `3.12`
    + also: further interpreters to try first
    + distributions: names whose versions are wanted
    """

    default = list

    def command(self, minor: str, also: tuple[str, ...] = (), distributions: tuple[str, ...] = ()) -> str:
        """The shell command that reads it."""
        candidates = [*also, f"/usr/local/bin/python{minor}", f"/usr/bin/python{minor}", f"python{minor}", "python3"]
        names = " ".join(shlex.quote(name) for name in candidates)
        probe = run_program("probe_runtime.py", {"distributions": sorted(distributions)}, "@PYTHON@")
        probe = probe.replace("@PYTHON@", '"$p"', 1)
        return f'for p in {names}; do command -v "$p" >/dev/null 2>&1 && {probe} 2>/dev/null; done; true'

    def process(self, output: list[str]) -> list[Runtime]:
        """Read the command's output."""
        return parse_runtimes(output)
