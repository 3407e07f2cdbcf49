"""Every parser by name: what `lmcache-fleet parse NAME` can read."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

from lmcache_fleet.problems import nearest

Parser = Callable[[str], Any]

# Each has `PARSERS`, name -> function of the text. A new vendor is one more line here.
_MODULES = ("npu_smi", "ascend_env", "nvidia", "rocm", "xpu", "musa", "maca")


@lru_cache(maxsize=1)
def parsers() -> dict[str, Parser]:
    """All parsers by name. A function takes a tool's output and returns plain data; none raises for any text."""
    found: dict[str, Parser] = {}
    for name in _MODULES:
        module = _module(name)
        for parser, function in (module.PARSERS if module else {}).items():
            if parser in found:
                raise ValueError(f"two parsers are named {parser}")
            found[parser] = function
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


def _module(name: str) -> ModuleType | None:
    path = f"{__package__}.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return None
