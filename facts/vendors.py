"""One view of the accelerator for every vendor: which facts to read, and what they amount to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packaging.version import Version
from pyinfra.api import FactBase

from facts.ascend import CannToolkits, Driver
from facts.npu_smi import NpuSmiBoard, NpuSmiInfo
from lmcache_fleet.accelerators import Accelerators
from lmcache_fleet.parsers.ascend_version import ascend_version

Part = tuple[type[FactBase[Any]], dict[str, Any]]
Read = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class AcceleratorView:
    """What an accelerator's facts amount to; None where the host didn't say.

    Args:
        accelerators: cards, chips and processes.
        soc: SoC name as native builds need it.
        toolkit: version of the vendor's toolkit.
        driver: version of the kernel driver.
    """

    accelerators: Accelerators | None = None
    soc: str | None = None
    toolkit: Version | None = None
    driver: Version | None = None


def vendor_parts(vendor: str) -> list[Part]:
    """The facts to read for a vendor."""
    return list(_VENDORS[vendor][0])


def observe_accelerator(vendor: str, read: Read) -> AcceleratorView:
    """What the vendor's facts amount to.

    Args:
        vendor: as in `requires.accelerator.vendor`.
        read: `read(FactClass, **arguments)`, as the session's.
    """
    return _VENDORS[vendor][1](read)


def _nothing(read: Read) -> AcceleratorView:
    return AcceleratorView()


def _ascend(read: Read) -> AcceleratorView:
    toolkits, driver = read(CannToolkits), read(Driver)
    return AcceleratorView(
        accelerators=read(NpuSmiInfo),
        soc=read(NpuSmiBoard).soc,
        toolkit=ascend_version(toolkits.default.version if toolkits.default else None),
        driver=ascend_version(driver.version),
    )


_VENDORS: dict[str, tuple[tuple[Part, ...], Callable[[Read], AcceleratorView]]] = {
    "cpu": ((), _nothing),
    "ascend": (((NpuSmiInfo, {}), (NpuSmiBoard, {}), (CannToolkits, {}), (Driver, {})), _ascend),
}
