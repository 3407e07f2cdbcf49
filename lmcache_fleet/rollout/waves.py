"""Which hosts change together: a pure plan from hosts, failure domains and limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

_SIZE = re.compile(r"([1-9]\d*)(%?)")


def parse_waves(text: str) -> list[str]:
    """Sizes of waves, such as `1,10%,50%,100%`: how many hosts are done after each, or which share of the fleet.

    Args:
        text: comma-separated numbers and percentages, rising.

    Raises:
        ValueError: a size can't be read, is over 100%, or is smaller than the one before it.
    """
    sizes = [item.strip() for item in text.split(",")]
    for item in sizes:
        found = _SIZE.fullmatch(item)
        if not found:
            raise ValueError(f"'{item}': expected a number of hosts or a percentage, such as 1 or 10%")
        if found[2] and int(found[1]) > 100:
            raise ValueError(f"'{item}' is more than the whole fleet")
    for kind in ("", "%"):
        alike = [int(item.rstrip("%")) for item in sizes if item.endswith("%") == bool(kind)]
        if alike != sorted(alike):
            raise ValueError("the sizes count all hosts done so far: each must be at least as large as the one before")
    return sizes


def plan_waves(
    hosts: Sequence[str], sizes: Sequence[str], domains: Mapping[str, str], same_domain_ok: bool = False
) -> list[list[str]]:
    """Deal hosts out to waves.

    The same input always gives the same waves, whatever happened before.

    Args:
        hosts: the hosts, in the order in which they are to change.
        sizes: as `parse_waves` gave them. What is left after the last one makes further waves of its size.
        domains: host → failure domain; a host without one (or with an empty one) shares it with nobody.
        same_domain_ok: hosts of one failure domain may be in one wave.

    Returns:
        The waves, in order; none is empty. With domains kept apart a wave may be smaller than asked for, and there are
        as many waves as it takes.
    """
    left = list(hosts)
    waves: list[list[str]] = []
    marks = sorted({_count(size, len(hosts)) for size in sizes})
    step = marks[-1] - (marks[-2] if len(marks) > 1 else 0) if marks else len(hosts)
    while marks and marks[-1] < len(hosts):
        marks.append(min(len(hosts), marks[-1] + step))
    while left:
        done = len(hosts) - len(left)
        # A wave that domains cut short is made up for by further ones, before the next and larger size is tried.
        mark = next((mark for mark in marks if mark > done), len(hosts))
        wave = _take(left, mark - done, domains, same_domain_ok)
        waves.append(wave)
        left = [name for name in left if name not in set(wave)]
    return waves


def batches(wave: Sequence[str], max_unavailable: int | None) -> list[list[str]]:
    """Split a wave so that no more than so many hosts are out of service at once.

    Args:
        wave: its hosts, in order.
        max_unavailable: at most so many; None for the whole wave at once.
    """
    size = max_unavailable or max(1, len(wave))
    return [list(wave[start : start + size]) for start in range(0, len(wave), size)]


def _count(size: str, total: int) -> int:
    # A share is rounded up: 10% of four hosts is one host, not none.
    number = math.ceil(total * int(size[:-1]) / 100) if size.endswith("%") else int(size)
    return min(number, total)


def _take(left: Iterable[str], count: int, domains: Mapping[str, str], same_domain_ok: bool) -> list[str]:
    wave: list[str] = []
    used: set[str] = set()
    for name in left:
        domain = domains.get(name, "")
        if len(wave) == count:
            break
        if domain and domain in used and not same_domain_ok:
            continue
        wave.append(name)
        used.add(domain)
    return wave
