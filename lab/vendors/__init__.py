"""Stand-in hardware of the other vendors: their tools, version files, and the Python stack of their images."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from lab import boot_units
from lab.ascend.profile import PROFILE_DIR
from lab.packages import builds
from lab.packages.wheel import unpacked, write_wheel

_HERE = Path(__file__).resolve().parent
_C10 = b"_ZN3c105ErrorC1ENS_14SourceLocationE"
_NEW_STRING = b"NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Stack(_Strict):
    """What a vendor's image brings for the host's own Python."""

    torch: str
    vllm: str | None = None
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None
    cxx11_abi: bool = True
    distributions: dict[str, str] = Field(default_factory=dict)


class Cards(_Strict):
    """The cards of a host, all alike."""

    name: str
    count: int
    memory_mb: int
    used_mb: int = 0
    compute_capability: str | None = None
    gfx: str | None = None


class VendorHost(_Strict):
    """A whole host."""

    description: str
    vendor: Literal["cuda", "rocm", "xpu", "musa", "maca"]
    cards: Cards
    tool_version: str
    driver: str
    runtime: str | None = None
    """The newest CUDA that the driver serves, or the version of ROCm, MUSA or MACA."""
    stack: Stack | None = None
    failure: str | None = None
    """What the tool says instead of an answer, with status 9."""

    @property
    def nodes(self) -> dict[str, list[str]]:
        """Device nodes: those that every process of the vendor's opens, and one a card."""
        control, card = NODES[self.vendor]
        first = 128 if "render" in card else 0
        return {"control": control, "cards": [f"{card}{first + number}" for number in range(self.cards.count)]}


_RENDER = "/dev/dri/renderD"
#: Vendor → nodes for all cards, and how the name of a card's own begins.
NODES: dict[str, tuple[list[str], str]] = {
    "cuda": (["/dev/nvidiactl", "/dev/nvidia-uvm"], "/dev/nvidia"),
    "rocm": (["/dev/kfd"], _RENDER),
    "xpu": ([], _RENDER),
    "musa": ([], _RENDER),
    "maca": (["/dev/mxcd"], _RENDER),
}
_UNIT = "lab-cards.service"
# NVIDIA's driver lets everybody in; the others' nodes are of the group `render`, which udev makes on a real host.
_MAKE_NODES = (
    "/bin/sh -euc 'getent group render >/dev/null || groupadd --system render; mkdir -p /dev/dri; "
    "for node in {nodes}; do [ -e $$node ] || mknod -m {mode} $$node c 1 3; chgrp {group} $$node; done'"
)

TOOLS = {
    "cuda": ["nvidia-smi"],
    "rocm": ["amd-smi", "rocm-smi", "rocminfo"],
    "xpu": ["xpu-smi"],
    "musa": ["mthreads-gmi"],
    "maca": ["mx-smi"],
}


#: What stands for each vendor's compiler: the host's own.
COMPILERS = {
    "cuda": ["usr/local/cuda/bin/nvcc"],
    "rocm": ["opt/rocm/bin/hipcc"],
    "xpu": ["opt/intel/oneapi/compiler/bin/icpx"],
    "musa": ["usr/local/musa/bin/mcc"],
    "maca": ["opt/maca/tools/cu-bridge/bin/cucc"],
}


def names() -> list[str]:
    """The profiles of other vendors than Ascend."""
    return sorted(path.stem for path in PROFILE_DIR.glob("*.yaml") if vendor_of(path.stem) != "ascend")


def vendor_of(profile: str) -> str:
    """The vendor of a profile."""
    data = yaml.safe_load((PROFILE_DIR / f"{profile}.yaml").read_text(encoding="utf-8"))
    return str(data.get("vendor", "ascend"))


def load(name: str) -> VendorHost:
    """Reads a profile by name."""
    data = yaml.safe_load((PROFILE_DIR / f"{name}.yaml").read_text(encoding="utf-8"))
    base = data.pop("base", None)
    if base:
        data = {**yaml.safe_load((PROFILE_DIR / f"{base}.yaml").read_text(encoding="utf-8")), **data}
    return VendorHost.model_validate(data)


def install(root: Path, profile: str) -> VendorHost:
    """Makes the file system below *root* look like a host with the hardware of *profile*.

    What another profile of these vendors put there before is taken away, on a running host as well.
    """
    host = load(profile)
    remove(root)
    state = root / "etc/lmcache-fleet-lab"
    state.mkdir(parents=True, exist_ok=True)
    told = {**host.model_dump(mode="json"), "nodes": host.nodes}
    (state / "vendor.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    _write_unit(root, host)
    for tool in TOOLS[host.vendor]:
        place = root / f"usr/local/sbin/{tool}"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_HERE / "tools.py", place)
        place.chmod(0o755)
    for path, text in _version_files(host).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    for path in COMPILERS[host.vendor]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text('#!/bin/sh\nexec cc "$@"\n', encoding="utf-8")
        (root / path).chmod(0o755)
    if host.stack:
        for packages in dist_packages(root):
            _write_stack(packages, host.stack)
    return host


