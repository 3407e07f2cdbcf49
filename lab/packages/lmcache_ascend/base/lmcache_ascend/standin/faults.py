"""Faults that a test switches on: words in an environment variable or in a file of the host."""

import contextlib
import os
from pathlib import Path

FILE = Path("/etc/lmcache-fleet-lab/faults")


def on(name: str) -> bool:
    """Whether a fault is wanted: ``degraded``, ``corrupt_kv``, ``lookup_only``."""
    words = os.environ.get("LMCACHE_FLEET_LAB_FAULTS", "")
    with contextlib.suppress(OSError):
        words += " " + FILE.read_text()
    return name in words.replace(",", " ").split()
