"""The one accelerator model that every vendor's tool is read into."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lmcache_fleet.plain import Plain


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds accelerator memory, as the vendor's tool lists it.

    Args:
        npu_id: the card the row names, in the tool's own numbering.
        chip_id: the chip on that card; None where the tool has no such column.
        pid: process id on the host; None where the tool hides it.
        name: process name as printed; empty when the tool printed none.
        used_mb: memory held, MiB; None when not printed.
        container_pid: process id inside its container; None where the tool has no such column or prints NA.
    """

    npu_id: int
    chip_id: int | None
    pid: int | None
    name: str
    used_mb: int | None
    container_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator die as software sees it.

    Args:
        npu_id: card number in the tool's own numbering (not always contiguous).
        chip_id: die on that card; None where the tool has no such column.
        name: chip name as printed (`910B3`, `NVIDIA H100 80GB HBM3`).
        health: health word as printed (`OK`, `Warning`, `Alarm`); None where not printed.
        bus_id: PCI address; None where the tool prints NA or has no such column.
        memory_kind: `HBM`, `DDR` or `VRAM`.
        memory_used_mb: used device memory, MiB; None when not printed.
        memory_total_mb: total device memory, MiB; None when not printed.
        logic_id: number that software uses to select the die; None when not printed.
        extra: what else the tool prints and some reader wants (power, uuid, compute capability).
    """

    npu_id: int
    chip_id: int | None
    name: str
    health: str | None
    bus_id: str | None
    memory_kind: str | None
    memory_used_mb: int | None
    memory_total_mb: int | None
    logic_id: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accelerators(Plain):
    """What one host's vendor tool said.

    Args:
        vendor: `ascend`, `cuda`, `rocm`, `xpu`, `musa`, `maca` or `cpu`.
        state: `ok`, or the named reason why the list can't be trusted (`tool-missing`, `device-in-use`,
            `dcmi-init-failed`, `library-missing`, `driver-not-loaded`, `unknown-header`, `truncated`, ...).
        message: the line of the output that the state was judged by; empty when ok.
        tool_version: version of the vendor's tool.
        driver_version: version of the kernel driver, where the output names it.
        chips: the dies, in the order printed.
        processes: the processes that hold memory, in the order printed.
    """

    vendor: str
    state: str
    message: str = ""
    tool_version: str | None = None
    driver_version: str | None = None
    chips: tuple[Chip, ...] = ()
    processes: tuple[Process, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def npu_count(self) -> int:
        """Number of distinct cards."""
        return len({chip.npu_id for chip in self.chips})

    @property
    def chip_count(self) -> int:
        """Number of dies."""
        return len(self.chips)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data, with the two counts spelt out."""
        return {**asdict(self), "npu_count": self.npu_count, "chip_count": self.chip_count}
