"""What the control machine can find out before any host is asked: indexes that don't answer, pins that can't be had."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from lmcache_fleet.once import Once
from lmcache_fleet.shell import PROGRAMS

_SECONDS = 8


def unreachable(urls: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The URLs that this machine can't reach, with the cause; asked once a process.

    Args:
        urls: what to ask for; all are asked at once.
    """
    return _asked.get(urls, lambda: _ask(urls)) if urls else ()


_asked: Once[tuple[str, ...], tuple[tuple[str, str], ...]] = Once()


def _ask(urls: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    argv = [sys.executable, str(PROGRAMS / "probe_urls.py"), json.dumps({"urls": urls, "seconds": _SECONDS})]
    # A process of its own: threads that wait in this one would hold all other hosts up.
    done = _output(argv)
    return tuple((url, cause) for url, cause in json.loads(done).items() if cause)


def _output(argv: Sequence[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, timeout=4 * _SECONDS, check=True).stdout
