"""Stand-in for lmcache 0.5.6, for simulated hosts: the MP mode's server and connector, over pseudo KV.

The real package of this version needs the real torch for both.
"""

from lmcache.version import __version__

__all__ = ["__version__"]
