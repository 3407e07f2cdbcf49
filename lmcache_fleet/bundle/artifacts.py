"""Sources and built extensions of a bundle, put into the artifact store of the control machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from lmcache_fleet.bundle.manifest import Bundle
from lmcache_fleet.store import staged, store_root

_BELOW = "artifacts/"


def import_artifacts(bundle: Bundle, root: Path | None = None) -> list[str]:
    """Copy what the store lacks; what it has stays.

    Args:
        bundle: the bundle, its files checked.
        root: the store; the one of this machine if not given.

    Returns:
        Directories below the store that came anew.
    """
    store = root or store_root()
    inner = [path.removeprefix(_BELOW) for path in sorted(bundle.manifest.files) if path.startswith(_BELOW)]
    folders = sorted({str(Path(path).parent) for path in inner if Path(path).name != "tags.json"})
    added = [folder for folder in folders if not (store / folder).is_dir()]
    for folder in added:
        with staged(store / folder) as staging:
            for path in inner:
                if str(Path(path).parent) == folder:
                    shutil.copyfile(bundle.root / _BELOW / path, staging / Path(path).name)
    for path in inner:
        if Path(path).name == "tags.json":
            _merge(bundle.root / _BELOW / path, store / path)
    return added


def _merge(given: Path, known: Path) -> None:
    before = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else {}
    tags = {**json.loads(given.read_text(encoding="utf-8")), **before}
    if tags != before:
        known.parent.mkdir(parents=True, exist_ok=True)
        part = known.with_suffix(".part")
        part.write_text(json.dumps(tags, indent=1, sort_keys=True), encoding="utf-8")
        part.replace(known)
