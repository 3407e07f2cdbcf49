"""Stand-in for torch_npu, for simulated hosts.

Importing it needs what importing the real one needs: the toolkit's and the driver's libraries on the loader's path.
"""

import ctypes as _ctypes
import os as _os
import pathlib as _pathlib
import sys as _sys

_autoload_was = _os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
_os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # torch must not load this module while it is being loaded
import torch  # noqa: E402

if _autoload_was is None:
    del _os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
else:
    _os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = _autoload_was

for _name in ("libhccl.so", "libascendcl.so", "libascend_hal.so"):
    try:
        _ctypes.CDLL(_name, mode=_ctypes.RTLD_GLOBAL)
    except OSError as _error:
        raise ImportError(str(_error)) from None
_ctypes.CDLL(str(_pathlib.Path(__file__).resolve().parent / "lib" / "libtorch_npu.so"), mode=_ctypes.RTLD_GLOBAL)

from torch_npu import npu  # noqa: E402
from torch_npu.version import __version__  # noqa: E402

torch.npu = npu
_sys.modules["torch.npu"] = npu


def _autoload() -> None:
    """Entry point that torch calls at its own import."""


__all__ = ["__version__", "npu"]
