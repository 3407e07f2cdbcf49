"""Packages of a Debian or Ubuntu, with all that they need on a bare system, by apt's own tools."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

_DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}


class NoPackages(Exception):
    """Distribution packages can't be had; the message says why."""


def distribution() -> str | None:
    """This machine's distribution, such as `debian 12`; None where apt is not its package manager."""
    try:
        release = platform.freedesktop_os_release()
        subprocess.run(["apt-get", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{release.get('ID', '')} {release.get('VERSION_ID', '')}".strip()


def fetch_debs(names: Sequence[str], arch: str, work: Path) -> tuple[list[Path], str]:
    """Fetch packages and everything that they need, down to the C library, from this machine's own sources.

    Nothing of this machine's own apt is changed: it works on directories of its own, as if no package were installed.

    Args:
        names: the packages.
        arch: the hosts' machine name.
        work: an empty directory.

    Returns:
        The files, and the index of them as a flat repository has it.

    Raises:
        NoPackages: apt can't have them; in its own words.
    """
    debian = _DEBIAN_NAMES[arch]
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    status = work / "state" / "status"
    status.touch()
    config = work / "apt.conf"
    config.write_text(
        f'Dir::State "{work}/state";\nDir::State::status "{status}";\nDir::Cache "{work}/cache";\n'
        f'APT::Architecture "{debian}";\n#clear APT::Architectures;\nAPT::Architectures {{ "{debian}"; }};\n'
        'Debug::NoLocking "1";\nAPT::Sandbox::User "";\nAcquire::Retries "3";\n',
        encoding="utf-8",
    )
    _apt(config, "apt-get", "-q", "update")
    _apt(config, "apt-get", "-q", "-y", "--no-install-recommends", "--download-only", "install", "--", *names)
    files = sorted((work / "cache" / "archives").glob("*.deb"))
    wanted = ["=".join(name_and_version(path.name)) for path in files]
    return files, flat_index(_apt(config, "apt-cache", "show", "--", *wanted), [path.name for path in files])


def flat_index(text: str, files: Sequence[str]) -> str:
    """The index of a flat repository.

    Args:
        text: entries of its packages, as `apt-cache show` prints them; others and repeated ones are left out.
        files: names of its files.
    """
    wanted = {name_and_version(file): file for file in files}
    found = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version): (.+)$", stanza, re.MULTILINE))
        key = (fields.get("Package", ""), fields.get("Version", ""))
        if key in wanted:
            at = f"Filename: ./{wanted[key]}"
            found[key] = re.sub(r"^Filename: .*$", at, stanza.strip(), flags=re.MULTILINE)
    return "".join(f"{found[key]}\n\n" for key in sorted(found))


def name_and_version(file: str) -> tuple[str, str]:
    """What a .deb that apt fetched is called and which version it has.

    Args:
        file: its name, such as `libnuma1_2.0.16-1_amd64.deb`; apt writes an epoch's colon as `%3a`.
    """
    name, version, _ = file.removesuffix(".deb").split("_")
    return unquote(name), unquote(version)


def _apt(config: Path, *argv: str) -> str:
    environment = {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith(("E:", "Err:"))]
    # A list that can't be fetched is a warning to apt, which goes on with what it has.
    failed = [line for line in done.stderr.splitlines() if "Failed to fetch" in line]
    if done.returncode != 0 or failed:
        raise NoPackages("; ".join([*said, *failed]) or f"{argv[0]} ended with status {done.returncode}")
    return done.stdout
