"""This machine, under a prefix of the user's own: what `scripts/demo` converges."""

import os as _os
import shutil as _shutil
import sys as _sys
from pathlib import Path as _Path

_prefix = _os.environ.get("LMCACHE_FLEET_PREFIX") or str(_Path.home() / ".local" / "share" / "lmcache-fleet")
_uv = _shutil.which("uv", path=f"{_Path(_sys.executable).parent}{_os.pathsep}{_os.environ.get('PATH', '')}")
_python = f"{_sys.version_info.major}.{_sys.version_info.minor}"

local = [
    (
        "@local",
        {
            "prefix": _prefix,
            # The interpreter and uv that run this run serve the release too: nothing has to be installed for a trial.
            "vars": {"python": _python, "interpreter": _os.path.realpath(_sys.executable), "uv": _uv, "service": False},
        },
    ),
]
