"""Every parser by name: what `lmcache-fleet parse NAME` can read."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from lmcache_fleet.parsers import ascend_env, cpuinfo, maca, musa, npu_smi, nvidia, rocm, xpu
from lmcache_fleet.problems import nearest

Parser = Callable[[str], Any]

# Each has `PARSERS`, name -> function of the text. A new vendor is one more line here.
_TABLES = tuple(module.PARSERS for module in (npu_smi, ascend_env, nvidia, rocm, xpu, musa, maca, cpuinfo))


@lru_cache(maxsize=1)
def parsers() -> dict[str, Parser]:
    """All parsers by name. A function takes a tool's output and returns plain data; none raises for any text."""
    found: dict[str, Parser] = {}
    for table in _TABLES:
        twice = found.keys() & table.keys()
        if twice:
            raise ValueError(f"two parsers are named {', '.join(twice)}")
        found.update(table)
    return dict(sorted(found.items()))


def parser(name: str) -> Parser:
    """One parser by name.

    Raises:
        KeyError: there is none; the message names the nearest.
    """
    known = parsers()
    if name not in known:
        raise KeyError(f"no parser is named {name!r}{nearest(name, known)}")
    return known[name]
