"""Stand-in for LMCache-Ascend, for simulated hosts.

Like the real one it patches lmcache at import, and only when vLLM is loaded already: imported too early, it leaves
lmcache without a device.
"""

import sys

from lmcache_ascend import _build_info
from lmcache_ascend._version import __version__

LMCACHE_UPSTREAM_TAG = "v0.4.3"
LMCACHE_ASCEND_PATCHED = False


def _in_vllm() -> bool:
    return "vllm" in sys.modules or any("vllm" in word for word in sys.argv)


import lmcache  # noqa: E402

from lmcache_ascend import c_ops  # noqa: E402 - a build that can't be loaded must be seen here
from lmcache_ascend.standin import modules as _modules  # noqa: E402

sys.modules["lmcache.c_ops"] = c_ops
if _in_vllm():
    LMCACHE_ASCEND_PATCHED = True
_modules.install(patched=LMCACHE_ASCEND_PATCHED)

__all__ = ["LMCACHE_ASCEND_PATCHED", "LMCACHE_UPSTREAM_TAG", "__version__", "_build_info", "c_ops", "lmcache"]
