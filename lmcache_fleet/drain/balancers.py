"""What a load balancer is asked: how a host's server stands there, out of service with it, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lmcache_fleet.drain import DrainError, Shell, haproxy, nginx
from lmcache_fleet.drain.settings import DrainSettings, HaproxyPlace, NginxPlace, server_name
from lmcache_fleet.problems import nearest
from lmcache_fleet.shell import run_program


@dataclass(frozen=True, slots=True)
class Standing:
    """How a server stands at one load balancer, as read there.

    Args:
        serving: it gets new requests, or would as soon as its health check sees it up.
        ours: it gets none because we drained it.
        held: somebody else took it out of service; we leave that as it is. Empty when not so.
        up: the health check sees it up.
        busy: requests or connections that it still has.
        others: other servers that are in service.
        check: what the health check saw, for people.
    """

    serving: bool
    ours: bool
    held: str
    up: bool
    busy: int
    others: int
    check: str


class Balancer(Protocol):
    """One kind of load balancer, for one host's server."""

    label: str

    def look(self, balancer: str) -> Standing:
        """How the server stands at a load balancer now."""

    def take_out(self, balancer: str) -> Standing:
        """No new requests for the server; gives how it stands then, as read back."""

    def put_back(self, balancer: str) -> Standing:
        """New requests for the server; gives how it stands then, as read back."""


class Haproxy:
    """HAProxy, by the runtime socket on its host. Its own restart forgets what was set there.

    Args:
        shell: runs commands on load balancers.
        place: the backend.
        server: the host's server in it.
    """

    def __init__(self, shell: Shell, place: HaproxyPlace, server: str) -> None:
        self._shell = shell
        self._place = place
        self._server = server
        self.label = f"{place.backend}/{server}"

    def look(self, balancer: str) -> Standing:
        """How the server stands."""
        return self._ask(balancer)

    def take_out(self, balancer: str) -> Standing:
        """State `drain`: requests in flight go on, health checks too."""
        return self._ask(balancer, "drain")

    def put_back(self, balancer: str) -> Standing:
        """State `ready`."""
        return self._ask(balancer, "ready")

    def _ask(self, balancer: str, state: str | None = None) -> Standing:
        place = self._place
        first = [haproxy.set_state(place.backend, self._server, state)] if state else []
        request = {"socket": place.socket, "commands": [*first, *haproxy.questions(place.backend)]}
        answers = json.loads(self._shell.run(balancer, run_program("haproxy_socket.py", request)))
        # It answers an empty line when all is well, and words when not.
        refused = answers[0].strip() if state else ""
        if refused:
            raise DrainError(
                f"{balancer}: HAProxy refuses state {state} of {self.label}: {refused}",
                "the socket must have `level admin`" if "ermission" in refused else "",
            )
        try:
            servers = haproxy.parse(place.backend, answers[-2], answers[-1])
        except haproxy.UnreadableAnswer as error:
            raise DrainError(
                f"{balancer}: {error}", f"is '{place.backend}' a backend of that HAProxy? Correct `drain.haproxy`"
            ) from error
        found = servers.get(self._server)
        if found is None:
            raise DrainError(
                f"{balancer}: the backend {place.backend} has no server '{self._server}'"
                + nearest(self._server, servers),
                "correct `drain.haproxy.server` of this host",
            )
        if not found.checked:
            raise DrainError(
                f"{balancer}: the server {self.label} has no health check, so nothing would tell when it is back",
                "add `check` to its line and `option httpchk GET /health` to the backend",
            )
        return Standing(
            serving=not found.draining and not found.maintenance,
            ours=found.drained,
            held=_held(found),
            up=found.up,
            busy=found.sessions + found.queued,
            others=sum(other.serving for other in servers.values() if other.name != self._server),
            check=found.check,
        )


def _held(server: haproxy.Server) -> str:
    if server.maintenance:
        return "in maintenance"
    return "drained by its configuration" if server.draining and not server.drained else ""


class Nginx:
    """nginx, by the file of its upstream and a reload. Requests in flight go on in the workers that had them.

    Args:
        shell: runs commands on load balancers.
        place: the file.
        server: the host's address in its `server` line.
    """

    def __init__(self, shell: Shell, place: NginxPlace, server: str) -> None:
        self._shell = shell
        self._place = place
        self._server = server
        self.label = server

    def look(self, balancer: str) -> Standing:
        """How the server stands; its health is asked for from the load balancer."""
        return self._standing(balancer, self._ask(balancer))

    def take_out(self, balancer: str) -> Standing:
        """Mark its line as `down`, and have nginx load that."""
        return self._edit(balancer, nginx.drained)

    def put_back(self, balancer: str) -> Standing:
        """Take our mark from its line, and have nginx load that."""
        return self._edit(balancer, nginx.restored)

    def _edit(self, balancer: str, change: Callable[[str, str], str]) -> Standing:
        before = self._ask(balancer)["text"]
        after = change(before, self._server)
        # Loaded even if the file is as wanted: a run that was killed in between left it written and not loaded.
        answer = self._ask(balancer, before=before, after=after, pid_file=self._place.pid_file)
        if answer["text"] != after:
            raise DrainError(f"{balancer}: {self._place.file} was changed by somebody else meanwhile", "run again")
        return self._standing(balancer, answer)

    def _ask(self, balancer: str, **more: str) -> dict[str, Any]:
        request = {
            "file": self._place.file,
            "server": self._server,
            "health": f"http://{self._server}{self._place.health}",
            **more,
        }
        answer: dict[str, Any] = json.loads(self._shell.run(balancer, run_program("nginx_upstream.py", request)))
        return answer

    def _standing(self, balancer: str, answer: dict[str, Any]) -> Standing:
        servers = nginx.servers(answer["text"])
        mine = [server for server in servers if server.address == self._server]
        if not mine:
            raise DrainError(
                f"{balancer}: {self._place.file} has no line `server {self._server} …;`"
                + nearest(self._server, {server.address for server in servers}),
                "correct `drain.nginx.server` of this host; a line holds one server",
            )
        down, ours = all(server.down for server in mine), any(server.ours for server in mine)
        return Standing(
            serving=not down,
            ours=ours,
            held="marked down by hand" if down and not ours else "",
            up=not answer["unhealthy"],
            busy=int(answer["connections"]),
            others=len({server.address for server in servers if not server.down} - {self._server}),
            check=answer["unhealthy"] or "healthy",
        )


def balancer_of(settings: DrainSettings, shell: Shell, host: str) -> Balancer:
    """The kind of load balancer that a host's settings name, for that host's server.

    Args:
        settings: the host's `drain`.
        shell: runs commands on load balancers.
        host: its name in the inventory.
    """
    if settings.haproxy:
        return Haproxy(shell, settings.haproxy, server_name(settings.haproxy.server, host, shell.address(host)))
    assert settings.nginx is not None
    return Nginx(shell, settings.nginx, server_name(settings.nginx.server, host, shell.address(host)))
