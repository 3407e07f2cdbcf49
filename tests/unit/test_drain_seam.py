"""The seam between a rollout and a load balancer."""

from __future__ import annotations

from typing import cast

from lmcache_fleet.drain import Drain, DrainError, Shell, drain_of
from lmcache_fleet.inventory import host_settings


def test_without_anything_before_the_hosts_nothing_is_drained() -> None:
    drain: Drain = drain_of(host_settings("h1", [{}]), cast(Shell, None), print)
    drain.drain("h1")
    drain.undrain("h1")


def test_an_error_has_a_cause_and_a_remedy() -> None:
    error = DrainError("3 requests still run", "wait longer")
    assert (str(error), error.remedy) == ("3 requests still run", "wait longer")
