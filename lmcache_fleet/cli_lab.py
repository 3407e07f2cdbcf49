"""``lmcache-fleet lab …``: hands its arguments to the lab of the repository, which is no part of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click


def repository() -> Path | None:
    """The repository with a lab in it: the working directory's, else the one this package is in."""
    here = [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parent.parent]
    return next((path for path in here if (path / "lab" / "__main__.py").is_file()), None)


@click.command(
    "lab",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(arguments: tuple[str, ...]) -> None:
    """Boot, break and remove trial hosts on this machine: up, down, reimage, status, exec, power-cut, power-on."""
    root = repository()
    if root is None:
        raise click.ClickException(
            "the lab comes with the repository, not with the package: run this inside a clone of lmcache-fleet"
        )
    env = {**os.environ, "LMCACHE_FLEET_LAB_PROG": "lmcache-fleet lab"}
    sys.exit(subprocess.run([sys.executable, "-m", "lab", *arguments], cwd=root, env=env, check=False).returncode)
