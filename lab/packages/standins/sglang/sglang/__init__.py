"""Stand-in for SGLang, for simulated hosts: serves, stores and retrieves pseudo KV, runs no model.

Names, messages and the order of checks follow the real thing where a deployment tool can see them.
"""

from sglang.version import __version__

__all__ = ["__version__"]
