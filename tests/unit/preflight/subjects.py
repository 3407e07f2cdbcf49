"""A host on which nothing stands in the way of the Ascend playbook, and how to make it worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from packaging.version import Version

from lmcache_fleet.accelerators import Accelerators, Chip
from lmcache_fleet.playbook.load import read_playbook, resolve
from lmcache_fleet.playbook.model import Playbook, StepBase
from lmcache_fleet.preflight.observation import (
    AscendSeen,
    ControlObservation,
    HostObservation,
    NodeSeen,
    PythonSeen,
    Space,
    Subject,
    ToolkitSeen,
    UnitSeen,
)
from lmcache_fleet.repository import ROOT

CANN = ToolkitSeen(
    "/usr/local/Ascend/cann-9.1.0", "9.1.0", "x86_64", ("910b",), ("Ascend910B3",), ("/usr/local/Ascend/cann",)
)
OLD_CANN = ToolkitSeen("/usr/local/Ascend/cann-8.5.0", "8.5.0", "x86_64", ("910b",), ("Ascend910B3",))
CHIPS = tuple(Chip(number, 0, "910B3", "OK", None, "HBM", 3403, 65536) for number in range(8))
NODES = tuple(
    NodeSeen(path, "660", "HwHiAiUser")
    for path in (*(f"/dev/davinci{number}" for number in range(8)), "/dev/davinci_manager", "/dev/devmm_svm")
)
GOOD = HostObservation(
    arch="x86_64",
    os_id="ubuntu",
    os_version="24.04",
    glibc="2.39",
    memory_gb=1024,
    memory_available_gb=900,
    init="systemd",
    uid=0,
    package_manager="apt-get",
    skew_s=0.0,
    packages=("cmake", "ninja-build", "libnuma-dev"),
    shell="/usr/bin/dash",
    headers=("numaif.h",),
    commands={"g++": "", "cmake": "3.28.3"},
    spaces={
        "prefix": Space(500, 10_000_000, ("rw",)),
        "tmp": Space(50),
        "shm": Space(100),
        "kv": Space(500),
    },
    login_s=0.1,
    pythons=(PythonSeen("/usr/bin/python3.12", "3.12.3"),),
    toolkit_env={"ASCEND_HOME_PATH": "/usr/local/Ascend/cann-9.1.0"},
    accelerators=Accelerators("ascend", "ok", chips=CHIPS),
    soc="Ascend910B3",
    driver=Version("25.5.1"),
    toolkit=Version("9.1.0"),
    ascend=AscendSeen(
        driver="25.5.1",
        firmware="7.8.0.6.201",
        firmware_range="[7.0.0,8.9.9]",
        install_user="HwHiAiUser",
        toolkits=(CANN,),
        toolkit=CANN.path,
        nnal="9.1.0",
        abis=("0", "1"),
        nodes=NODES,
    ),
)
UNIT = "lmcache-fleet-vllm.service"


def playbook(name: str = "ascend", arch: str = "x86_64", **variables: Any) -> Playbook:
    """A playbook of the checkout, resolved."""
    document = read_playbook(ROOT / "playbooks" / f"{name}.yaml")
    return resolve(document, variables, arch=arch, prefix="/opt/lmcache-fleet", host="h1")


def step(kind: type[StepBase], book: Playbook | None = None, **fields: Any) -> Playbook:
    """The playbook with other fields in all of its steps of one kind."""
    book = book or playbook()
    return book.model_copy(
        update={"steps": [item.model_copy(update=fields) if isinstance(item, kind) else item for item in book.steps]}
    )


def without(kind: type[StepBase], book: Playbook | None = None) -> Playbook:
    """The playbook without its steps of one kind."""
    book = book or playbook()
    return book.model_copy(update={"steps": [item for item in book.steps if not isinstance(item, kind)]})


def requiring(**fields: Any) -> Playbook:
    """The playbook with other requirements."""
    book = playbook()
    return book.model_copy(update={"requires": book.requires.model_copy(update=fields)})


def accelerator(**fields: Any) -> Playbook:
    """The playbook with other requirements on the accelerator."""
    wanted = playbook().requires.accelerator
    assert wanted is not None
    return requiring(accelerator=wanted.model_copy(update=fields))


def on(book: Playbook | None = None, control: ControlObservation | None = None, **host: Any) -> Subject:
    """The playbook on the good host with some observations changed."""
    return Subject(book or playbook(), replace(GOOD, **host), control or ControlObservation())


def ascend(book: Playbook | None = None, host: dict[str, Any] | None = None, **fields: Any) -> Subject:
    """The same with what is installed for Ascend changed."""
    assert GOOD.ascend is not None
    return on(book, ascend=replace(GOOD.ascend, **fields), **(host or {}))


def smi(state: str, message: str = "said so", **fields: Any) -> Subject:
    """The same with another answer of the vendor's tool."""
    return on(accelerators=Accelerators("ascend", state, message), **fields)


def chips(*changed: Chip) -> Accelerators:
    """The good cards, some of them replaced."""
    by_id = {chip.npu_id: chip for chip in changed}
    return Accelerators("ascend", "ok", chips=tuple(by_id.get(chip.npu_id, chip) for chip in CHIPS))


def running(**fields: Any) -> dict[str, UnitSeen]:
    """Our unit, running."""
    seen = {"text": "# Written by lmcache-fleet", "running": True, "hash_seed": "0"}
    return {UNIT: UnitSeen(**{**seen, **fields})}
