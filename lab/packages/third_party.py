"""Fetches the real packages that hosts install, once, with pip and from wherever this machine's pip gets packages."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.shell import LabError

LIST = Path(__file__).resolve().parent / "third_party.txt"
LMCACHE_SOURCES = ("0.4.4", "0.4.5")
_BUILD = ("setuptools>=77.0.3,<81", "setuptools_scm>=8", "ninja", "packaging>=24.2", "wheel")
_GLIBC = (36, 35, 34, 31, 28, 27, 24, 17, 12, 5)

Say = Callable[[str], None]


def host_python() -> str:
    """Gives the minor version of Python on the hosts: they run this machine's release of the distribution."""
    wanted = os.environ.get("LMCACHE_FLEET_LAB_PYTHON")
    if wanted:
        return wanted
    system = Path("/usr/bin/python3")
    if system.exists():
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        return subprocess.run([system, "-IS", "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def build_env(cache: Path, say: Say = print) -> Path:
    """Makes (once) a Python environment that can build source distributions; gives its interpreter."""
    home = cache / "build-env"
    python = home / "bin/python"
    stamp = home / ".complete"
    if stamp.exists() and python.exists():
        return python
    say("lab index: making the build environment")
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", home], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        # Debian's python3 without python3-venv: uv, which the project needs anyway, has all of it in one file
        _run(["uv", "venv", "--clear", "--seed", "--python", sys.executable, home])
    _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_BUILD])
    stamp.touch()
    return python


def fetch(cache: Path, say: Say = print) -> list[Path]:
    """Gives the real packages, downloading those that the cache doesn't have.

    Args:
        cache: where they are kept between labs.
        say: told about what takes long.
    """
    minor, arch = host_python(), platform.machine()
    digest = hashlib.sha256((LIST.read_text() + minor + arch + repr(LMCACHE_SOURCES)).encode()).hexdigest()[:12]
    where = cache / f"third-party-{digest}"
    if not (where / ".complete").exists():
        where.mkdir(parents=True, exist_ok=True)
        python = build_env(cache, say)
        say(f"lab index: fetching real packages for Python {minor} on {arch} (once)")
        tags = [f"--platform=manylinux_2_{n}_{arch}" for n in _GLIBC]
        tags += [f"--platform=manylinux2014_{arch}", f"--platform=linux_{arch}"]
        pip: list[str | Path] = [
            python,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--dest",
            where,
        ]
        _run([*pip, "--only-binary=:all:", f"--python-version={minor}", "--implementation=cp", *tags, "-r", LIST])
        env = {**os.environ, "NO_CUDA_EXT": "1", "NO_NATIVE_EXT": "1"}
        for version in LMCACHE_SOURCES:
            source = ["--no-deps", "--no-build-isolation", "--no-binary=lmcache", f"lmcache=={version}"]
            _run([*pip, *source], env)
        (where / ".complete").touch()
    return sorted(path for path in where.iterdir() if path.name != ".complete")


def lmcache_wheel(cache: Path, source: Path, say: Say = print) -> Path:
    """Builds the pure wheel of a real lmcache source distribution (seconds, no compiler, no torch)."""
    out = cache / "built"
    version = source.name.removeprefix("lmcache-").removesuffix(".tar.gz")
    found = sorted(out.glob(f"lmcache-{version}-*.whl"))
    if not found:
        out.mkdir(parents=True, exist_ok=True)
        say(f"lab index: building lmcache {version} without its native part")
        env = {**os.environ, "NO_CUDA_EXT": "1", "NO_NATIVE_EXT": "1"}
        python = build_env(cache, say)
        command: list[str | Path] = [
            python,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        _run([*command, "--no-build-isolation", "--wheel-dir", out, source], env)
        found = sorted(out.glob(f"lmcache-{version}-*.whl"))
    return found[0]


def _run(argv: Sequence[str | Path], env: dict[str, str] | None = None) -> None:
    result = subprocess.run([str(arg) for arg in argv], capture_output=True, text=True, check=False, env=env)
    if result.returncode != 0:
        words = (result.stdout + result.stderr).strip().splitlines()[-12:]
        raise LabError(f"`{' '.join(str(arg) for arg in argv[:6])} …` failed:\n  " + "\n  ".join(words))
