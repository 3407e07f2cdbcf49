"""The artifact store on the control machine: built wheels by key, sources by content, evidence by host."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lmcache_fleet.digest import digest
from lmcache_fleet.repository import ROOT


def store_root() -> Path:
    """`$LMCACHE_FLEET_ARTIFACTS`, or `artifacts/` in the checkout."""
    given = os.environ.get("LMCACHE_FLEET_ARTIFACTS")
    return Path(given) if given else ROOT / "artifacts"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    seen = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            seen.update(block)
    return seen.hexdigest()


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A fresh directory that becomes `target` in one rename when the block ends well, and vanishes when it doesn't."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield staging
        staging.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


class RefusedArtifact(Exception):
    """A stored artifact is not what its manifest says."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A built wheel in the store.

    Args:
        path: the file.
        sha256: its hash.
        key: what it was built for.
    """

    path: Path
    sha256: str
    key: dict[str, Any]


class WheelStore:
    """Built wheels, addressed by the digest of their key.

    Args:
        root: the store's directory.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or store_root()) / "wheels"

    def folder(self, package: str, key: dict[str, Any]) -> Path:
        """Where the wheel of a key is, or will be."""
        return self.root / package / digest(key, 20)

    def find(self, package: str, key: dict[str, Any]) -> Wheel | None:
        """The wheel of a key; None when it was never built.

        Raises:
            RefusedArtifact: it is there, but truncated, altered, or stored under another key.
        """
        folder = self.folder(package, key)
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            path = folder / Path(manifest["wheel"]).name
            recorded, wanted = manifest["key"], manifest["sha256"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefusedArtifact(
                f"{folder}: the manifest can't be read ({error}); remove the folder to build anew"
            ) from error
        if recorded != key:
            raise RefusedArtifact(f"{folder}: the manifest is of another key; remove the folder to build anew")
        if not path.is_file() or file_sha256(path) != wanted:
            raise RefusedArtifact(f"{path}: not the file that the manifest recorded; remove the folder to build anew")
        return Wheel(path, wanted, key)

    def add(self, package: str, key: dict[str, Any], wheel: Path, sha256: str, built_on: str) -> Wheel:
        """Store a wheel that a host built.

        Raises:
            RefusedArtifact: the file is not the one whose hash the builder named.
        """
        if file_sha256(wheel) != sha256:
            raise RefusedArtifact(f"{wheel.name} from {built_on}: changed on the way, the hash differs")
        target = self.folder(package, key)
        with staged(target) as staging:
            shutil.copyfile(wheel, staging / wheel.name)
            manifest = {
                "wheel": wheel.name,
                "sha256": sha256,
                "size": wheel.stat().st_size,
                "key": key,
                "built_on": built_on,
                "built_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            }
            (staging / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True), encoding="utf-8")
        return Wheel(target / wheel.name, sha256, key)


def evidence_path(host: str, release: str, stage: str, root: Path | None = None) -> Path:
    """Where a host's evidence is kept on the control machine."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host)
    return (root or store_root()) / "evidence" / name / release / f"{stage}.json"


def save_evidence(host: str, release: str, stage: str, evidence: dict[str, Any], root: Path | None = None) -> Path:
    """Keep a host's evidence on the control machine, by host and release."""
    path = evidence_path(host, release, stage, root)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(evidence, indent=1, sort_keys=True), encoding="utf-8")
    part.replace(path)
    return path
