"""Stand-in for LMCache-Ascend of the MP line, for simulated hosts: the native part alone."""

from lmcache_ascend import _build_info
from lmcache_ascend._version import __version__

LMCACHE_UPSTREAM_TAG = "v0.5.6"

__all__ = ["LMCACHE_UPSTREAM_TAG", "__version__", "_build_info"]
