"""A host's `drain`: which load balancer sends it requests, and how long to wait for the last of them."""

from __future__ import annotations

import re
from string import Formatter
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from lmcache_fleet.playbook.model import AbsolutePath, Argument, PlainName, StrictModel

_PLACES = ("name", "address")


def _check_server(text: str) -> str:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"not a text with {{name}} or {{address}}: {error}") from error
    for _, place, form, conversion in parts:
        if place is not None and (place not in _PLACES or form or conversion):
            raise ValueError(f"'{{{place}}}' is unknown: use {{name}} or {{address}}")
    if not text or re.search(r"[\s;/#]", text):
        raise ValueError("a server's name has no blank, ';', '/' or '#'")
    return text


ServerName = Annotated[str, AfterValidator(_check_server)]


class HaproxyPlace(StrictModel):
    """A server of an HAProxy backend, reached through HAProxy's runtime socket."""

    hosts: list[str] = Field(min_length=1, description="load balancers, by their names in the inventory")
    backend: PlainName
    server: ServerName = Field(default="{name}", description="the host's server in the backend")
    socket: AbsolutePath = "/run/haproxy/admin.sock"


class NginxPlace(StrictModel):
    """A `server` line of an nginx upstream, in a file on its load balancers."""

    hosts: list[str] = Field(min_length=1, description="load balancers, by their names in the inventory")
    file: AbsolutePath = Field(description="the file with the upstream's `server` lines, one a line")
    server: ServerName = Field(default="{address}:8000", description="the host's address in its `server` line")
    health: Annotated[Argument, Field(pattern=r"^/")] = "/health"
    pid_file: AbsolutePath = "/run/nginx.pid"


class DrainSettings(StrictModel):
    """How a host is taken out of service and put back.

    In a server's name, `{name}` is the host's name in the inventory and `{address}` its address.
    """

    haproxy: HaproxyPlace | None = None
    nginx: NginxPlace | None = None
    metrics: str = Field(
        default="http://127.0.0.1:8000/metrics",
        pattern=r"^https?://\S+$",
        description="the engine's, seen from its host",
    )
    limit: int = Field(default=300, ge=1, description="seconds to wait for the last request")
    at_limit: Literal["fail", "go_on"] = Field(
        default="fail", description="requests are left: put the host back and fail, or cut them off"
    )
    up_limit: int = Field(default=120, ge=1, description="seconds to wait for the health check to see the host up")
    min_up: int = Field(default=1, ge=0, description="other servers that must be in service while this one is not")

    @model_validator(mode="after")
    def _one_kind(self) -> DrainSettings:
        if (self.haproxy is None) == (self.nginx is None):
            raise ValueError("give exactly one of haproxy and nginx")
        return self

    @property
    def balancers(self) -> list[str]:
        """Names of the load balancers."""
        place = self.haproxy or self.nginx
        return list(place.hosts) if place else []


def server_name(template: str, name: str, address: str) -> str:
    """A host's server at its load balancer.

    Args:
        template: the setting.
        name: the host's name in the inventory.
        address: the host's address.
    """
    return template.format(name=name, address=address)
