"""Stand-in for torch, for simulated hosts: only what an installer and the other stand-ins look at."""

import ctypes as _ctypes
import importlib.metadata as _metadata
import os as _os
import pathlib as _pathlib

from torch import cuda, utils, version
from torch.version import __version__

_HERE = _pathlib.Path(__file__).resolve().parent
# as with the real one, extensions find torch's symbols because torch was loaded before them
_ctypes.CDLL(str(_HERE / "lib" / "libtorch.so"), mode=_ctypes.RTLD_GLOBAL)


class Tensor:
    """A name for annotations; no arithmetic."""


class dtype:  # noqa: N801 - the name others look for
    """A named element type."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return "torch." + self._name


bfloat16, float16, float32 = dtype("bfloat16"), dtype("float16"), dtype("float32")


def compiled_with_cxx11_abi() -> bool:
    """Which C++ ABI the real wheels of this version have."""
    return True


def _load_backends() -> None:
    """Loads device backends by their entry point; a broken one breaks ``import torch``, as with the real one."""
    if _os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return
    for entry in _metadata.entry_points(group="torch.backends"):
        try:
            entry.load()()
        except Exception as error:
            raise RuntimeError(
                f"Failed to load the backend extension: {entry.name}. "
                "You can disable extension auto-loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0."
            ) from error


_load_backends()

__all__ = ["Tensor", "__version__", "bfloat16", "compiled_with_cxx11_abi", "cuda", "dtype", "float16", "float32"]
__all__ += ["utils", "version"]
