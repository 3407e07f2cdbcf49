"""The one place where values become shell words."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lmcache_fleet.repository import ROOT

PROGRAMS = ROOT / "templates" / "programs"


def words(*arguments: str) -> str:
    """Arguments as quoted shell words."""
    return " ".join(shlex.quote(argument) for argument in arguments)


def exports(variables: Mapping[str, str]) -> str:
    """`NAME='value' …` to stand before a command; empty for no variables."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(variables.items()))


@lru_cache(maxsize=32)
def program_source(name: str) -> str:
    """The text of a program that runs on hosts."""
    return (PROGRAMS / name).read_text(encoding="utf-8")


@lru_cache(maxsize=32)
def _packed(name: str) -> str:
    return base64.b64encode(zlib.compress(program_source(name).encode(), 9)).decode()


def run_program(name: str, request: Any, python: str = "python3") -> str:
    """A command that runs one of our programs with a JSON request, without putting a file on the host first.

    The source travels compressed in the command: a survey is one round trip, and a program is always that of this
    checkout. The program finds the request in `sys.argv[1]`.
    """
    loader = "import base64,sys,zlib;exec(compile(zlib.decompress(base64.b64decode(sys.argv.pop(1))),'probe','exec'))"
    return words(python, "-c", loader, _packed(name), json.dumps(request, sort_keys=True))


def write_file(path: str, text: str, mode: str = "0644") -> str:
    """A command that puts a text in place atomically; for texts that may be seen in a log."""
    staged = f"{path}.new"
    return (
        # In a subshell: what the script makes afterwards must not inherit this mask.
        f"( umask 077 && printf %s {shlex.quote(text)} > {shlex.quote(staged)} ) && chmod {mode} {shlex.quote(staged)} "
        f"&& mv -f {words(staged, path)}"
    )


def script(*commands: str | None) -> str:
    """Commands joined so that the first failure ends the script; None entries are left out."""
    return " && ".join(f"{{ {command}; }}" for command in commands if command)
