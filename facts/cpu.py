"""The host's processors and memory: model, flags, cores, NUMA nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyinfra.api import FactBase

from lmcache_fleet.parsers.cpuinfo import cpu_count, features_of, parse_cpuinfo, parse_lscpu
from lmcache_fleet.parsers.sections import read_sections
from lmcache_fleet.parsers.text import number
from lmcache_fleet.plain import Plain

# Of /proc/cpuinfo only the first processor's block and what counts cores: the whole is megabytes on a large host.
_SCRIPT = """\
(
LC_ALL=C; export LC_ALL
part() { printf '@@section %s\\n%s\\n@@status %s\\n' "$1" "$3" "$2"; }
said=$(awk '/^[ \\t]*$/ { rest = 1 } !rest || /^(processor|physical id|core id)/' /proc/cpuinfo 2>&1)
part cpuinfo $? "$said"
part arch 0 "$(uname -m 2>/dev/null)"
if command -v lscpu >/dev/null 2>&1; then said=$(timeout 20 lscpu 2>/dev/null </dev/null); part lscpu $? "$said"; fi
said=$(for d in /sys/devices/system/node/node[0-9]*; do
  [ -r "$d/cpulist" ] || continue
  kb=$(sed -n 's/^.*MemTotal: *\\([0-9][0-9]*\\) kB.*$/\\1/p' "$d/meminfo" 2>/dev/null)
  printf '%s %s cpus=%s\\n' "${d##*/node}" "${kb:--}" "$(cat "$d/cpulist" 2>/dev/null)"
done); part nodes 0 "$said"
said=$(cat /proc/meminfo 2>&1); part meminfo $? "$said"
:
)"""
_NODE = re.compile(r"(\d{1,6}) (\d{1,18}|-) cpus=([\d,-]*)")
_MEMORY = re.compile(r"(\w+):\s+(\d{1,18})(?: kB)?")


@dataclass(frozen=True, slots=True)
class NumaNode(Plain):
    """One NUMA node.

    Args:
        id: its number.
        cpus: its processors as the kernel lists them (`0-31,64-95`); empty for a node of memory only.
        cpu_count: how many they are.
        memory_mb: its memory, MiB; None when not told.
    """

    id: int
    cpus: str
    cpu_count: int
    memory_mb: int | None


@dataclass(frozen=True, slots=True)
class Cpu(Plain):
    """Processors and memory; None where the host didn't say.

    Args:
        state: `ok`, or why the processors are not known: `no-answer`, `unreadable`, `truncated`, `unrecognized`.
        message: the line that the state was judged by; empty when ok.
        arch: machine name as `uname -m` prints it.
        vendor: the maker's id.
        model: name of the model.
        sockets: packages.
        cores: cores without their second threads.
        threads: processors that the kernel runs on.
        flags: all flags of the kernel.
        features: those of the flags that engines choose their kernels by (`avx512f`, `amx_tile`, `sve`, …).
        numa_nodes: the nodes in order.
        memory_mb: memory of the host, MiB.
        memory_available_mb: memory that a new process could have, MiB.
        huge_pages: reserved huge pages.
        huge_page_kb: size of one, KiB.
    """

    state: str
    message: str = ""
    arch: str | None = None
    vendor: str | None = None
    model: str | None = None
    sockets: int | None = None
    cores: int | None = None
    threads: int | None = None
    flags: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    memory_mb: int | None = None
    memory_available_mb: int | None = None
    huge_pages: int | None = None
    huge_page_kb: int | None = None

    @property
    def has_avx512(self) -> bool:
        """Whether AVX-512's foundation is there."""
        return "avx512f" in self.features

    @property
    def has_amx(self) -> bool:
        """Whether matrix tiles are there."""
        return "amx_tile" in self.features


class CpuInfo(FactBase[Cpu]):
    """Model, flags, cores, NUMA nodes and memory."""

    @staticmethod
    def default() -> Cpu:
        """The shell said nothing."""
        return Cpu("no-answer", "the host answered nothing")

    def command(self) -> str:
        """The shell command that reads it."""
        return _SCRIPT

    def process(self, output: list[str]) -> Cpu:
        """Read the command's output."""
        sections = {section.name: section for section in read_sections(output)}
        if not sections:
            return self.default()
        texts = {name: section.text for name, section in sections.items()}
        found = parse_cpuinfo(texts.get("cpuinfo", ""))
        more = parse_lscpu(texts.get("lscpu", ""))
        state, message = found.state, found.message
        if state != "ok" and more["state"] == "ok":
            state, message = "ok", ""
        elif state == "unrecognized" and sections["cpuinfo"].status:
            state = "unreadable"
        if any(section.status is None for section in sections.values()):
            state, message = "truncated", "the answer is cut off"
        memory = {
            pair[1]: int(pair[2])
            for line in texts.get("meminfo", "").splitlines()
            if (pair := _MEMORY.fullmatch(line.strip()))
        }
        flags = found.flags or more["flags"]
        nodes = (_NODE.fullmatch(line.strip()) for line in texts.get("nodes", "").splitlines())
        return Cpu(
            state,
            message,
            arch=texts.get("arch", "").strip() or more["arch"],
            vendor=found.vendor
            if found.vendor and not found.vendor.startswith("0x")
            else more["vendor"] or found.vendor,
            model=found.model or more["model"],
            sockets=found.sockets or more["sockets"],
            cores=found.cores or more["cores"],
            threads=found.threads or more["threads"],
            flags=flags,
            features=features_of(flags),
            numa_nodes=tuple(
                NumaNode(int(node[1]), node[3], cpu_count(node[3]), _mb(number(node[2])))
                for node in sorted((node for node in nodes if node), key=lambda node: int(node[1]))
            ),
            memory_mb=_mb(memory.get("MemTotal")),
            memory_available_mb=_mb(memory.get("MemAvailable")),
            huge_pages=memory.get("HugePages_Total"),
            huge_page_kb=memory.get("Hugepagesize"),
        )


def _mb(kb: int | None) -> int | None:
    return None if kb is None else kb // 1024
