"""Drain a host at its load balancers, and wait for what is in flight; undrain it, and wait until it is seen up."""

from __future__ import annotations

import json
import time

from gevent.lock import BoundedSemaphore

from lmcache_fleet.drain import DrainError, Say, Shell
from lmcache_fleet.drain.balancers import Balancer, Standing, balancer_of
from lmcache_fleet.drain.settings import DrainSettings
from lmcache_fleet.shell import run_program

_POLL = 0.5
# A request may be on its way between the two counts, so that neither has it: all quiet counts when seen twice.
_QUIET = 2
_TELL = 10.0
# A rollout drains several hosts at once. Whether enough others are in service must hold until this one is out, and an
# upstream's file must be the one that was read until it is written.
_CHANGING = BoundedSemaphore(1)


class BalancerDrain:
    """Drains hosts that have these settings.

    Args:
        settings: `drain` of a host.
        shell: runs commands on hosts of the inventory.
        say: told about long waits.
    """

    def __init__(self, settings: DrainSettings, shell: Shell, say: Say) -> None:
        self._settings = settings
        self._shell = shell
        self._say = say

    def drain(self, host: str) -> None:
        """Take the host out of service at every load balancer, and wait for its requests to end.

        Args:
            host: its name in the inventory.

        Raises:
            DrainError: it can't be done, or not in time; the host is put back.
        """
        balancer = self._balancer(host)
        changed: list[str] = []
        try:
            with _CHANGING:
                self._take_out(balancer, changed)
            self._wait_quiet(host, balancer)
        except BaseException:
            for name in changed:
                self._put_back(balancer, name)
            raise

    def undrain(self, host: str) -> None:
        """Put the host back in service at every load balancer whose health check sees it up.

        Args:
            host: its name in the inventory.

        Raises:
            DrainError: a health check doesn't see it up in time; there it stays drained.
        """
        balancer = self._balancer(host)
        for name in self._settings.balancers:
            standing = self._wait_up(balancer, name, balancer.look(name))
            if standing.held:
                self._say(f"{name}: {balancer.label} is {standing.held}, and stays so")
            elif standing.ours:
                with _CHANGING:
                    after = balancer.put_back(name)
                after = self._wait_up(balancer, name, after)
                if not after.serving:
                    raise DrainError(f"{name}: {balancer.label} is not in service after it was put back")

    def _balancer(self, host: str) -> Balancer:
        return balancer_of(self._settings, self._shell, host)

    def _take_out(self, balancer: Balancer, changed: list[str]) -> None:
        """No new requests for the server; `changed` gets the load balancers that gave it some before."""
        min_up, label = self._settings.min_up, balancer.label
        # All are asked before any is changed.
        before = {name: balancer.look(name) for name in self._settings.balancers}
        for name, standing in before.items():
            # One that is down, such as a blank host, is missed by nobody.
            if standing.serving and standing.up and standing.others < min_up:
                raise DrainError(
                    f"{name}: without {label} {standing.others} servers would be in service, and `drain.min_up` is "
                    f"{min_up}",
                    "bring the others into service first, or lower `min_up`",
                )
        for name, standing in before.items():
            if standing.held:
                self._say(f"{name}: {label} is {standing.held} already")
                continue
            if standing.serving:
                changed.append(name)
            after = balancer.take_out(name)
            if after.serving:
                raise DrainError(f"{name}: {label} is still in service after it was drained")

    def _put_back(self, balancer: Balancer, name: str) -> None:
        try:
            with _CHANGING:
                balancer.put_back(name)
        except DrainError as error:
            self._say(f"{name}: {balancer.label} stays drained, it can't be put back: {error.cause}")

    def _wait_up(self, balancer: Balancer, name: str, standing: Standing) -> Standing:
        clock = _Clock(self._settings.up_limit, self._say)
        while not standing.up and not standing.held:
            if clock.over():
                raise DrainError(
                    f"{name}: the health check doesn't see {balancer.label} up within "
                    f"{self._settings.up_limit} s: {standing.check}",
                    "it stays drained: look at the service's log and at the health check, then undrain it",
                )
            clock.sleep(f"{name}: waiting for the health check of {balancer.label}: {standing.check}")
            standing = balancer.look(name)
        return standing

    def _wait_quiet(self, host: str, balancer: Balancer) -> None:
        """Wait until neither a load balancer nor the engine knows of a request for the host."""
        clock, quiet = _Clock(self._settings.limit, self._say), 0
        while True:
            left = self._left(host, balancer)
            quiet = 0 if left else quiet + 1
            if quiet >= _QUIET:
                return
            if left and clock.over():
                break
            clock.sleep(f"waiting for requests on {host}: {left}")
        if self._settings.at_limit == "go_on":
            self._say(f"{host} still has {left} after {self._settings.limit} s; going on, as `drain.at_limit` says")
            return
        raise DrainError(
            f"still {left} after {self._settings.limit} s; the host is back in service",
            "run again when there are fewer, raise `drain.limit`, or cut them off with `at_limit: go_on`",
        )

    def _left(self, host: str, balancer: Balancer) -> str:
        """What the host still works on, for people; empty when nothing."""
        busy = {name: balancer.look(name).busy for name in self._settings.balancers}
        left = [f"{count} of {name}" for name, count in busy.items() if count]
        try:
            asked = run_program("engine_requests.py", self._settings.metrics)
            # No engine at all is a quiet one.
            running = json.loads(self._shell.run(host, asked)) or 0
        except DrainError as error:
            # Not known is not quiet: the limit decides.
            return ", ".join([*left, f"no answer from the engine ({error.cause})"])
        return ", ".join([*left, *([f"{running} in the engine"] if running else [])])


class _Clock:
    """A wait with a limit, told about now and then."""

    def __init__(self, limit: float, say: Say) -> None:
        self._until = time.monotonic() + limit
        self._told = time.monotonic()
        self._say = say

    def over(self) -> bool:
        return time.monotonic() >= self._until

    def sleep(self, message: str) -> None:
        if time.monotonic() - self._told > _TELL:
            self._told = time.monotonic()
            self._say(message)
        time.sleep(_POLL)
