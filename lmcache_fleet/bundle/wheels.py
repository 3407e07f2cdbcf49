"""Which files of a resolution a host of another architecture and Python takes."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from lmcache_fleet.resolution import Platform

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True, slots=True)
class Remote:
    """A file to be fetched.

    Args:
        package: canonical name of its distribution.
        version: of the distribution; empty when it isn't told.
        name: the file's name.
        url: where it is.
        sha256: its hash; None where the index tells none.
    """

    package: str
    version: str
    name: str
    url: str
    sha256: str | None

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel, and not a source distribution."""
        return self.name.endswith(".whl")


def parsed_toml(text: str) -> dict[str, Any]:
    """A TOML document.

    Args:
        text: of the document.

    Raises:
        ValueError: it is none.
    """
    found: dict[str, Any] = tomllib.loads(text)
    return found


def tags_of(platform: Platform) -> list[Tag]:
    """Wheel tags that a platform takes, the best first.

    Args:
        platform: the hosts'.
    """
    found = re.search(r"manylinux_2_(\d+)$", platform.uv_name)
    # What uv takes where nobody told it the C library's version.
    newest = int(found[1]) if found else 28
    oldest = 5 if platform.arch == "x86_64" else 17
    platforms = []
    for minor in range(newest, oldest - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{platform.arch}")
        if minor in _OLD_NAMES:
            platforms.append(f"{_OLD_NAMES[minor]}_{platform.arch}")
    platforms.append(f"linux_{platform.arch}")
    version = [int(part) for part in platform.python.split(".")[:2]]
    name = "".join(["cp", *map(str, version)])
    return [*cpython_tags(version, platforms=platforms), *compatible_tags(version, name, platforms)]


def chosen(lock: str, platform: Platform, no_binary: tuple[str, ...] = ()) -> list[Remote]:
    """One file for each package of a resolution: the best wheel that fits, else the source distribution.

    Args:
        lock: as `uv pip compile` writes a pylock.toml.
        platform: the hosts'.
        no_binary: names of packages whose wheels are not wanted.

    Raises:
        LookupError: a package has no file that fits; the message names it.
    """
    rank = {tag: number for number, tag in enumerate(tags_of(platform))}
    refused = {name if name == ":all:" else canonicalize_name(name) for name in no_binary}
    found = []
    for package in parsed_toml(lock).get("packages", []):
        name = canonicalize_name(package["name"])
        version = str(package.get("version", ""))
        wheels = (
            [] if refused & {name, ":all:"} else [_remote(name, version, item) for item in package.get("wheels", [])]
        )
        fitting = [(_rank(item.name, rank), item) for item in wheels]
        fitting = [item for item in fitting if item[0] is not None]
        others = [_remote(name, version, package[kind]) for kind in ("archive", "sdist") if kind in package]
        if fitting:
            found.append(min(fitting, key=lambda item: (item[0], item[1].name))[1])
        elif others:
            found.append(others[0])
        else:
            raise LookupError(f"{name} {version} has no file for {platform.arch} and Python {platform.python}")
    return found


def _remote(package: str, version: str, entry: dict[str, Any]) -> Remote:
    url = str(entry.get("url") or entry.get("path"))
    name = str(entry.get("name") or unquote(PurePosixPath(urlsplit(url).path).name))
    return Remote(package, version, name, url, entry.get("hashes", {}).get("sha256"))


def _rank(name: str, rank: dict[Tag, int]) -> int | None:
    try:
        tags = parse_wheel_filename(name)[3]
    except InvalidWheelFilename:
        return None
    return min((rank[tag] for tag in tags if tag in rank), default=None)
