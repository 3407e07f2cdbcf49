"""Who decided what, for good: a line of JSON for each decision that a later run goes by."""

from __future__ import annotations

import getpass
import json
import os
import socket
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lmcache_fleet.store import store_root


def audit(action: str, about: dict[str, Any], root: Path | None = None) -> Path:
    """Write a decision down; on disk before anything goes by it.

    Args:
        action: what was decided, such as `adopt`.
        about: plain data about it; never a secret.
        root: the artifact store, if not the usual one.

    Returns:
        The log's file.
    """
    path = (root or store_root()) / "audit.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    line = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "who": f"{os.environ.get('SUDO_USER') or getpass.getuser()}@{socket.gethostname()}",
        "action": action,
        **about,
    }
    with path.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(line, sort_keys=True) + "\n")
        handle.flush()
        os.fsync(handle.fileno())
    return path