def remove(root: Path) -> None:
    """Takes away what `install` put there."""
    for tools in TOOLS.values():
        for tool in tools:
            (root / f"usr/local/sbin/{tool}").unlink(missing_ok=True)
    for place in ("", "sysinit.target.wants/"):
        (root / boot_units.UNITS / f"{place}{_UNIT}").unlink(missing_ok=True)
    for path in ("opt/rocm", "usr/local/musa", "opt/maca", "usr/local/cuda", "opt/intel"):
        shutil.rmtree(root / path, ignore_errors=True)
    for packages in dist_packages(root):
        listing = packages / ".lab-stack.json"
        if listing.is_file():
            for name in json.loads(listing.read_text(encoding="utf-8")):
                place = packages / name
                shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
            listing.unlink()


def _version_files(host: VendorHost) -> dict[str, str]:
    if host.vendor == "rocm" and host.runtime:
        return {"opt/rocm/.info/version": f"{host.runtime}-43\n"}
    if host.vendor == "musa" and host.runtime:
        text = json.dumps({"musa_toolkit": {"version": host.runtime}})
        return {"usr/local/musa/version.json": text + "\n"}
    if host.vendor == "xpu":
        return {"opt/intel/oneapi/setvars.sh": "export PATH=/opt/intel/oneapi/compiler/bin:$PATH\n"}
    return {}


def dist_packages(root: Path) -> list[Path]:
    """Where the distribution's Python looks for what was installed beside it."""
    return [
        root / "usr/local/lib" / path.name / "dist-packages"
        for path in sorted((root / "usr/lib").glob("python3.*"))
        if path.is_dir()
    ]


def _write_unit(root: Path, host: VendorHost) -> None:
    open_to_all = host.vendor == "cuda"
    nodes = " ".join([*host.nodes["control"], *host.nodes["cards"]])
    mode, group = ("666", "root") if open_to_all else ("660", "render")
    command = _MAKE_NODES.format(nodes=nodes, mode=mode, group=group)
    boot_units.install_devices_unit(root, _UNIT, "Simulated device nodes of accelerator cards", command)


def _write_stack(packages: Path, stack: Stack) -> None:
    tops = set()
    for (name, version), (files, entry_points) in _stack_files(stack).items():
        for path, data in unpacked(name, version, files, entry_points=entry_points).items():
            tops.add(path.partition("/")[0])
            (packages / path).parent.mkdir(parents=True, exist_ok=True)
            (packages / path).write_bytes(data)
    (packages / ".lab-stack.json").write_text(json.dumps(sorted(tops)), encoding="utf-8")


def stack_wheels(profile: str, out: Path) -> list[Path]:
    """The Python stack of a vendor's image as wheels; its vLLM knows the cards by what the container is given.

    Args:
        profile: of the host that has the same stack beside its own Python.
        out: where to write them.
    """
    host = load(profile)
    assert host.stack
    return [
        write_wheel(out, name, version, files, entry_points=entry_points, summary="Lab stand-in")
        for (name, version), (files, entry_points) in _stack_files(host.stack, NODES[host.vendor]).items()
    ]


def cdi_spec(profile: str) -> str:
    """What `nvidia-ctk cdi generate` writes for a host: its nodes, by the names that a container engine knows.

    Args:
        profile: of a host with NVIDIA's cards.
    """
    nodes = load(profile).nodes

    def device(name: str, cards: list[str]) -> dict[str, object]:
        return {"name": name, "containerEdits": {"deviceNodes": [{"path": path} for path in cards]}}

    cards = [device(str(number), [path]) for number, path in enumerate(nodes["cards"])]
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [*cards, device("all", nodes["cards"])],
        "containerEdits": {"deviceNodes": [{"path": path} for path in nodes["control"]]},
    }
    return yaml.safe_dump(spec, sort_keys=False)


_Files = dict[tuple[str, str], tuple[dict[str, bytes], str]]


def _stack_files(stack: Stack, nodes: tuple[list[str], str] | None = None) -> _Files:
    """Distribution and version → its files and entry points."""
    values = {"cuda": stack.cuda, "hip": stack.hip, "xpu": stack.xpu}
    lines = [f"{name}: Optional[str] = {value!r}\n" for name, value in values.items()]
    text = f"from typing import Optional\n\n__version__ = {stack.torch!r}\ndebug = False\n" + "".join(lines)
    symbol = _C10 + (_NEW_STRING if stack.cxx11_abi else b"Ss")
    torch = {
        "torch/version.py": text.encode(),
        "torch/_C.py": f"_GLIBCXX_USE_CXX11_ABI = {stack.cxx11_abi}\n".encode(),
        "torch/lib/libc10.so": b"stand-in\0" + symbol + b"\0",
    }
    made: _Files = {("torch", stack.torch): (builds.torch(stack.torch, platform.machine()) | torch, "")}
    if stack.vllm:
        made["vllm", stack.vllm] = (builds.vllm(stack.vllm, nodes), builds.VLLM_PLATFORM)
    for name, version in stack.distributions.items():
        module = f"{name.replace('-', '_')}/__init__.py"
        made[name, version] = ({module: f"__version__ = {version!r}\n".encode()}, "")
    return made
