"""The stand-in wheels: which distributions there are, what they require, and on which index they lie.

Names, versions and the requirements that conflict are the real ones; everything light that a simulated host doesn't
need is left out. Deviations that matter are in docs/lab_standins.md.
"""

from __future__ import annotations

import gzip
import io
import platform
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lab.ascend.elf import shared_object
from lab.packages.wheel import add_files, write_wheel

SOURCES = Path(__file__).resolve().parent / "standins"

#: index paths below the server's root
MAIN, ASCEND, VARIANT, CPU = "simple", "ascend/simple", "variant/simple", "whl/cpu/simple"

#: stand-in → what it holds beside its own: what engines have in common
_SHARED = {"vllm": "engine", "sglang": "engine"}

_TRANSFORMERS = "transformers!=5.0.*,!=5.1.*,!=5.2.*,!=5.3.*,!=5.4.*,!=5.5.0,>=4.56.0"
_TORCH = ("filelock", "typing-extensions>=4.10.0", "setuptools<82")
_VLLM = (
    "numpy", "psutil", "requests>=2.26.0", "tqdm", "blake3", _TRANSFORMERS, "tokenizers>=0.21.1", "safetensors>=0.6.2",
    "aiohttp>=3.13.3", "pyzmq>=25.0.0", "msgspec", "pyyaml", "filelock>=3.16.1", "typing_extensions>=4.10", "ninja",
    "einops", "setuptools<81.0.0,>=77.0.3", "torch==2.11.0", "torchaudio==2.11.0", "torchvision==0.26.0",
)  # fmt: skip
_VLLM_ASCEND = (
    "cmake>=3.26", "decorator", "einops", "numpy", "packaging", "pip", "pybind11", "pyyaml", "psutil", "setuptools>=64",
    "setuptools-scm>=8", "torch==2.10.0", "torch-npu==2.10.0.post4", "torchvision==0.25.0", "torchaudio==2.10.0",
    "triton-ascend==3.2.2", "wheel", "transformers==5.5.4",
)  # fmt: skip
_PLUGINS = """\
[vllm.platform_plugins]
ascend = vllm_ascend:register

[vllm.general_plugins]
ascend_kv_connector = vllm_ascend:register_connector
"""


@dataclass(frozen=True)
class Dist:
    """One stand-in wheel."""

    name: str
    version: str
    source: str
    """Directory below ``standins``."""
    requires: tuple[str, ...] = ()
    indexes: tuple[str, ...] = (MAIN,)
    native: bool = False
    """Whether its tag names this architecture."""
    entry_points: str = ""
    build: str = ""
    requires_python: str = ">=3.10"
    extra: Callable[[str, str], dict[str, bytes]] | None = field(default=None)
    """Makes further files from version and architecture."""


def torch_files(version: str, arch: str) -> dict[str, bytes]:
    """A library that exports a name of this very version, and the CMake package that leads to it."""
    symbol = "lab_torch_abi_" + version.partition("+")[0].replace(".", "_")
    config = (
        'get_filename_component(TORCH_ROOT "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)\n'
        'set(TORCH_INCLUDE_DIRS "${TORCH_ROOT}/include")\nset(TORCH_LIBRARIES "${TORCH_ROOT}/lib/libtorch.so")\n'
        "set(Torch_FOUND TRUE)\n"
    )
    header = f'#pragma once\n#define LAB_TORCH_ABI {symbol}\nextern "C" int {symbol}();\n'
    return {
        "torch/lib/libtorch.so": shared_object(arch, "libtorch.so", [symbol]),
        "torch/share/cmake/Torch/TorchConfig.cmake": config.encode(),
        "torch/include/torch/lab_abi.h": header.encode(),
    }


def _torch_npu_files(version: str, arch: str) -> dict[str, bytes]:
    del version
    return {"torch_npu/lib/libtorch_npu.so": shared_object(arch, "libtorch_npu.so", ["lab_torch_npu"])}


