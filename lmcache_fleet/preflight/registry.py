"""Checks by id: functions that look at a subject and yield the values of each finding's text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from lmcache_fleet.preflight.observation import Subject

Values = dict[str, object]
Check = Callable[[Subject], Iterable[Values]]

_checks: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Register a function as the check of that id; each yielded mapping is one finding.

    Args:
        name: id in the catalogue, whose texts name the values.
    """

    def register(function: Check) -> Check:
        if name in _checks:
            raise ValueError(f"two checks are called {name}")
        _checks[name] = function
        return function

    return register


def checks() -> Iterator[tuple[str, Check]]:
    """Every check with its id."""
    # Each topic registers its checks when it is imported.
    from lmcache_fleet.preflight import (
        access,
        config,
        devices,
        driver,
        libraries,
        packages,
        resources,
        service,
        toolkit,
    )

    assert all((access, config, devices, driver, libraries, packages, resources, service, toolkit))
    yield from _checks.items()
