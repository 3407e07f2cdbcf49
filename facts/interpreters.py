"""Python interpreters on the host, and what the host's pip is configured to offer."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pyinfra.api import FactBase

from lmcache_fleet.plain import Plain


@dataclass(frozen=True, slots=True)
class Interpreter(Plain):
    """One interpreter.

    Args:
        path: where it is.
        version: full version, such as `3.12.4`.
        headers: whether Python.h is there.
        venv: whether the venv and ensurepip modules are there.
    """

    path: str
    version: str
    headers: bool
    venv: bool


class Interpreters(FactBase[list[Interpreter]]):
    """Interpreters of one minor version, the best first.

    + minor: such as `3.12`
    + also: further paths to try
    """

    default = list

    def command(self, minor: str, also: tuple[str, ...] = ()) -> str:
        """The shell command that reads it."""
        candidates = [*also, f"/usr/local/bin/python{minor}", f"/usr/bin/python{minor}", f"python{minor}", "python3"]
        probe = (
            "import importlib.util as u,os,sys,sysconfig as s;"
            "print('python',sys.executable,'%d.%d.%d'%sys.version_info[:3],"
            "int(os.path.exists(os.path.join(s.get_paths()['include'],'Python.h'))),"
            "int(bool(u.find_spec('venv') and u.find_spec('ensurepip'))),sep='\\t')"
        )
        names = " ".join(shlex.quote(name) for name in candidates)
        attempt = f'command -v "$p" >/dev/null 2>&1 && "$p" -c {shlex.quote(probe)} 2>/dev/null'
        return f"for p in {names}; do {attempt}; done; true"

    def process(self, output: list[str]) -> list[Interpreter]:
        """Read the command's output."""
        found: dict[str, Interpreter] = {}
        for line in output:
            fields = line.split("\t")
            if fields[0] == "python" and len(fields) == 5:
                found.setdefault(fields[1], Interpreter(fields[1], fields[2], fields[3] == "1", fields[4] == "1"))
        return list(found.values())


class PipWheelFolders(FactBase[list[str]]):
    """Folders or pages of wheels (`find-links`) that pip on this host is configured to offer."""

    default = list

    def command(self) -> str:
        """The shell command that reads it."""
        return (
            "{ printf '%s\\n' \"${PIP_FIND_LINKS:-}\"; "
            'cat "${PIP_CONFIG_FILE:-/dev/null}" /etc/pip.conf /etc/xdg/pip/pip.conf "$HOME/.config/pip/pip.conf" '
            '"$HOME/.pip/pip.conf" 2>/dev/null '
            "| sed -n 's/^ *find-links *= *//p'; } | tr ' ' '\\n' | sed '/^$/d' | sort -u; true"
        )

    def process(self, output: list[str]) -> list[str]:
        """Read the command's output."""
        return [line.strip() for line in output if line.strip()]
