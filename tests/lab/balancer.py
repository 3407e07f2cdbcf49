"""A load balancer for tests: Debian's HAProxy or nginx on a lab host, and clients that count what goes wrong."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.lab.fleet import UNIT, Fleet, quoted

PORT = 8080
TOKENS = 30

HAPROXY = """global
    stats socket /run/haproxy/admin.sock mode 660 level admin
    user haproxy
    group haproxy
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend vllm
    bind :{port}
    default_backend vllm
backend vllm
    balance leastconn
    option httpchk GET /health
    default-server check inter 300ms fall 2 rise 1
{servers}
"""

NGINX = """upstream vllm {{
    least_conn;
{servers}
}}
server {{
    listen {port};
    location / {{
        proxy_pass http://vllm;
        proxy_buffering off;
    }}
}}
"""
NGINX_FILE = "/etc/nginx/conf.d/vllm.conf"

# Two seconds an answer: a restart surely meets some.
SLOW = "[Manager]\nDefaultEnvironment=LMCACHE_FLEET_LAB_MS_PER_OUTPUT=70\n"
_SLOW_FILE = "/etc/systemd/system.conf.d/slow.conf"


def install(fleet: Fleet, host: str, package: str, config: str, path: str) -> None:
    """Install a load balancer and start it with a configuration."""
    apt = "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends"
    fleet.root(host, f"{{ dpkg -s {package} || {{ apt-get update -qq && {apt} {package}; }}; }} >/dev/null 2>&1")
    fleet.root(host, f"rm -f /etc/nginx/sites-enabled/default; printf %s {quoted(config)} > {path}")
    service = package.removesuffix("-light")
    # They take turns at one port.
    other = {"haproxy": "nginx", "nginx": "haproxy"}[service]
    fleet.root(host, f"systemctl stop {other} 2>/dev/null; systemctl restart {service}")


def haproxy(fleet: Fleet, host: str, engines: Sequence[str]) -> None:
    """HAProxy before engines."""
    servers = "\n".join(f"    server {name} {fleet.lab.host(name).address}:8000" for name in engines)
    install(fleet, host, "haproxy", HAPROXY.format(port=PORT, servers=servers), "/etc/haproxy/haproxy.cfg")


def nginx(fleet: Fleet, host: str, engines: Sequence[str]) -> None:
    """nginx before engines."""
    servers = "\n".join(f"    server {fleet.lab.host(name).address}:8000;" for name in engines)
    install(fleet, host, "nginx-light", NGINX.format(port=PORT, servers=servers), NGINX_FILE)


def servers(fleet: Fleet, host: str) -> dict[str, str]:
    """HAProxy's servers, by name: `ready` or `drained`, and `up` or `down`."""
    program = (
        "import socket\n"
        "channel = socket.socket(socket.AF_UNIX)\n"
        "channel.connect('/run/haproxy/admin.sock')\n"
        "channel.sendall(b'show servers state vllm\\n')\n"
        "print(channel.makefile().read())\n"
    )
    _, _, *rows = (line.split() for line in fleet.python(host, program).splitlines() if line.strip())
    admin = {"0": "ready", "8": "drained"}
    return {row[3]: f"{admin.get(row[6], row[6])} {'up' if row[5] == '2' else 'down'}" for row in rows}


@contextmanager
def watched(fleet: Fleet, host: str) -> Iterator[list[dict[str, str]]]:
    """How HAProxy's servers stood, over and over, while something goes on."""
    seen: list[dict[str, str]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.append(servers(fleet, host))
            stop.wait(0.3)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(60)


def slow_answers(fleet: Fleet, hosts: Sequence[str]) -> None:
    """Have services take their time; those that run are restarted."""
    for host in hosts:
        fleet.root(host, f"mkdir -p $(dirname {_SLOW_FILE}); printf {SLOW!r} > {_SLOW_FILE}")
        fleet.root(host, f"systemctl daemon-reexec; systemctl try-restart {UNIT}", check=False)


def usual_answers(fleet: Fleet, hosts: Sequence[str]) -> None:
    """Services that start from now on take no time of their own."""
    for host in hosts:
        fleet.root(host, f"rm {_SLOW_FILE}; systemctl daemon-reexec")


def generated(fleet: Fleet, host: str) -> int:
    """Tokens that a host's engine has made."""
    ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/metrics').read().decode())"
    page = fleet.python(host, ask)
    (line,) = [line for line in page.splitlines() if line.startswith("vllm:generation_tokens_total")]
    return int(float(line.rsplit(" ", 1)[1]))


@dataclass
class Clients:
    """People who ask for streamed answers, one request after another.

    Args:
        address: of the load balancer.
        model: name that the service has.
        wrong: what went wrong, one entry a request.
        answers: number of whole answers.
    """

    address: str
    model: str
    wrong: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)

    def ask(self, number: int) -> str:
        """One request, read to its end; the text of the answer.

        Raises:
            AssertionError: the answer isn't whole.
        """
        body = {"model": self.model, "prompt": f"client {number} asks", "max_tokens": TOKENS, "stream": True}
        connection = http.client.HTTPConnection(self.address, PORT, timeout=30)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        assert answer.status == 200, f"status {answer.status}: {text[:80]}"
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        assert events[-1:] == ["[DONE]"], f"cut off after {len(events)} of {TOKENS} tokens"
        assert len(events) == TOKENS + 1, f"{len(events) - 1} of {TOKENS} tokens"
        parts: list[dict[str, Any]] = [json.loads(event) for event in events[:-1]]
        return "".join(part["choices"][0]["text"] for part in parts)

    def _run(self, number: int) -> None:
        expected = None
        while not self._stop.is_set():
            try:
                text = self.ask(number)
                # Every host has the same model: whoever answers, the answer is the same.
                expected = expected or text
                assert text == expected, "another answer"
                self.answers["whole"] += 1
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.wrong.append(f"{time.strftime('%H:%M:%S')} {type(error).__name__}: {error}")
                # A real client waits, too; without it a closed port makes thousands of failures.
                time.sleep(0.5)

    @contextmanager
    def asking(self, count: int) -> Iterator[Clients]:
        """So many of them at work, each to the end of its last request."""
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(60)
