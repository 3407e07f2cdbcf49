"""A bundle's manifest: every file by hash, and which of them each step of a playbook takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from lmcache_fleet.digest import digest
from lmcache_fleet.lock import step_digest
from lmcache_fleet.playbook.model import PackagesStep, StrictModel
from lmcache_fleet.problems import InputError, Problem
from lmcache_fleet.store import file_sha256

NAME = "manifest.json"
_REMEDY = "copy the bundle again, or make it anew with `lmcache-fleet bundle`"
# Below the bundle and no way out of it; names need no quoting in a list of checksums.
_PATH = re.compile(r"(files/[0-9a-f]{64}|artifacts)(/[^/\x00-\x1f\x7f\\]+)+")


def _check_path(path: str) -> str:
    if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise ValueError("not a path of a bundle")
    return path


BundlePath = Annotated[str, AfterValidator(_check_path)]


class BundledFile(StrictModel):
    """A file's hash and size in bytes."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class BundledPackages(StrictModel):
    """What one packages step installs.

    `of` is what the step is known by; `urls` are the files of pins that name a URL.
    """

    name: str
    of: str
    files: list[BundlePath]
    urls: dict[str, BundlePath] = {}


class BundledSystem(StrictModel):
    """Packages of a distribution, with all that they need on a bare system, and their index."""

    distribution: str
    names: list[str]
    debs: list[BundlePath]
    index: BundlePath


class Manifest(StrictModel):
    """What a bundle holds and for which hosts."""

    format: Literal[1] = 1
    playbook: str
    arch: str
    python: str
    glibc: str | None
    made: str
    files: dict[BundlePath, BundledFile]
    tools: dict[str, BundlePath] = {}
    packages: list[BundledPackages] = []
    models: dict[str, dict[str, BundlePath]] = {}
    system: BundledSystem | None = None


def packages_key(step: PackagesStep) -> str:
    """What a packages step is known by in a bundle: all that decides what it installs, wherever that comes from.

    Args:
        step: the step, with its requirements files read.
    """
    return digest([step_digest(step, ""), step.locked])


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on the control machine.

    Args:
        root: its directory.
        manifest: what is in it.
    """

    root: Path
    manifest: Manifest

    def packages(self, step: PackagesStep) -> BundledPackages | None:
        """What a step installs; None when the bundle was made without it."""
        key = packages_key(step)
        return next((item for item in self.manifest.packages if item.of == key), None)

    def size(self, paths: Iterable[str]) -> int:
        """Bytes of so many files."""
        return sum(self.manifest.files[path].size for path in paths)


@lru_cache(maxsize=16)
def read_bundle(root: Path) -> Bundle:
    """A bundle's manifest, read once a process; the files are not looked at.

    Args:
        root: the bundle's directory.

    Raises:
        InputError: there is no bundle, or its manifest is none.
    """
    path = root / NAME
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise _wrong(
            path, f"no bundle here: {error.strerror}; `lmcache-fleet bundle PLAYBOOK -o DIR` makes one"
        ) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _wrong(path, f"not a bundle's manifest ({where}: {first['msg']}); {_REMEDY}") from None
    named = {
        *manifest.tools.values(),
        *(item for step in manifest.packages for item in (*step.files, *step.urls.values())),
        *(item for model in manifest.models.values() for item in model.values()),
        *([*manifest.system.debs, manifest.system.index] if manifest.system else ()),
    }
    unlisted = sorted(named - set(manifest.files))
    if unlisted:
        raise _wrong(path, f"{unlisted[0]} is used and not listed; {_REMEDY}")
    return Bundle(root, manifest)


def damage(bundle: Bundle, prefix: str = "") -> list[Problem]:
    """What is not as the manifest says: files that are missing, altered or of another size.

    Args:
        bundle: the bundle; all of its files are read.
        prefix: only files whose path begins with it.
    """
    found = []
    for path, wanted in sorted(bundle.manifest.files.items()):
        if not path.startswith(prefix):
            continue
        file = bundle.root / path
        if not file.is_file():
            found.append(Problem(str(file), 0, 0, "", f"missing from the bundle; {_REMEDY}"))
        elif file.stat().st_size != wanted.size or file_sha256(file) != wanted.sha256:
            found.append(
                Problem(str(file), 0, 0, "", f"not the file that the manifest lists (sha256 differs); {_REMEDY}")
            )
    return found


def _wrong(path: Path, message: str) -> InputError:
    return InputError([Problem(str(path), 0, 0, "", message)])
