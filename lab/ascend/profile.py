"""Hardware profiles: what a simulated host pretends to have."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

PROFILE_DIR = Path(__file__).resolve().parent.parent / "hardware"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Chips(_Strict):
    """The cards of a host and the die or dies on each."""

    frame: Literal["a2", "a3", "310p"]
    """Which layout the summary table has."""
    name: str
    """As in the summary table (``910B3``, ``Ascend910``, ``310P3``)."""
    board_name: str
    """``Chip Name`` of the board query."""
    npu_name: str | None = None
    """``NPU Name`` of the board query; only newer cards have it."""
    soc: str
    """The name the builds and the platform files use (``Ascend910B3``)."""
    ids: list[int]
    dies: int = 1
    memory_kind: Literal["HBM", "DDR"] = "HBM"
    memory_mb: int = 65536
    idle_mb: int = 3400
    hugepages: int = 0
    bus_ids: list[str]
    power_w: float | None = 95.0
    temp_c: int = 48
    product: str = "lab card"


class Card(_Strict):
    """What is wrong with one card."""

    health: Literal["OK", "Warning", "Alarm", "Critical"] = "OK"
    error_code: str = "NA"
    error_information: str = "NA"
    hidden_mb: int = 0
    """Memory in use by something that has no process row (another container's)."""


class Toolkit(_Strict):
    """One CANN tree on disk."""

    version: str
    ops: str | None = "910b"
    """The operator package installed beside the toolkit; ``null`` for none."""


class Driver(_Strict):
    """Driver and firmware as their version files tell."""

    version: str
    innerversion: str
    firmware: str
    firmware_max: str
    package_version: str | None = None


class Holder(_Strict):
    """A process that holds a card from boot."""

    npu: int
    megabytes: int
    name: str = "mindie_llm_back"


class Failure(_Strict):
    """What ``npu-smi`` prints instead of an answer, whatever it is asked."""

    lines: list[str]
    exit_code: int = 255
    stream: Literal["stdout", "stderr"] = "stdout"


class Profile(_Strict):
    """A whole host."""

    description: str
    experimental: bool = False
    chips: Chips
    cards: dict[int, Card] = Field(default_factory=dict)
    driver: Driver
    tool_version: str
    toolkits: list[Toolkit]
    default_toolkit: str
    nnal: str | None
    holders: list[Holder] = Field(default_factory=list)
    npu_smi_failure: Failure | None = None


def names() -> list[str]:
    """Gives the names of all Ascend profiles; those of other vendors name their vendor."""
    found = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in PROFILE_DIR.glob("*.yaml")}
    return sorted(name for name, data in found.items() if "vendor" not in data)


def load(name: str) -> Profile:
    """Reads a profile by name; raises ``ValueError`` that names the known ones."""
    path = PROFILE_DIR / f"{name}.yaml"
    if name not in names():
        raise ValueError(f"no hardware profile {name!r}; there are: {', '.join(names())}")
    data = yaml.safe_load(path.read_text())
    base = data.pop("base", None)
    if base is not None:
        data = {**yaml.safe_load((PROFILE_DIR / f"{base}.yaml").read_text()), **data}
    return Profile.model_validate(data)
