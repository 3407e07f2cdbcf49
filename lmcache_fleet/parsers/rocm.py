"""What `rocm-smi`, `amd-smi` and `rocminfo` print, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmcache_fleet.parsers.amd_smi import parse_amd_smi, parse_amd_smi_version
from lmcache_fleet.parsers.rocm_smi import parse_rocm_smi
from lmcache_fleet.parsers.rocminfo import parse_rocminfo

__all__ = ["PARSERS", "parse_amd_smi", "parse_amd_smi_version", "parse_rocm_smi", "parse_rocminfo"]


def _rocm_smi(text: str) -> dict[str, Any]:
    return parse_rocm_smi(text).as_json()


PARSERS: dict[str, Callable[[str], Any]] = {
    # One reader: sections, JSON and CSV are told apart by what they look like, and may come together.
    "rocm-smi": _rocm_smi,
    "rocm-smi-topo": _rocm_smi,
    "rocm-smi-meminfo": _rocm_smi,
    "rocm-smi-showproduct": _rocm_smi,
    "amd-smi": lambda text: parse_amd_smi(text).as_json(),
    "amd-smi-version": parse_amd_smi_version,
    "rocminfo": lambda text: parse_rocminfo(text).as_json(),
}
