"""Everything that `npu-smi` prints, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lmcache_fleet.parsers.ascend_text import clean_lines, unread_state
from lmcache_fleet.parsers.npu_smi_info import parse_info
from lmcache_fleet.parsers.npu_smi_records import NpuList, NpuRecord, parse_list, parse_record
from lmcache_fleet.parsers.npu_smi_tables import (
    MapRow,
    NpuMapping,
    NpuProcesses,
    NpuTopology,
    parse_map,
    parse_proc_mem,
    parse_topo,
)

__all__ = [
    "PARSERS",
    "MapRow",
    "NpuList",
    "NpuMapping",
    "NpuProcesses",
    "NpuRecord",
    "NpuTopology",
    "parse_info",
    "parse_list",
    "parse_map",
    "parse_proc_mem",
    "parse_record",
    "parse_topo",
    "parse_version",
]

_VERSION = re.compile(r"npu-smi version\s*:?\s*(\S+)", re.IGNORECASE)


def parse_version(text: str) -> dict[str, Any]:
    """Read `npu-smi -v`: `state`, `message` and `tool_version`."""
    lines = clean_lines(text)
    found = _VERSION.search("\n".join(lines))
    if found:
        return {"state": "ok", "message": "", "tool_version": found[1]}
    state, message = unread_state(lines)
    return {"state": state, "message": message, "tool_version": None}


def _record(text: str) -> dict[str, Any]:
    return parse_record(text).as_json()


PARSERS: dict[str, Callable[[str], Any]] = {
    "npu-smi-info": lambda text: parse_info(text).as_json(),
    "npu-smi-list": lambda text: parse_list(text).as_json(),
    "npu-smi-map": lambda text: parse_map(text).as_json(),
    "npu-smi-topo": lambda text: parse_topo(text).as_json(),
    "npu-smi-proc-mem": lambda text: parse_proc_mem(text).as_json(),
    "npu-smi-version": parse_version,
    **dict.fromkeys(
        (
            f"npu-smi-{kind}"
            for kind in ("board", "usages", "health", "memory", "common", "power", "ecc", "temp", "phyid-remap")
        ),
        _record,
    ),
}
