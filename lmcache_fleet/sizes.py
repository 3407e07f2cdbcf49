"""Sizes as people read them."""

from __future__ import annotations


def readable(size: int) -> str:
    """A number of bytes with a fitting unit, such as `1.3 GB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
