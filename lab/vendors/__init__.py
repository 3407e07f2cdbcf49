"""Stand-in hardware of the other vendors: their tools, version files, and the Python stack of their images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from lab.ascend.profile import PROFILE_DIR

_HERE = Path(__file__).resolve().parent
_C10 = b"_ZN3c105ErrorC1ENS_14SourceLocationE"
_NEW_STRING = b"NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Stack(_Strict):
    """What a vendor's image brings for the host's own Python."""

    torch: str
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


TOOLS = {
    "cuda": ["nvidia-smi"],
    "rocm": ["amd-smi", "rocm-smi", "rocminfo"],
    "xpu": ["xpu-smi"],
    "musa": ["mthreads-gmi"],
    "maca": ["mx-smi"],
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
    (state / "vendor.json").write_text(host.model_dump_json(indent=1) + "\n", encoding="utf-8")
    for tool in TOOLS[host.vendor]:
        place = root / f"usr/local/sbin/{tool}"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_HERE / "tools.py", place)
        place.chmod(0o755)
    for path, text in _version_files(host).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    if host.stack:
        for packages in _dist_packages(root):
            _write_stack(packages, host.stack)
    return host


def remove(root: Path) -> None:
    """Takes away what `install` put there."""
    for tools in TOOLS.values():
        for tool in tools:
            (root / f"usr/local/sbin/{tool}").unlink(missing_ok=True)
    for path in ("opt/rocm", "usr/local/musa", "opt/maca"):
        shutil.rmtree(root / path, ignore_errors=True)
    for packages in _dist_packages(root):
        listing = packages / ".lab-stack.json"
        if listing.is_file():
            for name in json.loads(listing.read_text(encoding="utf-8")):
                shutil.rmtree(packages / name, ignore_errors=True)
            listing.unlink()


def _version_files(host: VendorHost) -> dict[str, str]:
    if host.vendor == "rocm" and host.runtime:
        return {"opt/rocm/.info/version": f"{host.runtime}-43\n"}
    if host.vendor == "musa" and host.runtime:
        text = json.dumps({"musa_toolkit": {"version": host.runtime}})
        return {"usr/local/musa/version.json": text + "\n"}
    return {}


def _dist_packages(root: Path) -> list[Path]:
    """Where the distribution's Python looks for what was installed beside it."""
    return [
        root / "usr/local/lib" / path.name / "dist-packages"
        for path in sorted((root / "usr/lib").glob("python3.*"))
        if path.is_dir()
    ]


def _write_stack(packages: Path, stack: Stack) -> None:
    torch = packages / "torch"
    (torch / "lib").mkdir(parents=True, exist_ok=True)
    (torch / "__init__.py").write_text('"""Stand-in made by the lmcache-fleet lab."""\n', encoding="utf-8")
    values = {"cuda": stack.cuda, "hip": stack.hip, "xpu": stack.xpu}
    lines = [f"{name}: Optional[str] = {value!r}\n" for name, value in values.items()]
    text = f"from typing import Optional\n\n__version__ = {stack.torch!r}\ndebug = False\n" + "".join(lines)
    (torch / "version.py").write_text(text, encoding="utf-8")
    symbol = _C10 + (_NEW_STRING if stack.cxx11_abi else b"Ss")
    (torch / "lib/libc10.so").write_bytes(b"stand-in\0" + symbol + b"\0")
    made = ["torch"]
    for name, version in {"torch": stack.torch, **stack.distributions}.items():
        info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (info / "RECORD").write_text(f"{info.name}/METADATA,,\n{info.name}/RECORD,,\n", encoding="utf-8")
        made.append(info.name)
    (packages / ".lab-stack.json").write_text(json.dumps(made), encoding="utf-8")
