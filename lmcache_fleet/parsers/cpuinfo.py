"""Processors and memory of a host: `/proc/cpuinfo`, `lscpu`, the kernel's NUMA nodes, `/proc/meminfo`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lmcache_fleet.parsers.text import clean_lines, number
from lmcache_fleet.plain import Plain

# Flags of the kernel that engines choose their kernels by; x86 and then Arm.
FEATURES = (
    "avx2",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "asimddp",
    "sve",
    "sve2",
    "bf16",
    "i8mm",
)
_PAIR = re.compile(r"\s*([^:]*[^:\s])\s*:\s*(.*)")
_FLAGS = ("flags", "features")


@dataclass(frozen=True, slots=True)
class Processors(Plain):
    """What `/proc/cpuinfo` says.

    Args:
        state: `ok`, `empty` or `unrecognized`.
        message: the line that the state was judged by; empty when ok.
        vendor: maker's id (`GenuineIntel`, `AuthenticAMD`, `0x48` on Arm).
        model: name of the model; None where the kernel doesn't know it (Arm).
        flags: all flags, in the order printed.
        sockets: number of packages; None where not printed (Arm).
        cores: number of cores without their second threads; None likewise.
        threads: number of processors that the kernel runs on.
    """

    state: str
    message: str = ""
    vendor: str | None = None
    model: str | None = None
    flags: tuple[str, ...] = ()
    sockets: int | None = None
    cores: int | None = None
    threads: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """Those of the flags that engines choose by."""
        return features_of(self.flags)


def features_of(flags: Iterable[str]) -> tuple[str, ...]:
    """Those of the flags that engines choose by, in a fixed order."""
    there = set(flags)
    return tuple(flag for flag in FEATURES if flag in there)


def parse_cpuinfo(text: str) -> Processors:
    """Read `/proc/cpuinfo`, whole or with the flags of the first processor only."""
    lines = clean_lines(text, data=True)
    first: dict[str, str] = {}
    threads = 0
    package = ""
    packages: set[str] = set()
    cores: set[tuple[str, str]] = set()
    for line in lines:
        pair = _PAIR.fullmatch(line)
        if not pair:
            continue
        key, value = pair[1].lower(), pair[2].strip()
        if key == "processor":
            if number(value) is not None:
                threads += 1
            else:
                # Older Arm kernels name the model here.
                first.setdefault("model name", value)
        elif key == "physical id":
            package = value
            packages.add(value)
        elif key == "core id":
            cores.add((package, value))
        else:
            first.setdefault(key, value)
    if not threads:
        shown = next((line.strip()[:200] for line in lines if line.strip()), "")
        return Processors("unrecognized" if shown else "empty", shown)
    flags = next((first[key] for key in _FLAGS if key in first), "")
    return Processors(
        "ok",
        vendor=first.get("vendor_id") or first.get("cpu implementer"),
        model=first.get("model name") or first.get("cpu") or None,
        flags=tuple(flags.split()),
        sockets=len(packages) or None,
        cores=len(cores) or None,
        threads=threads,
    )


def parse_lscpu(text: str) -> dict[str, Any]:
    """Read `lscpu`: `state`, `message`, and of it model, vendor, sockets, cores, threads and NUMA nodes."""
    pairs: dict[str, str] = {}
    for line in clean_lines(text, data=True):
        pair = _PAIR.fullmatch(line)
        if pair:
            pairs.setdefault(pair[1].lower(), pair[2].strip())
    known = {"architecture", "cpu(s)"} & pairs.keys()
    sockets = number(pairs.get("socket(s)", pairs.get("cluster(s)")))
    each = number(pairs.get("core(s) per socket", pairs.get("core(s) per cluster")))
    model = pairs.get("model name", pairs.get("bios model name"))
    return {
        "state": "ok" if known else "unrecognized" if pairs or text.strip() else "empty",
        "message": "" if known else text.strip()[:200],
        "arch": pairs.get("architecture"),
        "vendor": pairs.get("vendor id"),
        "model": None if model in {None, "", "-"} else model,
        "flags": tuple(pairs.get("flags", "").split()),
        "sockets": sockets,
        "cores": sockets * each if sockets and each and sockets < 10**6 and each < 10**6 else None,
        "threads": number(pairs.get("cpu(s)")),
        "numa_nodes": number(pairs.get("numa node(s)")),
    }


def cpu_count(cpus: str) -> int:
    """How many processors a kernel's list such as `0-31,64-95` names."""
    count = 0
    for part in cpus.split(","):
        ends = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part.strip())
        if ends:
            count += max(int(ends[2] or ends[1]) - int(ends[1]) + 1, 0)
    return count


PARSERS: dict[str, Callable[[str], Any]] = {
    "cpuinfo": lambda text: parse_cpuinfo(text).as_json(),
    "lscpu": parse_lscpu,
}
