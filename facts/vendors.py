"""One view of the accelerator for every vendor: which facts to read, and what they amount to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version
from pyinfra.api import FactBase

from facts.ascend import CannToolkits, Driver
from facts.maca import MxSmi
from facts.musa import MthreadsGmi
from facts.npu_smi import NpuSmiBoard, NpuSmiInfo
from facts.nvidia import NvidiaSmi
from facts.rocm import RocmSmi
from facts.xpu import XpuSmi
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


def _one_tool(fact: type[FactBase[Accelerators]]) -> tuple[tuple[Part, ...], Callable[[Read], AcceleratorView]]:
    """A vendor whose tool tells cards, driver and toolkit in one answer."""

    def observe(read: Read) -> AcceleratorView:
        seen: Accelerators = read(fact)
        extra = seen.extra
        toolkit = next((extra[name] for name in _TOOLKITS if extra.get(name)), None)
        soc = next((str(chip.extra["gfx"]) for chip in seen.chips if chip.extra.get("gfx")), None)
        return AcceleratorView(seen, soc, _version(toolkit), _version(seen.driver_version))

    return ((fact, {}),), observe


_TOOLKITS = ("toolkit_version", "cuda_version", "rocm_version", "maca_version")


def _version(text: object) -> Version | None:
    try:
        return Version(str(text)) if text else None
    except InvalidVersion:
        return None


_VENDORS: dict[str, tuple[tuple[Part, ...], Callable[[Read], AcceleratorView]]] = {
    "cpu": ((), _nothing),
    "ascend": (((NpuSmiInfo, {}), (NpuSmiBoard, {}), (CannToolkits, {}), (Driver, {})), _ascend),
    "cuda": _one_tool(NvidiaSmi),
    "rocm": _one_tool(RocmSmi),
    "xpu": _one_tool(XpuSmi),
    "musa": _one_tool(MthreadsGmi),
    "maca": _one_tool(MxSmi),
}
