"""Make the project's own environment from a bare python3, or say in one line what is missing. Standard library only."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".fleet"
ENVIRONMENT = STATE / "env"
MINIMUM = (3, 10)


def say(text: str) -> None:
    """A line of progress."""
    print(f"==> {text}", flush=True)


def stop(text: str) -> None:
    """One line that says what to do, and the end."""
    sys.exit(f"lmcache-fleet: {text}")


def environment(dev: bool) -> Path:
    """The `bin` folder of the project's environment, made or brought up to date when needed.

    Args:
        dev: with the tools that the tests need.
    """
    if sys.version_info < MINIMUM:
        for minor in range(14, MINIMUM[1] - 1, -1):
            better = shutil.which(f"python3.{minor}")
            if better:
                os.execv(better, [better, *sys.argv])
        stop("Python 3.10 or newer is needed: apt-get install python3.11 (or what your distribution calls it)")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8") + sys.version
    wanted = hashlib.sha256(text.encode()).hexdigest()
    mark = ENVIRONMENT / ".ready"
    made_of = mark.read_text(encoding="utf-8").split() if mark.is_file() else []
    # An environment with the test tools serves the demo as well.
    if not made_of or made_of[0] != wanted or (dev and made_of[1:] != ["dev"]):
        _make(dev)
        mark.write_text(f"{wanted} dev" if dev else wanted, encoding="utf-8")
    return ENVIRONMENT / "bin"


def _make(dev: bool) -> None:
    say("making the project's own environment in .fleet/env (once)")
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    STATE.mkdir(exist_ok=True)
    python = str(ENVIRONMENT / "bin" / "python")
    uv = shutil.which("uv")
    if uv:
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(ENVIRONMENT)])
    elif importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        _run([sys.executable, "-m", "venv", str(ENVIRONMENT)])
    elif importlib.util.find_spec("pip"):
        # A Python without the venv module, as Debian's minimal one: virtualenv does without it.
        tools = STATE / "tools"
        _run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools), "virtualenv"])
        _run([sys.executable, "-m", "virtualenv", "--quiet", str(ENVIRONMENT)], PYTHONPATH=str(tools))
    else:
        stop("this Python has neither venv nor pip: apt-get install python3-venv (as root), then run again")
    if not uv:
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv>=0.9"])
        uv = str(ENVIRONMENT / "bin" / "uv")
    group = ["--group", f"{ROOT / 'pyproject.toml'}:dev"] if dev else []
    # Compiled now: where Python may not write byte code itself, every later start would cost a second more.
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    _run([*install, "--editable", str(ROOT), *group], UV_SYSTEM_CERTS="1")


def _run(command: list[str], **extra: str) -> None:
    done = subprocess.run(command, env={**os.environ, **extra}, check=False)
    if done.returncode:
        stop(f"this failed with exit status {done.returncode}: {' '.join(command)}")
