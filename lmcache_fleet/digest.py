"""Stable digests of plain data."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no white space: equal data gives equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any, length: int = 12) -> str:
    """The first `length` hex digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def text_digest(text: str | bytes) -> str:
    """The full SHA-256 of a text, as files on hosts are compared."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()