def distributions(arch: str) -> list[Dist]:
    """All stand-in wheels for hosts of *arch*."""
    # on x86_64 the vendor's wheel asks for a local version that only the CPU index of torch has
    wanted_torch = "torch==2.10.0+cpu" if arch == "x86_64" else "torch==2.10.0"
    backend = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
    command = "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n"

    def torch(version: str, triton: str, indexes: tuple[str, ...] = (MAIN,)) -> Dist:
        return Dist("torch", version, "torch", (*_TORCH, f"triton=={triton}"), indexes, native=True, extra=torch_files)

    return [
        torch("2.11.0", "3.6.0"),
        torch("2.10.0", "3.5.1"),
        torch("2.10.0+cpu", "3.5.1", (CPU,)),
        Dist("torchaudio", "2.11.0", "torchaudio", native=True),
        Dist("torchaudio", "2.10.0", "torchaudio", ("torch==2.10.0",), native=True),
        Dist("torchvision", "0.26.0", "torchvision", ("torch==2.11.0", "numpy"), native=True),
        Dist("torchvision", "0.25.0", "torchvision", ("torch==2.10.0", "numpy"), native=True),
        Dist("triton", "3.6.0", "triton", native=True),
        Dist("triton", "3.5.1", "triton", native=True),
        Dist("triton-ascend", "3.2.2", "triton_ascend", indexes=(ASCEND,), native=True),
        Dist("triton-ascend", "3.2.1", "triton_ascend", indexes=(ASCEND,), native=True),
        Dist(
            "torch-npu", "2.10.0.post4", "torch_npu", (wanted_torch,), (MAIN, ASCEND, VARIANT),
            native=True, entry_points=backend, extra=_torch_npu_files,
        ),
        Dist("vllm", "0.23.0", "vllm", _VLLM, native=True, entry_points=command),
        Dist(
            "vllm-ascend", "0.23.0", "vllm_ascend", _VLLM_ASCEND,
            native=True, entry_points=_PLUGINS, requires_python=">=3.10,<3.13",
        ),
        # the real 0.5.6 needs the real torch for its server and its connector, and there is no patch to replace them
        # and its wheels, unlike those of 0.4, are there for both architectures: CUDA builds, tagged as such
        Dist(
            "lmcache", "0.5.6", "lmcache_mp", native=True,
            entry_points="[console_scripts]\nlmcache = lmcache.cli.main:main\n",
        ),
        Dist("lab-extra", "1.0", "lab_extra"),
        Dist("lab-extra", "1.1", "lab_extra"),
    ]  # fmt: skip


def dist_files(dist: Dist, arch: str) -> dict[str, bytes]:
    """What a stand-in wheel holds."""
    files = _texts(dist.source, dist.version)
    for package in {name.partition("/")[0] for name in files} - {"triton", "lab_extra"}:
        files[f"{package}/version.py"] = f'"""Version."""\n\n__version__ = "{dist.version}"\n'.encode()
    if dist.source in _SHARED:
        files.update(_texts(_SHARED[dist.source], dist.version))
    if dist.extra:
        files.update(dist.extra(dist.version, arch))
    return files


def _texts(source: str, version: str) -> dict[str, bytes]:
    """The files of a directory below ``standins``, with the version that they are of."""
    root = SOURCES / source
    return {
        path.relative_to(root).as_posix(): path.read_bytes().replace(b"@VERSION@", version.encode())
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def build(out: Path, arch: str | None = None) -> dict[str, list[Path]]:
    """Writes all stand-in wheels; gives the wheels of each index."""
    arch = arch or platform.machine()
    found: dict[str, list[Path]] = {MAIN: [], ASCEND: [], VARIANT: [], CPU: []}
    for dist in distributions(arch):
        wheel = write_wheel(
            out,
            dist.name,
            dist.version,
            dist_files(dist, arch),
            tag=f"py3-none-manylinux_2_28_{arch}" if dist.native else "py3-none-any",
            requires=dist.requires,
            requires_python=dist.requires_python,
            entry_points=dist.entry_points,
            summary="Stand-in made by the lmcache-fleet lab; not the real distribution",
            build=dist.build,
        )
        for index in dist.indexes:
            found[index].append(wheel)
    return found


def source(out: Path, name: str = "lmcache", version: str = "0.5.6") -> Path:
    """Writes the source distribution of lmcache's stand-in, byte for byte the same each time."""
    base = f"{name}-{version}"
    files = {
        **dist_files(next(dist for dist in distributions("any") if dist.name == name), "any"),
        **{
            path.name: path.read_bytes()
            for path in sorted((SOURCES.parent / "lmcache_source").iterdir())
            if path.is_file()
        },
    }
    metadata = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\nRequires-Python: >=3.10\n"
    target = out / f"{base}.tar.gz"
    with (
        target.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, data in sorted({**files, "PKG-INFO": metadata.encode()}.items()):
            info = tarfile.TarInfo(f"{base}/{path}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return target


def cuda_trap(out: Path, pure: Path, arch: str) -> list[Path]:
    """Wheels of lmcache as the index has them for x86_64: the same Python, and a native part that wants CUDA.

    Args:
        out: where to write them.
        pure: the wheel built from the real source distribution.
        arch: only x86_64 has such wheels for 0.4.x.
    """
    if arch != "x86_64":
        return []
    made = []
    for minor in (310, 311, 312, 313):
        name = f"lmcache/c_ops.cpython-{minor}-{arch}-linux-gnu.so"
        native = shared_object(arch, "c_ops.so", ["PyInit_c_ops"], ["libcudart.so.12"])
        marker = {name: native, "lmcache/_lab_cuda_wheel.txt": b"CUDA build of lmcache (lab stand-in)\n"}
        made.append(add_files(pure, out, marker, f"cp{minor}-cp{minor}-manylinux_2_28_{arch}"))
    return made
