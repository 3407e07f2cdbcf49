"""What one host can't do."""

from __future__ import annotations

from lmcache_fleet.problems import Trouble


class HostFault(Trouble):
    """This host can't be brought to the wanted state."""
