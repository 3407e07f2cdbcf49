"""One view of the accelerator for every vendor: which facts to read, and what they amount to.

A vendor's facts are imported when a playbook asks for that vendor: the parsers of all of them are a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from packaging.version import InvalidVersion, Version
from pyinfra.api import FactBase

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
    return [(fact, {}) for fact in _facts(vendor)]


def observe_accelerator(vendor: str, read: Read) -> AcceleratorView:
    """What the vendor's facts amount to.

    Args:
        vendor: as in `requires.accelerator.vendor`.
        read: `read(FactClass, **arguments)`, as the session's.
    """
    facts = _facts(vendor)
    if vendor == "ascend":
        return _ascend(*(read(fact) for fact in facts))
    return _one_tool(read(facts[0])) if facts else AcceleratorView()


def _facts(vendor: str) -> list[type[FactBase[Any]]]:
    return [getattr(import_module(module), name) for module, name in _FACTS[vendor]]


def _ascend(cards: Accelerators, board: Any, toolkits: Any, driver: Any) -> AcceleratorView:
    return AcceleratorView(
        accelerators=cards,
        soc=board.soc,
        toolkit=ascend_version(toolkits.default.version if toolkits.default else None),
        driver=ascend_version(driver.version),
    )


def _one_tool(seen: Accelerators) -> AcceleratorView:
    """A vendor whose tool tells cards, driver and toolkit in one answer."""
    extra = seen.extra
    toolkit = next((extra[name] for name in _TOOLKITS if extra.get(name)), None)
    soc = next((str(chip.extra["gfx"]) for chip in seen.chips if chip.extra.get("gfx")), None)
    return AcceleratorView(seen, soc, _version(toolkit), _version(seen.driver_version))


_TOOLKITS = ("toolkit_version", "cuda_version", "rocm_version", "maca_version")


def _version(text: object) -> Version | None:
    try:
        return Version(str(text)) if text else None
    except InvalidVersion:
        return None


# Module and class of each vendor's facts.
_FACTS: dict[str, tuple[tuple[str, str], ...]] = {
    "cpu": (),
    "ascend": (
        ("facts.npu_smi", "NpuSmiInfo"), ("facts.npu_smi", "NpuSmiBoard"), ("facts.ascend", "CannToolkits"),
        ("facts.ascend", "Driver"),
    ),
    "cuda": (("facts.nvidia", "NvidiaSmi"),),
    "rocm": (("facts.rocm", "RocmSmi"),),
    "xpu": (("facts.xpu", "XpuSmi"),),
    "musa": (("facts.musa", "MthreadsGmi"),),
    "maca": (("facts.maca", "MxSmi"),),
}  # fmt: skip
