"""A stand-in for lmcache_ascend: useful only when vllm was imported before."""

from __future__ import annotations

import sys

if "vllm" not in sys.modules:
    raise ImportError("vllm must be imported first")

print("INFO Platform plugin ascend is activated")


class VendorConnector:
    pass
