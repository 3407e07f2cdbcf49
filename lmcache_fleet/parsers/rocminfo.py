"""`rocminfo`: the agents of ROCm's runtime. CPUs are agents too: cards are those whose device type is GPU.

Source: ROCm/rocminfo (`rocminfo.cc`) and outputs of real hosts.
"""

from __future__ import annotations

import re
from typing import Any

from lmcache_fleet.accelerators import Accelerators, Chip
from lmcache_fleet.parsers.rocm_errors import ERRORS, VENDOR
from lmcache_fleet.parsers.text import absent, clean_lines, mib, number, unprefixed, unread

_AGENT = re.compile(r"\bAgent (\d{1,4})$")
_PAIR = re.compile(r"\s*([A-Za-z][\w /]*?)\s*:\s*(.*)")
_FIGURE = re.compile(r"(\d{1,18})(?:\(0x[0-9a-f]+\))?\s*([KMG]?B)?", re.IGNORECASE)
_RULE = re.compile(r"\*{7}$|={10,}$")
_MODULE = re.compile(r"ROCk module(?: version)? (\d\S*) is loaded", re.IGNORECASE)
_RUNTIME = re.compile(r"Runtime Version\s*:\s*(\S+)")
_END = "*** Done ***"


def parse_rocminfo(text: str) -> Accelerators:
    """Read `rocminfo`: one chip for each GPU agent, in the order of the runtime, which software selects by."""
    lines = unprefixed(clean_lines(text), _RULE)
    ended = any(_END in line for line in lines)
    agents: list[tuple[int, dict[str, str]]] = []
    for line in lines:
        start = _AGENT.search(line)
        pair = _PAIR.fullmatch(line)
        if start:
            agents.append((int(start[1]), {}))
        elif pair and agents and (ended or line is not lines[-1] or pair[1] == "Device Type"):
            # The last line of a cut answer may be cut in the middle of a number.
            _keep(agents[-1][1], pair[1], pair[2])
    chips: list[Chip] = []
    for agent, pairs in agents:
        if pairs.get("Device Type") == "GPU":
            chips.append(_chip(agent, pairs, len(chips)))
    driver = next((found[1] for line in lines if (found := _MODULE.search(line))), None)
    runtime = next((found[1] for line in lines if (found := _RUNTIME.search(line))), None)
    extra: dict[str, Any] = {"agents": len(agents)} | ({} if runtime is None else {"runtime_version": runtime})
    if not agents:
        state, message = unread(lines, ERRORS)
    elif not ended:
        state, message = "truncated", f"the output ends in agent {agents[-1][0]}"
    elif not chips:
        state, message = "no-devices", "no agent is a GPU"
    else:
        state, message = "ok", ""
    return Accelerators(VENDOR, state, message, None, driver, tuple(chips), extra=extra)


def _keep(pairs: dict[str, str], key: str, value: str) -> None:
    """The agent's own values come first; of what follows, the size of the first pool and the name of the first ISA."""
    if key == "Name" and "Name" in pairs:
        pairs.setdefault("ISA Name", value)
    elif key == "Size" and "Segment" in pairs:
        pairs.setdefault("Pool Size", value)
    elif key != "Size":
        pairs.setdefault(key, value)


def _chip(agent: int, pairs: dict[str, str], place: int) -> Chip:
    def figure(key: str) -> int | None:
        found = _FIGURE.match(pairs.get(key, ""))
        return number(found[1]) if found else None

    pool = _FIGURE.match(pairs.get("Pool Size", ""))
    address, domain = figure("BDFID"), figure("Domain") or 0
    bus = None
    if address is not None and address < 1 << 16 and domain < 1 << 32:
        bus = f"{domain:04x}:{address >> 8:02x}:{address >> 3 & 31:02x}.{address & 7}"
    gfx, marketing = pairs.get("Name", ""), pairs.get("Marketing Name", "")
    extra: dict[str, Any] = {
        "agent": agent,
        "gfx": gfx,
        "node": figure("Node"),
        "uuid": pairs.get("Uuid"),
        "compute_units": figure("Compute Unit"),
        "isa": pairs.get("ISA Name"),
    }
    return Chip(
        npu_id=place,
        chip_id=None,
        name=gfx if absent(marketing) else marketing,
        health=None,
        bus_id=bus,
        memory_kind="VRAM",
        memory_used_mb=None,
        memory_total_mb=mib(f"{pool[1]} {pool[2]}") if pool and pool[2] else None,
        logic_id=place,
        extra={key: value for key, value in extra.items() if value is not None},
    )
