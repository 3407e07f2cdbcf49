"""Finds the corpus of real outputs, which is not part of the repository."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("LMCACHE_FLEET_CORPUS") or Path(__file__).resolve().parents[4] / "shared" / "corpus")


def rows(part: str) -> list[dict[str, Any]]:
    """Index rows with their right values parsed, or one row that says why there are none."""
    index = ROOT / part / "INDEX.tsv"
    if not index.is_file():
        return [{"file": "absent", "missing": f"no corpus at {index} (set LMCACHE_FLEET_CORPUS)"}]
    with index.open(encoding="utf-8", newline="") as handle:
        found = list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
    for row in found:
        row["expected"] = json.loads(row["expected_json"])
    return found


def text(part: str, row: dict[str, Any]) -> str:
    """A file as it came, line ends included."""
    return (ROOT / part / row["file"]).read_bytes().decode("utf-8", errors="replace")


def named(text: str) -> list[str]:
    """`A x3,B` spelt out."""
    names: list[str] = []
    for item in text.split(","):
        name, _, count = item.rpartition(" x")
        names += [name] * int(count) if name and count.isdigit() else [item]
    return names
