"""Checks of ports, units and the environment that a service would run with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lmcache_fleet.playbook.model import ServiceStep
from lmcache_fleet.preflight.observation import Subject
from lmcache_fleet.preflight.registry import Values, check

_CONTROLLER_PORTS = (9000, 9800, 9900)
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_OURS = "Written by lmcache-fleet"


def _ports(service: ServiceStep) -> list[tuple[str, int]]:
    """What of the playbook listens where."""
    found = [("service.port", service.port)] if service.has_engine else []
    if service.server:
        found += [("server.port", service.server.port), ("server.http_port", service.server.http_port)]
    return found


@check("port-taken")
def _taken(subject: Subject) -> Iterator[Values]:
    for what, port in _ports(subject.service) if subject.service else ():
        holders = [item for item in subject.host.listeners if item.port == port]
        foreign = [item for item in holders if item.pid not in subject.host.own_pids]
        if foreign:
            names = ", ".join(f"{item.name or '?'} (pid {item.pid or '?'}, {item.address})" for item in foreign)
            yield {"what": what, "port": port, "holders": names}


@check("port-twice")
def _twice(subject: Subject) -> Iterator[Values]:
    ports = _ports(subject.service) if subject.service else []
    for port, count in Counter(port for _, port in ports).items():
        if count > 1:
            yield {"port": port, "names": ", ".join(what for what, number in ports if number == port)}


@check("controller-already-there")
def _controller(subject: Subject) -> Iterator[Values]:
    if subject.truth("enable_controller") or subject.truth("enable_p2p"):
        for item in subject.host.listeners:
            if item.port in _CONTROLLER_PORTS:
                yield {"port": item.port, "holder": f"{item.name or '?'} (pid {item.pid or '?'})"}


@check("service-exposed")
def _exposed(subject: Subject) -> Iterator[Values]:
    service = subject.service
    if service and service.host not in _LOOPBACK and subject.argument("--api-key") is None:
        # SGLang takes a key by its command line alone.
        if service.engine != "vllm" or "VLLM_API_KEY" not in service.secrets:
            yield {"host": service.host, "port": service.port}


@check("server-exposed")
def _server_exposed(subject: Subject) -> Iterator[Values]:
    server = subject.service.server if subject.service else None
    if server and server.host not in _LOOPBACK:
        yield {"host": server.host, "port": server.port}


@check("internal-api-exposed")
def _internal_api(subject: Subject) -> Iterator[Values]:
    if subject.truth("internal_api_server_enabled"):
        # Before 0.5 the default is every address, and /run_script runs what it is sent.
        host = str(subject.settings.get("internal_api_server_host", "0.0.0.0"))  # noqa: S104
        if host not in _LOOPBACK:
            yield {"host": host}


@check("foreign-unit")
def _foreign(subject: Subject) -> Iterator[Values]:
    for name, unit in subject.host.units.items():
        if unit.text is not None and _OURS not in unit.text:
            yield {"unit": name}


@check("unit-drop-ins")
def _drop_ins(subject: Subject) -> Iterator[Values]:
    for name, unit in subject.host.units.items():
        if unit.drop_ins:
            yield {"unit": name, "files": ", ".join(unit.drop_ins)}


@check("hash-seed-unset")
def _hash_seed(subject: Subject) -> Iterator[Values]:
    value = subject.service.env.get("PYTHONHASHSEED") if subject.service else None
    if value is not None and not value.isdigit():
        yield {"value": value}


@check("hash-seed-of-running-service")
def _running_seed(subject: Subject) -> Iterator[Values]:
    wanted = (subject.service.env if subject.service else {}).get("PYTHONHASHSEED", "0")
    for name, unit in subject.host.units.items():
        if unit.running and unit.hash_seed != wanted:
            yield {"unit": name, "found": unit.hash_seed or "-", "wanted": wanted}


@check("host-environment")
def _host_env(subject: Subject) -> Iterator[Values]:
    if subject.host.host_env:
        yield {"variables": ", ".join(f"{name} ({place})" for name, place in sorted(subject.host.host_env.items()))}
